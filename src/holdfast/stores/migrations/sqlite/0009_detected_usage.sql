-- Usage detected from a trace, beside what the agent reported itself: `null` until a trace was analysed.
ALTER TABLE instruction_audit ADD COLUMN detected TEXT NOT NULL DEFAULT 'null';

ALTER TABLE instruction_audit ADD COLUMN detected_at INTEGER;

DROP TRIGGER instruction_audit_closed_once;

-- A record is written once, closed once and analysed once, the last two in either order.
CREATE TRIGGER instruction_audit_closed_once BEFORE UPDATE ON instruction_audit
WHEN new.loaded_chunks <> old.loaded_chunks
    OR (new.audit_closed IS old.audit_closed AND new.detected_at IS old.detected_at)
    OR (old.audit_closed IS NOT NULL AND new.audit_closed IS NOT old.audit_closed)
    OR (old.detected_at IS NOT NULL AND new.detected_at IS NOT old.detected_at)
    OR (
        new.audit_closed IS old.audit_closed
        AND (new.used_chunks <> old.used_chunks OR new.missed_chunks <> old.missed_chunks)
    )
    OR (new.detected_at IS old.detected_at AND new.detected <> old.detected)
BEGIN SELECT raise(ABORT, 'an audit record is closed once'); END;
