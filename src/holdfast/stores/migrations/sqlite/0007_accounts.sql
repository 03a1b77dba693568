-- The account that a call is charged to; empty if there is none.
ALTER TABLE calls ADD COLUMN stable_written INTEGER NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN key_id TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN user_id TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN team_id TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN source TEXT NOT NULL DEFAULT 'provider';
ALTER TABLE charges ADD COLUMN key_id TEXT NOT NULL DEFAULT '';
ALTER TABLE charges ADD COLUMN user_id TEXT NOT NULL DEFAULT '';
ALTER TABLE charges ADD COLUMN team_id TEXT NOT NULL DEFAULT '';

-- Total latency of the calls, and tokens they wrote for tools and the stable system prompt.
ALTER TABLE days ADD COLUMN latency_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE days ADD COLUMN stable_written INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session_days ADD COLUMN latency_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session_days ADD COLUMN stable_written INTEGER NOT NULL DEFAULT 0;

-- Sums by account and day; calls without an account are not included.
CREATE TABLE account_days (
    day TEXT NOT NULL,
    key_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    team_id TEXT NOT NULL,
    simulated INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    hits INTEGER NOT NULL,
    input INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write_5m INTEGER NOT NULL,
    cache_write_1h INTEGER NOT NULL,
    cache_write_other INTEGER NOT NULL,
    output INTEGER NOT NULL,
    spent INTEGER NOT NULL,
    uncached INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    latency_ms INTEGER NOT NULL,
    stable_written INTEGER NOT NULL,
    PRIMARY KEY (day, key_id, user_id, team_id, simulated)
) WITHOUT ROWID;

-- The user and team that a key was created for.
ALTER TABLE api_keys ADD COLUMN user_id TEXT;
ALTER TABLE api_keys ADD COLUMN team_id TEXT;

-- Sums over a time span from the index alone, without reading the wide rows.
DROP INDEX calls_by_time;
CREATE INDEX calls_by_time ON calls (
    at, simulated, day, provider, model, number, kind, component, lost, latency_ms, input, cache_read, cache_write_5m,
    cache_write_1h, cache_write_other, output, spent, uncached, stable_written, key_id, user_id, team_id
);

-- For session statistics other than calls: few rows among many.
CREATE INDEX events_started ON events (session_id) WHERE type = 'session.started';
CREATE INDEX events_turns_ended ON events (session_id) WHERE type IN ('turn.completed', 'turn.cancelled');
CREATE INDEX events_skills ON events (at) WHERE type = 'skill.loaded';
