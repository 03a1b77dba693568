-- What planners of several processes share, as JSON: conversations by the digest of their last request, orders of tools.
CREATE TABLE shared_values (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    at REAL NOT NULL
) WITHOUT ROWID;

CREATE INDEX shared_values_by_time ON shared_values (at);
