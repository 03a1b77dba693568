-- API keys of the service; of the secret part only the digest is stored. Rows are never deleted.
CREATE TABLE holdfast.api_keys (
    id text COLLATE "C" PRIMARY KEY,
    digest text NOT NULL,
    scope text NOT NULL,
    created_at double precision NOT NULL,
    name text,
    entity text,
    expires_at double precision,
    revoked_at double precision
);

CREATE TABLE holdfast.settings (
    name text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);

-- Cache controls of one session; read before each of its calls.
CREATE TABLE holdfast.cache_controls (
    session_id text COLLATE "C" PRIMARY KEY,
    caching_enabled integer NOT NULL,
    generation bigint NOT NULL,
    invalidated_at double precision
);
