-- How often a session was asked to refresh its stable prefix.
ALTER TABLE cache_controls ADD COLUMN adoptions INTEGER NOT NULL DEFAULT 0;
