-- How often a session was told to take what its head would say now.
ALTER TABLE holdfast.cache_controls ADD COLUMN adoptions bigint NOT NULL DEFAULT 0;
