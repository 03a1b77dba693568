-- The head of a session's chain: `last_event_id` is valid while `head_events` equals `event_count`. An append finds the
-- head that it continues in `previous_event_id`. Updated under the lock of the row, by compare-and-set.
ALTER TABLE holdfast.sessions
    ADD COLUMN last_event_id text COLLATE "C",
    ADD COLUMN head_events bigint NOT NULL DEFAULT -1,
    ADD COLUMN previous_event_id text COLLATE "C";

-- What a request is matched to a conversation by: digests of its newest blocks, of its reply, of ids that clients send.
CREATE TABLE holdfast.conversation_keys (
    key text COLLATE "C" NOT NULL,
    at double precision NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (key, at, session_id)
);

CREATE INDEX conversation_keys_by_session ON holdfast.conversation_keys (session_id);

-- Work that one process does at a time. Times are the server's, in seconds since the epoch.
CREATE TABLE holdfast.leases (
    name text COLLATE "C" PRIMARY KEY,
    owner text NOT NULL,
    until double precision NOT NULL,
    value text NOT NULL
);
