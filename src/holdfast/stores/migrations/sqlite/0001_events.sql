-- "HOLD" in ASCII: distinguishes our files from databases of other programs.
PRAGMA application_id = 1213156420;

CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    name TEXT,
    model TEXT NOT NULL,
    started_at REAL NOT NULL,
    last_event_at REAL NOT NULL,
    event_count INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX sessions_by_activity ON sessions (last_event_at, id);

-- AUTOINCREMENT: a sequence number is never reused, not even after its session was deleted.
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    at REAL NOT NULL,
    session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    turn_id TEXT,
    parent_event_id TEXT,
    type TEXT NOT NULL,
    actor TEXT NOT NULL,
    sensitivity TEXT NOT NULL,
    version INTEGER NOT NULL,
    payload TEXT NOT NULL
);

-- Every index ends with the row's seq, so this one also returns a session's events in order.
CREATE INDEX events_by_session ON events (session_id);

-- A session is one chain: of two programs that continue after the same event only the first succeeds.
CREATE UNIQUE INDEX events_continue_once ON events (session_id, parent_event_id);
