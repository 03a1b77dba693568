-- The session that has started this one, if one did.
ALTER TABLE sessions ADD COLUMN parent_session_id TEXT;
