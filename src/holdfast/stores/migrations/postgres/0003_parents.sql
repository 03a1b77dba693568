-- The session that started this one, if any.
ALTER TABLE holdfast.sessions ADD COLUMN parent_session_id text COLLATE "C";
