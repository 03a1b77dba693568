-- On whose account a call goes; the empty text is nobody's.
ALTER TABLE calls ADD COLUMN stable_written INTEGER NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN key_id TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN user_id TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN team_id TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN source TEXT NOT NULL DEFAULT 'provider';
ALTER TABLE charges ADD COLUMN key_id TEXT NOT NULL DEFAULT '';
ALTER TABLE charges ADD COLUMN user_id TEXT NOT NULL DEFAULT '';
ALTER TABLE charges ADD COLUMN team_id TEXT NOT NULL DEFAULT '';

-- How long calls took together, and what they wrote for tools and stable system prompt.
ALTER TABLE days ADD COLUMN latency_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE days ADD COLUMN stable_written INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session_days ADD COLUMN latency_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session_days ADD COLUMN stable_written INTEGER NOT NULL DEFAULT 0;

-- What went on some account, by day; what went on nobody's is not in here.
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

-- Whom a key was made for.
ALTER TABLE api_keys ADD COLUMN user_id TEXT;
ALTER TABLE api_keys ADD COLUMN team_id TEXT;

-- Calls of a time are added up without a look at their rows, which are wide.
DROP INDEX calls_by_time;
CREATE INDEX calls_by_time ON calls (
    at, simulated, day, provider, model, number, kind, component, lost, latency_ms, input, cache_read, cache_write_5m,
    cache_write_1h, cache_write_other, output, spent, uncached, stable_written, key_id, user_id, team_id
);

-- What is told of sessions beside their calls: few rows among many.
CREATE INDEX events_started ON events (session_id) WHERE type = 'session.started';
CREATE INDEX events_turns_ended ON events (session_id) WHERE type IN ('turn.completed', 'turn.cancelled');
CREATE INDEX events_skills ON events (at) WHERE type = 'skill.loaded';
