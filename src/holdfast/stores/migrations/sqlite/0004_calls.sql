-- How many of a session's events are in the tables below. If not all of them, as in a log from before these tables,
-- the session is processed from its first event on before any sum is returned.
ALTER TABLE sessions ADD COLUMN entered_events INTEGER NOT NULL DEFAULT 0;

CREATE INDEX sessions_to_enter ON sessions (id) WHERE entered_events <> event_count;

-- The version of the rules by which the tables were filled.
CREATE TABLE ledger (version INTEGER NOT NULL);
INSERT INTO ledger VALUES (0);

-- One row per charged call. Money is in picodollars, days are in UTC.
CREATE TABLE calls (
    session_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    event_id TEXT NOT NULL,
    turn_id TEXT,
    at REAL NOT NULL,
    day TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    simulated INTEGER NOT NULL DEFAULT 0,
    input INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write_5m INTEGER NOT NULL,
    cache_write_1h INTEGER NOT NULL,
    cache_write_other INTEGER NOT NULL,
    output INTEGER NOT NULL,
    spent INTEGER NOT NULL,
    uncached INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    price_version TEXT NOT NULL,
    latency_ms INTEGER NOT NULL,
    latency_bits INTEGER NOT NULL,
    retries INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    stop_reason TEXT NOT NULL,
    request_id TEXT NOT NULL,
    chain TEXT NOT NULL,
    blocks_shared INTEGER NOT NULL,
    blocks_before INTEGER NOT NULL,
    moved_layer TEXT,
    moved_byte INTEGER,
    plan TEXT NOT NULL,
    kind TEXT,
    component TEXT,
    lost_tokens INTEGER NOT NULL,
    verdict TEXT,
    PRIMARY KEY (session_id, event_id)
) WITHOUT ROWID;

CREATE INDEX calls_by_time ON calls (at);

-- Finds the call of a session that lost most without reading the rows.
CREATE INDEX calls_that_lost ON calls (session_id, lost, number, kind, at, simulated) WHERE lost > 0;

-- Charges that are not calls: keep-alive pings and explicit caches.
CREATE TABLE charges (
    session_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    at REAL NOT NULL,
    day TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    simulated INTEGER NOT NULL DEFAULT 0,
    type TEXT NOT NULL,
    spent INTEGER NOT NULL,
    PRIMARY KEY (session_id, event_id)
) WITHOUT ROWID;

CREATE INDEX charges_by_time ON charges (at);

-- Calls that failed at no cost.
CREATE TABLE failures (
    session_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    at REAL NOT NULL,
    day TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    simulated INTEGER NOT NULL DEFAULT 0,
    outcome TEXT NOT NULL,
    latency_ms INTEGER NOT NULL,
    latency_bits INTEGER NOT NULL,
    retries INTEGER NOT NULL,
    PRIMARY KEY (session_id, event_id)
) WITHOUT ROWID;

CREATE INDEX failures_by_time ON failures (at);

CREATE TABLE days (
    day TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    simulated INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    hits INTEGER NOT NULL,
    input INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write_5m INTEGER NOT NULL,
    cache_write_1h INTEGER NOT NULL,
    cache_write_other INTEGER NOT NULL,
    output INTEGER NOT NULL,
    spent INTEGER NOT NULL,
    uncached INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    PRIMARY KEY (day, provider, model, simulated)
) WITHOUT ROWID;

CREATE TABLE session_days (
    session_id TEXT NOT NULL,
    day TEXT NOT NULL,
    simulated INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    hits INTEGER NOT NULL,
    input INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write_5m INTEGER NOT NULL,
    cache_write_1h INTEGER NOT NULL,
    cache_write_other INTEGER NOT NULL,
    output INTEGER NOT NULL,
    spent INTEGER NOT NULL,
    uncached INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    PRIMARY KEY (session_id, day, simulated)
) WITHOUT ROWID;

CREATE INDEX session_days_by_day ON session_days (day);

-- How often each verdict was given, and what was lost by it; an empty component means none.
CREATE TABLE verdict_days (
    day TEXT NOT NULL,
    kind TEXT NOT NULL,
    component TEXT NOT NULL,
    simulated INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    losses INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    PRIMARY KEY (day, kind, component, simulated)
) WITHOUT ROWID;

-- How calls ended, including those at no cost; a latency of n bits is under 2^n milliseconds.
CREATE TABLE outcome_days (
    day TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    outcome TEXT NOT NULL,
    latency_bits INTEGER NOT NULL,
    simulated INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    latency_ms INTEGER NOT NULL,
    retries INTEGER NOT NULL,
    PRIMARY KEY (day, provider, model, outcome, latency_bits, simulated)
) WITHOUT ROWID;
