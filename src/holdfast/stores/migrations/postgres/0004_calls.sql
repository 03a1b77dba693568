-- How many of a session's events are in the tables below. If not all of them, as in a log from before these tables,
-- the session is processed from its first event on before any sum is returned.
ALTER TABLE holdfast.sessions ADD COLUMN entered_events bigint NOT NULL DEFAULT 0;

CREATE INDEX sessions_to_enter ON holdfast.sessions (id) WHERE entered_events <> event_count;

-- The version of the rules by which the tables were filled.
CREATE TABLE holdfast.ledger (version bigint NOT NULL);
INSERT INTO holdfast.ledger VALUES (0);

-- One row per charged call. Money is in picodollars, days are in UTC.
CREATE TABLE holdfast.calls (
    session_id text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    turn_id text,
    at double precision NOT NULL,
    day text COLLATE "C" NOT NULL,
    provider text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    simulated bigint NOT NULL DEFAULT 0,
    input bigint NOT NULL,
    cache_read bigint NOT NULL,
    cache_write_5m bigint NOT NULL,
    cache_write_1h bigint NOT NULL,
    cache_write_other bigint NOT NULL,
    output bigint NOT NULL,
    spent bigint NOT NULL,
    uncached bigint NOT NULL,
    lost bigint NOT NULL,
    price_version text NOT NULL,
    latency_ms bigint NOT NULL,
    latency_bits bigint NOT NULL,
    retries bigint NOT NULL,
    outcome text COLLATE "C" NOT NULL,
    stop_reason text NOT NULL,
    request_id text NOT NULL,
    chain text NOT NULL,
    blocks_shared bigint NOT NULL,
    blocks_before bigint NOT NULL,
    moved_layer text,
    moved_byte bigint,
    plan text NOT NULL,
    kind text COLLATE "C",
    component text COLLATE "C",
    lost_tokens bigint NOT NULL,
    verdict text,
    PRIMARY KEY (session_id, event_id)
);

CREATE INDEX calls_by_time ON holdfast.calls (at);

-- Finds the call of a session that lost most without reading the rows.
CREATE INDEX calls_that_lost ON holdfast.calls (session_id, lost, number, kind, at, simulated) WHERE lost > 0;

-- Charges that are not calls: keep-alive pings and explicit caches.
CREATE TABLE holdfast.charges (
    session_id text COLLATE "C" NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    at double precision NOT NULL,
    day text COLLATE "C" NOT NULL,
    provider text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    simulated bigint NOT NULL DEFAULT 0,
    type text NOT NULL,
    spent bigint NOT NULL,
    PRIMARY KEY (session_id, event_id)
);

CREATE INDEX charges_by_time ON holdfast.charges (at);

-- Calls that failed at no cost.
CREATE TABLE holdfast.failures (
    session_id text COLLATE "C" NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    at double precision NOT NULL,
    day text COLLATE "C" NOT NULL,
    provider text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    simulated bigint NOT NULL DEFAULT 0,
    outcome text COLLATE "C" NOT NULL,
    latency_ms bigint NOT NULL,
    latency_bits bigint NOT NULL,
    retries bigint NOT NULL,
    PRIMARY KEY (session_id, event_id)
);

CREATE INDEX failures_by_time ON holdfast.failures (at);

CREATE TABLE holdfast.days (
    day text COLLATE "C" NOT NULL,
    provider text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    simulated bigint NOT NULL,
    entries bigint NOT NULL,
    calls bigint NOT NULL,
    hits bigint NOT NULL,
    input bigint NOT NULL,
    cache_read bigint NOT NULL,
    cache_write_5m bigint NOT NULL,
    cache_write_1h bigint NOT NULL,
    cache_write_other bigint NOT NULL,
    output bigint NOT NULL,
    spent bigint NOT NULL,
    uncached bigint NOT NULL,
    lost bigint NOT NULL,
    PRIMARY KEY (day, provider, model, simulated)
);

CREATE TABLE holdfast.session_days (
    session_id text COLLATE "C" NOT NULL,
    day text COLLATE "C" NOT NULL,
    simulated bigint NOT NULL,
    entries bigint NOT NULL,
    calls bigint NOT NULL,
    hits bigint NOT NULL,
    input bigint NOT NULL,
    cache_read bigint NOT NULL,
    cache_write_5m bigint NOT NULL,
    cache_write_1h bigint NOT NULL,
    cache_write_other bigint NOT NULL,
    output bigint NOT NULL,
    spent bigint NOT NULL,
    uncached bigint NOT NULL,
    lost bigint NOT NULL,
    PRIMARY KEY (session_id, day, simulated)
);

CREATE INDEX session_days_by_day ON holdfast.session_days (day);

-- How often each verdict was given, and what was lost by it; an empty component means none.
CREATE TABLE holdfast.verdict_days (
    day text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    component text COLLATE "C" NOT NULL,
    simulated bigint NOT NULL,
    calls bigint NOT NULL,
    losses bigint NOT NULL,
    tokens bigint NOT NULL,
    lost bigint NOT NULL,
    PRIMARY KEY (day, kind, component, simulated)
);

-- How calls ended, including those at no cost; a latency of n bits is under 2^n milliseconds.
CREATE TABLE holdfast.outcome_days (
    day text COLLATE "C" NOT NULL,
    provider text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    outcome text COLLATE "C" NOT NULL,
    latency_bits bigint NOT NULL,
    simulated bigint NOT NULL,
    calls bigint NOT NULL,
    latency_ms bigint NOT NULL,
    retries bigint NOT NULL,
    PRIMARY KEY (day, provider, model, outcome, latency_bits, simulated)
);
