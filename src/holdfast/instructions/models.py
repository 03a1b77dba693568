"""Values of the instruction domain: agents, unit versions, manifests, approvals, audit records, coverage.

All times are milliseconds since the epoch.
"""

import datetime
from typing import Literal

import msgspec

from holdfast.instructions.uri import normalize_unit_uri

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

WAKE_INTENT_PREFIX = "preload:"


class Agent(msgspec.Struct, frozen=True):
    """`revision` increases with every change of what a recall or heartbeat can return to the agent."""

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

    @property
    def names(self) -> tuple[str, ...]:
        """All names that address the agent: its id, and its shortname if it has one."""
        return (self.id,) if self.shortname is None else (self.id, self.shortname)


class UnitVersion(msgspec.Struct, frozen=True):
    """Immutable except for `valid_until` and `status`. `signed_by` is the entity whose key made the signature."""

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


class LoadTriggers(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    intents: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    task_types: tuple[str, ...] = ()


NO_TRIGGERS = LoadTriggers()


class ManifestEntry(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    name: str
    description: str
    required_by_task_types: tuple[str, ...] = ()
    guarantee_load: bool = False
    force_position: Literal["prepend"] | None = None
    load_triggers: LoadTriggers = NO_TRIGGERS
    fact_uri: str | None = None
    path: str | None = None
    token_estimate: int | None = None

    def __post_init__(self) -> None:
        """Normalise, so that equal entries encode to the same bytes and therefore cost the same tokens."""
        if self.load_triggers == NO_TRIGGERS:
            # msgspec's omit_defaults compares by identity.
            msgspec.structs.force_setattr(self, "load_triggers", NO_TRIGGERS)
        if self.fact_uri is not None:
            msgspec.structs.force_setattr(self, "fact_uri", normalize_unit_uri(self.fact_uri))


class Provenance(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who published the manifest, with which approvals, and whether the coverage gate was skipped.

    `began_at` is when the deployment that published it started to write texts.
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
    body: tuple[ManifestEntry, ...]
    created_at: int
    migration_mode: MigrationMode
    provenance: Provenance
    superseded_at: int | None = None


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """`version` is the unit's version, or for `skip_gate` the manifest's."""

    id: str
    agent_id: str
    kind: ApprovalKind
    unit: str | None = None
    version: str | None = None
    authored_by: str
    authored_at: int
    reason: str = ""
    signature: str | None = None


class LoadedUnit(msgspec.Struct, frozen=True):
    """One unit as it was returned to the agent."""

    name: str
    version: str | None
    source: ChunkSource
    rank: int
    score: float
    tokens: int


class UsageEvidence(msgspec.Struct, frozen=True):
    """Positions only, no content: the step after the recall, from 1, and the line of the unit if there is one."""

    kind: EvidenceKind
    step: int
    line: int | None = None


class DetectedUnit(msgspec.Struct, frozen=True):
    """A unit that a trace shows as used or referred to."""

    name: str
    evidence: tuple[UsageEvidence, ...]


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`detail` depends on the event type: principal, snapshot, parameters, warnings.

    `used_chunks` and `missed_chunks` are the agent's own report; `detected` is what its trace shows, None if no trace
    was analysed.
    """

    id: str
    agent_id: str
    heartbeat_id: str
    session_start: int
    intent: str
    loaded_chunks: tuple[LoadedUnit, ...]
    used_chunks: tuple[str, ...] = ()
    missed_chunks: tuple[str, ...] = ()
    audit_token: str
    audit_closed: int | None = None
    created_at: int
    event_type: EventType = "recall"
    detail: dict[str, object] = {}
    detected: tuple[DetectedUnit, ...] | None = None
    detected_at: int | None = None

    @property
    def wake_reason(self) -> str | None:
        """Only a preload record, which a heartbeat starts with, has one."""
        return self.intent.removeprefix(WAKE_INTENT_PREFIX) if self.event_type == "preload" else None

    @property
    def detected_used(self) -> tuple[str, ...]:
        return self._detected(loaded=True)

    @property
    def detected_missed(self) -> tuple[str, ...]:
        """Units that the trace refers to and that were not loaded."""
        return self._detected(loaded=False)

    def _detected(self, *, loaded: bool) -> tuple[str, ...]:
        names = {chunk.name for chunk in self.loaded_chunks}
        return tuple(detection.name for detection in self.detected or () if (detection.name in names) is loaded)


class BootStub(msgspec.Struct, frozen=True, kw_only=True):
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
    """A query that did not find its unit, and the unit that ranked there instead."""

    query: str
    found_instead: str | None


class UnitCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """`scaled_pct` is the share at a k scaled to the manifest's size; `chance` is the share of a random ranking.

    `obstacle` says why a recall can never return the unit, whatever it is asked.
    """

    unit: str
    coverage_pct: float | None
    passed: bool
    scaled_pct: float | None = None
    chance: float = 0.0
    hit_at_10: float | None = None
    probe_count: int = 0
    failures: tuple[FailedProbe, ...] = ()
    status: Literal["evaluated", "no_probes"] = "evaluated"
    obstacle: str | None = None


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
    """An intent and the units that it must find, curated by an admin."""

    probe_id: str
    agent_id: str
    intent: str
    required_units: tuple[str, ...]
    k: int = 3


class Signer(msgspec.Struct, frozen=True):
    entity: str
    public_key: str
    created_at: int


def format_time(at: int) -> str:
    """ISO 8601 in UTC; milliseconds only if they are not zero."""
    moment = datetime.datetime.fromtimestamp(at / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds" if at % 1000 else "seconds").replace("+00:00", "Z")


def format_optional_time(at: int | None) -> str | None:
    return None if at is None else format_time(at)
