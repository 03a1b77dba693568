"""What there is: agents, units in versions, manifests, approvals, audit records, coverage. Times are milliseconds."""

from typing import Literal

import msgspec

from holdfast.instructions.addresses import plain_uri

MigrationMode = Literal["file", "coexistence", "stigmem"]
UnitStatus = Literal["active", "pending", "quarantined"]
ApprovalKind = Literal["guarantee_load", "force_prepend", "task_types", "skip_gate"]
EventType = Literal["recall", "preload", "preload_error", "coverage_bypass", "recert", "shadow"]
ChunkSource = Literal["stigmem", "fallback_path", "task_type_preload"]
EvidenceKind = Literal["address", "name", "rule", "tool", "command", "phrase"]

WAKE_REASONS = (
    "issue_assigned",
    "issue_commented",
    "issue_blockers_resolved",
    "issue_children_completed",
    "issue_comment_mentioned",
    "routine_fired",
    "approval_resolved",
    "manual",
)


WAKE_INTENT = "preload:"


class Agent(msgspec.Struct, frozen=True):
    """`revision` rises with every change of what the agent can be told."""

    id: str
    deployment: str
    created_at: int
    role: str = ""
    shortname: str | None = None
    supervisors: tuple[str, ...] = ()
    heartbeat_contract: str | None = None
    always_rules: tuple[str, ...] = ()
    sensitive: bool = False
    revision: int = 0


class UnitVersion(msgspec.Struct, frozen=True):
    """Never changed but for its end and its status. `signed_by` is whose key the signature was made with."""

    uri: str
    agent_id: str
    name: str
    version: str
    content: str
    content_sha256: str
    token_count: int
    created_at: int
    authored_by: str
    authored_at: int
    source_trust: float
    status: UnitStatus
    valid_until: int | None = None
    derived_from: str | None = None
    signature: str | None = None
    signed_by: str | None = None


class Triggers(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    intents: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    task_types: tuple[str, ...] = ()


NO_TRIGGERS = Triggers()


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One unit as a manifest lists it."""

    name: str
    description: str
    required_by_task_types: tuple[str, ...] = ()
    guarantee_load: bool = False
    force_position: Literal["prepend"] | None = None
    load_triggers: Triggers = NO_TRIGGERS
    fact_uri: str | None = None
    path: str | None = None
    token_estimate: int | None = None

    def __post_init__(self) -> None:
        """What says the same is the same, and costs the same."""
        if self.load_triggers == NO_TRIGGERS:
            # A default is left out where it is this very one.
            msgspec.structs.force_setattr(self, "load_triggers", NO_TRIGGERS)
        if self.fact_uri is not None:
            msgspec.structs.force_setattr(self, "fact_uri", plain_uri(self.fact_uri))


class Provenance(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who published, by which approvals, and what the gate would have said where it was skipped.

    `began_at` is when the first of the texts that were published along with it could have been written.
    """

    published_by: str
    approvals: tuple[str, ...] = ()
    skipped_gate: bool = False
    cosigned_by: tuple[str, ...] = ()
    began_at: int | None = None


class Manifest(msgspec.Struct, frozen=True):
    id: str
    agent_id: str
    version: str
    fact_uri: str
    token_count: int
    body: tuple[Entry, ...]
    created_at: int
    migration_mode: MigrationMode
    provenance: Provenance
    superseded_at: int | None = None


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """`version` is that of the unit, or for `skip_gate` that of the manifest."""

    id: str
    agent_id: str
    kind: ApprovalKind
    unit: str | None = None
    version: str | None = None
    authored_by: str
    authored_at: int
    reason: str = ""
    signature: str | None = None


class Loaded(msgspec.Struct, frozen=True):
    """One unit as it was handed out."""

    name: str
    version: str | None
    source: ChunkSource
    rank: int
    score: float
    tokens: int


class Evidence(msgspec.Struct, frozen=True):
    """Where it stands, and not what: the step after the recall, from 1, and the line of the unit where that has one."""

    kind: EvidenceKind
    step: int
    line: int | None = None


class Detected(msgspec.Struct, frozen=True):
    """A unit that a trace shows in use, or referred to."""

    name: str
    evidence: tuple[Evidence, ...]


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`detail` holds what the kind of event needs: who acted, the snapshot, parameters, warnings.

    `used_chunks` and `missed_chunks` are what an agent says of itself, `detected` is what its trace shows: None where
    nobody has looked at one.
    """

    id: str
    agent_id: str
    heartbeat_id: str
    session_start: int
    intent: str
    loaded_chunks: tuple[Loaded, ...]
    used_chunks: tuple[str, ...] = ()
    missed_chunks: tuple[str, ...] = ()
    audit_token: str
    audit_closed: int | None = None
    created_at: int
    event_type: EventType = "recall"
    detail: dict[str, object] = {}
    detected: tuple[Detected, ...] | None = None
    detected_at: int | None = None

    @property
    def wake_reason(self) -> str | None:
        """Of the record of how a heartbeat began."""
        return self.intent.removeprefix(WAKE_INTENT) if self.event_type == "preload" else None

    @property
    def detected_used(self) -> tuple[str, ...]:
        return self._detected(loaded=True)

    @property
    def detected_missed(self) -> tuple[str, ...]:
        """What was referred to and not loaded."""
        return self._detected(loaded=False)

    def _detected(self, *, loaded: bool) -> tuple[str, ...]:
        names = {chunk.name for chunk in self.loaded_chunks}
        return tuple(one.name for one in self.detected or () if (one.name in names) is loaded)


class Stub(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    adapter_profile: str
    stub_version: int
    body: str
    token_count: int
    body_token_count: int
    generated_at: int
    manifest_version: str
    cache_key: str


class FailedProbe(msgspec.Struct, frozen=True):
    """A query that did not find its unit, and the unit that stood in its place."""

    query: str
    taken_by: str | None


class UnitCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """`scaled_pct` is the share at a k that fits a small manifest; `chance` that of picking by lot."""

    unit: str
    coverage_pct: float | None
    passed: bool
    scaled_pct: float | None = None
    chance: float = 0.0
    hit_at_10: float | None = None
    probe_count: int = 0
    failures: tuple[FailedProbe, ...] = ()
    status: Literal["evaluated", "no_probes"] = "evaluated"


class CoverageRun(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    agent_id: str
    manifest_version: str
    model_id: str
    kind: Literal["gate", "daily", "recert"]
    started_at: int
    finished_at: int
    skipped: bool = False
    stale: bool = False
    recert_due: int | None = None
    units: tuple[UnitCoverage, ...] = ()


class Probe(msgspec.Struct, frozen=True):
    """What an admin says must be found."""

    probe_id: str
    agent_id: str
    intent: str
    required_units: tuple[str, ...]
    k: int = 3


class Signer(msgspec.Struct, frozen=True):
    entity: str
    public_key: str
    created_at: int
