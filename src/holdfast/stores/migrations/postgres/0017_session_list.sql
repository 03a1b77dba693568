-- Programs of the version before this one run beside it, and join this table with others: no name of a column is theirs.
-- What the session list shows and filters by, from the first events; `opening` are the first words of the first request.
ALTER TABLE holdfast.sessions
    ADD COLUMN client text,
    ADD COLUMN opening text,
    ADD COLUMN caller_key_id text,
    ADD COLUMN caller_user_id text,
    ADD COLUMN caller_team_id text,
    ADD COLUMN is_simulated integer NOT NULL DEFAULT 0;

UPDATE holdfast.sessions SET is_simulated = 1 WHERE id IN (
    SELECT session_id FROM holdfast.events WHERE type = 'session.started' AND strpos(payload, '"simulated":true') > 0
);
UPDATE holdfast.sessions AS s SET
    caller_key_id = (SELECT c.key_id FROM holdfast.calls AS c WHERE c.session_id = s.id AND c.key_id <> '' LIMIT 1),
    caller_user_id = (SELECT c.user_id FROM holdfast.calls AS c WHERE c.session_id = s.id AND c.user_id <> '' LIMIT 1),
    caller_team_id = (SELECT c.team_id FROM holdfast.calls AS c WHERE c.session_id = s.id AND c.team_id <> '' LIMIT 1);

-- What the list is sorted by: the sums over the days of a session, kept with its row so that no order reads them all.
ALTER TABLE holdfast.sessions
    ADD COLUMN calls_total bigint NOT NULL DEFAULT 0,
    ADD COLUMN sent_total bigint NOT NULL DEFAULT 0,
    ADD COLUMN read_total bigint NOT NULL DEFAULT 0,
    ADD COLUMN spent_total bigint NOT NULL DEFAULT 0,
    ADD COLUMN lost_total bigint NOT NULL DEFAULT 0;

UPDATE holdfast.sessions SET calls_total = sums.calls, sent_total = sums.tokens_sent, read_total = sums.cache_read,
    spent_total = sums.spent, lost_total = sums.lost
FROM (
    SELECT session_id, sum(calls) AS calls,
        sum(input + cache_read + cache_write_5m + cache_write_1h + cache_write_other) AS tokens_sent,
        sum(cache_read) AS cache_read,
        sum(spent) AS spent,
        sum(lost) AS lost
    FROM holdfast.session_days GROUP BY session_id
) AS sums
WHERE sums.session_id = holdfast.sessions.id;

CREATE INDEX sessions_by_start ON holdfast.sessions (started_at, id);
