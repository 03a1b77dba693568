-- Usage detected from a trace, beside what the agent reported itself: `null` until a trace was analysed.
ALTER TABLE holdfast.instruction_audit ADD COLUMN detected text NOT NULL DEFAULT 'null';

ALTER TABLE holdfast.instruction_audit ADD COLUMN detected_at bigint;

DROP TRIGGER instruction_audit_closed_once ON holdfast.instruction_audit;

-- A record is written once, closed once and analysed once, the last two in either order.
CREATE TRIGGER instruction_audit_closed_once BEFORE UPDATE ON holdfast.instruction_audit FOR EACH ROW
WHEN (
    new.loaded_chunks <> old.loaded_chunks
    OR (new.audit_closed IS NOT DISTINCT FROM old.audit_closed AND new.detected_at IS NOT DISTINCT FROM old.detected_at)
    OR (old.audit_closed IS NOT NULL AND new.audit_closed IS DISTINCT FROM old.audit_closed)
    OR (old.detected_at IS NOT NULL AND new.detected_at IS DISTINCT FROM old.detected_at)
    OR (
        new.audit_closed IS NOT DISTINCT FROM old.audit_closed
        AND (new.used_chunks <> old.used_chunks OR new.missed_chunks <> old.missed_chunks)
    )
    OR (new.detected_at IS NOT DISTINCT FROM old.detected_at AND new.detected <> old.detected)
)
EXECUTE FUNCTION holdfast.refuse_audit_change();
