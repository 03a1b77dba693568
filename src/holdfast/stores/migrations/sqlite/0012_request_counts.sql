-- How many requests each gateway key has made in a minute (since 1970), for keys with a request rate.
CREATE TABLE request_counts (
    key_id TEXT NOT NULL,
    minute INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    PRIMARY KEY (key_id, minute)
) WITHOUT ROWID;
