-- The account that a call is charged to; empty if there is none.
ALTER TABLE holdfast.calls
    ADD COLUMN stable_written bigint NOT NULL DEFAULT 0,
    ADD COLUMN key_id text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN user_id text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN team_id text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN source text COLLATE "C" NOT NULL DEFAULT 'provider';
ALTER TABLE holdfast.charges
    ADD COLUMN key_id text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN user_id text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN team_id text COLLATE "C" NOT NULL DEFAULT '';

-- Total latency of the calls, and tokens they wrote for tools and the stable system prompt.
ALTER TABLE holdfast.days
    ADD COLUMN latency_ms bigint NOT NULL DEFAULT 0,
    ADD COLUMN stable_written bigint NOT NULL DEFAULT 0;
ALTER TABLE holdfast.session_days
    ADD COLUMN latency_ms bigint NOT NULL DEFAULT 0,
    ADD COLUMN stable_written bigint NOT NULL DEFAULT 0;

-- Sums by account and day; calls without an account are not included.
CREATE TABLE holdfast.account_days (
    day text COLLATE "C" NOT NULL,
    key_id text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    team_id text COLLATE "C" NOT NULL,
    simulated bigint NOT NULL,
    entries bigint NOT NULL,
    calls bigint NOT NULL,
    hits bigint NOT NULL,
    input bigint NOT NULL,
    cache_read bigint NOT NULL,
    cache_write_5m bigint NOT NULL,
    cache_write_1h bigint NOT NULL,
    cache_write_other bigint NOT NULL,
    output bigint NOT NULL,
    spent bigint NOT NULL,
    uncached bigint NOT NULL,
    lost bigint NOT NULL,
    latency_ms bigint NOT NULL,
    stable_written bigint NOT NULL,
    PRIMARY KEY (day, key_id, user_id, team_id, simulated)
);

-- The user and team that a key was created for.
ALTER TABLE holdfast.api_keys
    ADD COLUMN user_id text,
    ADD COLUMN team_id text;

-- For session statistics other than calls: few rows among many.
CREATE INDEX events_started ON holdfast.events (session_id) WHERE type = 'session.started';
CREATE INDEX events_turns_ended ON holdfast.events (session_id) WHERE type IN ('turn.completed', 'turn.cancelled');
CREATE INDEX events_skills ON holdfast.events (at) WHERE type = 'skill.loaded';
