-- API keys of the service; of the secret part only the digest is stored. Rows are never deleted.
CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    scope TEXT NOT NULL,
    created_at REAL NOT NULL,
    name TEXT,
    entity TEXT,
    expires_at REAL,
    revoked_at REAL
) WITHOUT ROWID;

CREATE TABLE settings (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- Cache controls of one session; read before each of its calls.
CREATE TABLE cache_controls (
    session_id TEXT PRIMARY KEY,
    caching_enabled INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    invalidated_at REAL
) WITHOUT ROWID;
