-- How often a session was asked to refresh its stable prefix.
ALTER TABLE holdfast.cache_controls ADD COLUMN adoptions bigint NOT NULL DEFAULT 0;
