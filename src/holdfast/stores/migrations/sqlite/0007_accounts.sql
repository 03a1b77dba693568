-- On whose account a call goes; the empty text is nobody's.
ALTER TABLE calls ADD COLUMN stable_written INTEGER NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN key_id TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN user_id TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN team_id TEXT NOT NULL DEFAULT '';
ALTER TABLE charges ADD COLUMN key_id TEXT NOT NULL DEFAULT '';
ALTER TABLE charges ADD COLUMN user_id TEXT NOT NULL DEFAULT '';
ALTER TABLE charges ADD COLUMN team_id TEXT NOT NULL DEFAULT '';

-- How long calls took together, and what they wrote for tools and stable system prompt.
ALTER TABLE days ADD COLUMN latency_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE days ADD COLUMN stable_written INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session_days ADD COLUMN latency_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session_days ADD COLUMN stable_written INTEGER NOT NULL DEFAULT 0;

-- Whom a key was made for.
ALTER TABLE api_keys ADD COLUMN user_id TEXT;
ALTER TABLE api_keys ADD COLUMN team_id TEXT;

-- What is told of sessions beside their calls: few rows among many.
CREATE INDEX events_started ON events (session_id) WHERE type = 'session.started';
CREATE INDEX events_turns_ended ON events (session_id) WHERE type IN ('turn.completed', 'turn.cancelled');
CREATE INDEX events_skills ON events (at) WHERE type = 'skill.loaded';
