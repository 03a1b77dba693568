-- On whose account a call goes; the empty text is nobody's.
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

-- How long calls took together, and what they wrote for tools and stable system prompt.
ALTER TABLE holdfast.days
    ADD COLUMN latency_ms bigint NOT NULL DEFAULT 0,
    ADD COLUMN stable_written bigint NOT NULL DEFAULT 0;
ALTER TABLE holdfast.session_days
    ADD COLUMN latency_ms bigint NOT NULL DEFAULT 0,
    ADD COLUMN stable_written bigint NOT NULL DEFAULT 0;

-- What went on some account, by day; what went on nobody's is not in here.
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

-- Whom a key was made for.
ALTER TABLE holdfast.api_keys
    ADD COLUMN user_id text,
    ADD COLUMN team_id text;

-- What is told of sessions beside their calls: few rows among many.
CREATE INDEX events_started ON holdfast.events (session_id) WHERE type = 'session.started';
CREATE INDEX events_turns_ended ON holdfast.events (session_id) WHERE type IN ('turn.completed', 'turn.cancelled');
CREATE INDEX events_skills ON holdfast.events (at) WHERE type = 'skill.loaded';
