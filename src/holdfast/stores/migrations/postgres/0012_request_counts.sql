-- How many requests each gateway key has made in a minute (since 1970), for keys with a request rate.
CREATE TABLE holdfast.request_counts (
    key_id text COLLATE "C" NOT NULL,
    minute bigint NOT NULL,
    requests bigint NOT NULL,
    PRIMARY KEY (key_id, minute)
);
