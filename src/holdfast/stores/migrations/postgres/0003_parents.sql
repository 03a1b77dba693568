-- The session that has started this one, if one did.
ALTER TABLE holdfast.sessions ADD COLUMN parent_session_id text COLLATE "C";
