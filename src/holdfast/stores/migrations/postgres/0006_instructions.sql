-- Times are milliseconds since the epoch.
CREATE TABLE holdfast.instruction_agents (
    id text COLLATE "C" PRIMARY KEY,
    deployment text NOT NULL,
    created_at bigint NOT NULL,
    role text NOT NULL,
    shortname text COLLATE "C" UNIQUE,
    supervisors text NOT NULL,
    heartbeat_contract text,
    always_rules text NOT NULL,
    sensitive bigint NOT NULL,
    revision bigint NOT NULL
);

CREATE TABLE holdfast.instruction_units (
    uri text COLLATE "C" PRIMARY KEY,
    agent_id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    version text COLLATE "C" NOT NULL,
    content text NOT NULL,
    content_sha256 text NOT NULL,
    token_count bigint NOT NULL,
    created_at bigint NOT NULL,
    authored_by text NOT NULL,
    authored_at bigint NOT NULL,
    source_trust double precision NOT NULL,
    status text NOT NULL,
    valid_until bigint,
    derived_from text,
    signature text,
    signed_by text
);

CREATE INDEX instruction_units_by_name ON holdfast.instruction_units (agent_id, name, valid_until);

CREATE TABLE holdfast.instruction_manifests (
    id text COLLATE "C" PRIMARY KEY,
    agent_id text COLLATE "C" NOT NULL,
    version text COLLATE "C" NOT NULL,
    fact_uri text NOT NULL,
    token_count bigint NOT NULL,
    body text NOT NULL,
    created_at bigint NOT NULL,
    migration_mode text NOT NULL,
    provenance text NOT NULL,
    superseded_at bigint,
    UNIQUE (agent_id, version)
);

-- One manifest is in force at a time: of two published concurrently only the first succeeds.
CREATE UNIQUE INDEX instruction_manifests_current ON holdfast.instruction_manifests (agent_id) WHERE superseded_at IS NULL;

CREATE TABLE holdfast.instruction_audit (
    id text COLLATE "C" PRIMARY KEY,
    agent_id text COLLATE "C" NOT NULL,
    heartbeat_id text NOT NULL,
    session_start bigint NOT NULL,
    intent text NOT NULL,
    loaded_chunks text NOT NULL,
    used_chunks text NOT NULL DEFAULT '[]',
    missed_chunks text NOT NULL DEFAULT '[]',
    audit_token text COLLATE "C" NOT NULL UNIQUE,
    audit_closed bigint,
    created_at bigint NOT NULL,
    event_type text NOT NULL,
    detail text NOT NULL
);

CREATE INDEX instruction_audit_by_agent ON holdfast.instruction_audit (agent_id, created_at);

CREATE INDEX instruction_audit_by_heartbeat ON holdfast.instruction_audit (agent_id, heartbeat_id);

-- A record is written once and closed once.
CREATE FUNCTION holdfast.refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'an audit record is closed once'; END $$;

CREATE TRIGGER instruction_audit_closed_once BEFORE UPDATE ON holdfast.instruction_audit FOR EACH ROW
WHEN (old.audit_closed IS NOT NULL OR new.audit_closed IS NULL OR new.loaded_chunks <> old.loaded_chunks)
EXECUTE FUNCTION holdfast.refuse_audit_change();

CREATE TABLE holdfast.boot_stubs (
    agent_id text COLLATE "C" NOT NULL,
    adapter_profile text COLLATE "C" NOT NULL DEFAULT 'generic',
    stub_version bigint NOT NULL DEFAULT 1,
    body text NOT NULL,
    token_count bigint NOT NULL,
    body_token_count bigint NOT NULL,
    generated_at bigint NOT NULL,
    manifest_version text NOT NULL,
    cache_key text NOT NULL,
    PRIMARY KEY (agent_id, adapter_profile)
);

CREATE TABLE holdfast.instruction_approvals (
    id text COLLATE "C" PRIMARY KEY,
    agent_id text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    unit text,
    version text COLLATE "C",
    authored_by text NOT NULL,
    authored_at bigint NOT NULL,
    reason text NOT NULL,
    signature text
);

CREATE INDEX instruction_approvals_by_agent ON holdfast.instruction_approvals (agent_id, id);

-- The results per unit are stored in their run, which is read as a whole.
CREATE TABLE holdfast.instruction_coverage (
    id text COLLATE "C" PRIMARY KEY,
    agent_id text COLLATE "C" NOT NULL,
    manifest_version text NOT NULL,
    model_id text NOT NULL,
    kind text NOT NULL,
    started_at bigint NOT NULL,
    finished_at bigint NOT NULL,
    skipped bigint NOT NULL,
    stale bigint NOT NULL,
    recert_due bigint,
    units text NOT NULL
);

CREATE INDEX instruction_coverage_by_agent ON holdfast.instruction_coverage (agent_id, manifest_version, finished_at);

CREATE TABLE holdfast.instruction_probes (
    probe_id text COLLATE "C" NOT NULL,
    agent_id text COLLATE "C" NOT NULL,
    intent text NOT NULL,
    required_units text NOT NULL,
    k bigint NOT NULL,
    PRIMARY KEY (agent_id, probe_id)
);

CREATE TABLE holdfast.instruction_signers (
    entity text COLLATE "C" NOT NULL,
    public_key text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    PRIMARY KEY (entity, public_key)
);

CREATE TABLE holdfast.instruction_wakes (
    jti text COLLATE "C" PRIMARY KEY,
    expires_at bigint NOT NULL
);
