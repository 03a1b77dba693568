-- The head of a session's chain: `last_event_id` is valid while `head_events` equals `event_count`. An append finds the
-- head that it continues in `previous_event_id`.
ALTER TABLE sessions ADD COLUMN last_event_id TEXT;
ALTER TABLE sessions ADD COLUMN head_events INTEGER NOT NULL DEFAULT -1;
ALTER TABLE sessions ADD COLUMN previous_event_id TEXT;

-- What a request is matched to a conversation by: digests of its newest blocks, of its reply, of ids that clients send.
CREATE TABLE conversation_keys (
    key TEXT NOT NULL,
    at REAL NOT NULL,
    session_id TEXT NOT NULL,
    PRIMARY KEY (key, at, session_id)
) WITHOUT ROWID;

CREATE INDEX conversation_keys_by_session ON conversation_keys (session_id);

-- Work that one process does at a time. Times are in seconds since the epoch.
CREATE TABLE leases (
    name TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    until REAL NOT NULL,
    value TEXT NOT NULL
) WITHOUT ROWID;
