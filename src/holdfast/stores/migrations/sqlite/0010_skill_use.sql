-- For the preloads that a session used: few rows among many.
CREATE INDEX events_skills_used ON events (session_id) WHERE type = 'skill.used';
