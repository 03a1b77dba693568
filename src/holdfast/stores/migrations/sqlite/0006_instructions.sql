-- Times are milliseconds since the epoch.
CREATE TABLE instruction_agents (
    id TEXT PRIMARY KEY,
    deployment TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    role TEXT NOT NULL,
    shortname TEXT UNIQUE,
    supervisors TEXT NOT NULL,
    heartbeat_contract TEXT,
    always_rules TEXT NOT NULL,
    sensitive INTEGER NOT NULL,
    revision INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE instruction_units (
    uri TEXT PRIMARY KEY,
    agent_id TEXT NOT NULL,
    name TEXT NOT NULL,
    version TEXT NOT NULL,
    content TEXT NOT NULL,
    content_sha256 TEXT NOT NULL,
    token_count INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    authored_by TEXT NOT NULL,
    authored_at INTEGER NOT NULL,
    source_trust REAL NOT NULL,
    status TEXT NOT NULL,
    valid_until INTEGER,
    derived_from TEXT,
    signature TEXT,
    signed_by TEXT
);

CREATE INDEX instruction_units_by_name ON instruction_units (agent_id, name, valid_until);

CREATE TABLE instruction_manifests (
    id TEXT PRIMARY KEY,
    agent_id TEXT NOT NULL,
    version TEXT NOT NULL,
    fact_uri TEXT NOT NULL,
    token_count INTEGER NOT NULL,
    body TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    migration_mode TEXT NOT NULL,
    provenance TEXT NOT NULL,
    superseded_at INTEGER,
    UNIQUE (agent_id, version)
);

-- One manifest is in force at a time: of two published concurrently only the first succeeds.
CREATE UNIQUE INDEX instruction_manifests_current ON instruction_manifests (agent_id) WHERE superseded_at IS NULL;

CREATE TABLE instruction_audit (
    id TEXT PRIMARY KEY,
    agent_id TEXT NOT NULL,
    heartbeat_id TEXT NOT NULL,
    session_start INTEGER NOT NULL,
    intent TEXT NOT NULL,
    loaded_chunks TEXT NOT NULL,
    used_chunks TEXT NOT NULL DEFAULT '[]',
    missed_chunks TEXT NOT NULL DEFAULT '[]',
    audit_token TEXT NOT NULL UNIQUE,
    audit_closed INTEGER,
    created_at INTEGER NOT NULL,
    event_type TEXT NOT NULL,
    detail TEXT NOT NULL
);

CREATE INDEX instruction_audit_by_agent ON instruction_audit (agent_id, created_at);

CREATE INDEX instruction_audit_by_heartbeat ON instruction_audit (agent_id, heartbeat_id);

-- A record is written once and closed once.
CREATE TRIGGER instruction_audit_closed_once BEFORE UPDATE ON instruction_audit
WHEN old.audit_closed IS NOT NULL OR new.audit_closed IS NULL OR new.loaded_chunks <> old.loaded_chunks
BEGIN SELECT raise(ABORT, 'an audit record is closed once'); END;

CREATE TABLE boot_stubs (
    agent_id TEXT NOT NULL,
    adapter_profile TEXT NOT NULL DEFAULT 'generic',
    stub_version INTEGER NOT NULL DEFAULT 1,
    body TEXT NOT NULL,
    token_count INTEGER NOT NULL,
    body_token_count INTEGER NOT NULL,
    generated_at INTEGER NOT NULL,
    manifest_version TEXT NOT NULL,
    cache_key TEXT NOT NULL,
    PRIMARY KEY (agent_id, adapter_profile)
);

CREATE TABLE instruction_approvals (
    id TEXT PRIMARY KEY,
    agent_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    unit TEXT,
    version TEXT,
    authored_by TEXT NOT NULL,
    authored_at INTEGER NOT NULL,
    reason TEXT NOT NULL,
    signature TEXT
);

CREATE INDEX instruction_approvals_by_agent ON instruction_approvals (agent_id, id);

-- The results per unit are stored in their run, which is read as a whole.
CREATE TABLE instruction_coverage (
    id TEXT PRIMARY KEY,
    agent_id TEXT NOT NULL,
    manifest_version TEXT NOT NULL,
    model_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    skipped INTEGER NOT NULL,
    stale INTEGER NOT NULL,
    recert_due INTEGER,
    units TEXT NOT NULL
);

CREATE INDEX instruction_coverage_by_agent ON instruction_coverage (agent_id, manifest_version, finished_at);

CREATE TABLE instruction_probes (
    probe_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    intent TEXT NOT NULL,
    required_units TEXT NOT NULL,
    k INTEGER NOT NULL,
    PRIMARY KEY (agent_id, probe_id)
);

CREATE TABLE instruction_signers (
    entity TEXT NOT NULL,
    public_key TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (entity, public_key)
);

CREATE TABLE instruction_wakes (
    jti TEXT PRIMARY KEY,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;
