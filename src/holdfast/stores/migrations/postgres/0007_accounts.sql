-- On whose account a call goes; the empty text is nobody's.
ALTER TABLE holdfast.calls
    ADD COLUMN stable_written bigint NOT NULL DEFAULT 0,
    ADD COLUMN key_id text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN user_id text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN team_id text COLLATE "C" NOT NULL DEFAULT '';
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

-- Whom a key was made for.
ALTER TABLE holdfast.api_keys
    ADD COLUMN user_id text,
    ADD COLUMN team_id text;

-- What is told of sessions beside their calls: few rows among many.
CREATE INDEX events_started ON holdfast.events (session_id) WHERE type = 'session.started';
CREATE INDEX events_turns_ended ON holdfast.events (session_id) WHERE type IN ('turn.completed', 'turn.cancelled');
CREATE INDEX events_skills ON holdfast.events (at) WHERE type = 'skill.loaded';
