-- The migrations applied here, and when. The highest number is the schema version.
CREATE TABLE holdfast.versions (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- Text is compared by its bytes, as in Python, not by the collation of a language.
CREATE TABLE holdfast.sessions (
    id text COLLATE "C" PRIMARY KEY,
    name text,
    model text NOT NULL,
    started_at double precision NOT NULL,
    last_event_at double precision NOT NULL,
    event_count bigint NOT NULL
);

CREATE INDEX sessions_by_activity ON holdfast.sessions (last_event_at, id);

-- The payload is text, not jsonb: reads must return the bytes that were written, \u0000 included.
CREATE TABLE holdfast.events (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    at double precision NOT NULL,
    session_id text COLLATE "C" NOT NULL REFERENCES holdfast.sessions (id),
    turn_id text,
    parent_event_id text COLLATE "C",
    type text NOT NULL,
    actor text NOT NULL,
    sensitivity text NOT NULL,
    version integer NOT NULL,
    payload text NOT NULL
);

CREATE INDEX events_by_session ON holdfast.events (session_id, seq);

-- A session is one chain: of two programs that continue after the same event only the first succeeds.
CREATE UNIQUE INDEX events_continue_once ON holdfast.events (session_id, parent_event_id);
