-- For the preloads that a session used: few rows among many.
CREATE INDEX events_skills_used ON holdfast.events (session_id) WHERE type = 'skill.used';
