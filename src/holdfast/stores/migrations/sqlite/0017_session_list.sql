-- Programs of the version before this one run beside it, and join this table with others: no name of a column is theirs.
-- What the session list shows and filters by, from the first events; `opening` are the first words of the first request.
ALTER TABLE sessions ADD COLUMN client TEXT;
ALTER TABLE sessions ADD COLUMN opening TEXT;
ALTER TABLE sessions ADD COLUMN caller_key_id TEXT;
ALTER TABLE sessions ADD COLUMN caller_user_id TEXT;
ALTER TABLE sessions ADD COLUMN caller_team_id TEXT;
ALTER TABLE sessions ADD COLUMN is_simulated INTEGER NOT NULL DEFAULT 0;

UPDATE sessions SET is_simulated = 1 WHERE id IN (
    SELECT session_id FROM events WHERE type = 'session.started' AND instr(payload, '"simulated":true') > 0
);
UPDATE sessions SET
    caller_key_id = (SELECT c.key_id FROM calls AS c WHERE c.session_id = sessions.id AND c.key_id <> '' LIMIT 1),
    caller_user_id = (SELECT c.user_id FROM calls AS c WHERE c.session_id = sessions.id AND c.user_id <> '' LIMIT 1),
    caller_team_id = (SELECT c.team_id FROM calls AS c WHERE c.session_id = sessions.id AND c.team_id <> '' LIMIT 1);

-- What the list is sorted by: the sums over the days of a session, kept with its row so that no order reads them all.
ALTER TABLE sessions ADD COLUMN calls_total INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN sent_total INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN read_total INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN spent_total INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN lost_total INTEGER NOT NULL DEFAULT 0;

UPDATE sessions SET
    calls_total = coalesce((SELECT sum(d.calls) FROM session_days AS d WHERE d.session_id = sessions.id), 0),
    sent_total = coalesce((SELECT sum(d.input + d.cache_read + d.cache_write_5m + d.cache_write_1h + d.cache_write_other) FROM session_days AS d WHERE d.session_id = sessions.id), 0),
    read_total = coalesce((SELECT sum(d.cache_read) FROM session_days AS d WHERE d.session_id = sessions.id), 0),
    spent_total = coalesce((SELECT sum(d.spent) FROM session_days AS d WHERE d.session_id = sessions.id), 0),
    lost_total = coalesce((SELECT sum(d.lost) FROM session_days AS d WHERE d.session_id = sessions.id), 0);

CREATE INDEX sessions_by_start ON sessions (started_at, id);
