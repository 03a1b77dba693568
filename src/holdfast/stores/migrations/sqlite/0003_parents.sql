-- The session that started this one, if any.
ALTER TABLE sessions ADD COLUMN parent_session_id TEXT;
