-- How often a session was told to take what its head would say now.
ALTER TABLE cache_controls ADD COLUMN adoptions INTEGER NOT NULL DEFAULT 0;
