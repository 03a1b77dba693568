"""Request and response types of the instruction routes."""

from typing import Annotated

import msgspec

from holdfast.instructions.manifest.validate import SubmittedApproval
from holdfast.instructions.models import DetectedUnit, ManifestEntry, MigrationMode
from holdfast.instructions.usage.shadow import ShadowReport
from holdfast.instructions.usage.trace import TRACE_STEPS_MAX, TraceStep

Count = Annotated[int, msgspec.Meta(ge=1)]
Name = Annotated[str, msgspec.Meta(max_length=400)]
Names = Annotated[tuple[Name, ...], msgspec.Meta(max_length=200)]


class AgentRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    agent_id: str


class BootStubRequest(AgentRequest, frozen=True):
    profile: str = "generic"


class AgentSettings(AgentRequest, frozen=True):
    """Fields that are not sent stay as they are."""

    role: Annotated[str, msgspec.Meta(max_length=200)] | msgspec.UnsetType = msgspec.UNSET
    shortname: Annotated[str, msgspec.Meta(max_length=200)] | msgspec.UnsetType | None = msgspec.UNSET
    supervisors: Names | msgspec.UnsetType = msgspec.UNSET
    heartbeat_contract: Annotated[str, msgspec.Meta(max_length=600)] | msgspec.UnsetType | None = msgspec.UNSET
    always_rules: (
        Annotated[tuple[Annotated[str, msgspec.Meta(max_length=20_000)], ...], msgspec.Meta(max_length=50)]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    sensitive: bool | msgspec.UnsetType = msgspec.UNSET


class AgentSettingsResponse(msgspec.Struct, frozen=True):
    agent_id: str
    deployment: str
    role: str
    shortname: str | None
    supervisors: tuple[str, ...]
    heartbeat_contract: str | None
    always_rules: tuple[str, ...]
    sensitive: bool
    warnings: tuple[str, ...]


class UnitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fact_uri: str
    content: str
    authored_by: str | None = None
    derived_from: Annotated[str, msgspec.Meta(max_length=600)] | None = None
    signature: Annotated[str, msgspec.Meta(max_length=100)] | None = None


class UnitAddressRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fact_uri: str


class WithdrawnUnit(msgspec.Struct, frozen=True):
    fact_uri: str
    status: str


class CoverageReportRow(msgspec.Struct, frozen=True, kw_only=True):
    unit: str
    coverage_pct: float | None
    passed: bool
    status: str
    scaled_pct: float | None
    chance: float
    skipped: bool
    failures: tuple[dict[str, str | None], ...]
    obstacle: str | None


class UnitResponse(msgspec.Struct, frozen=True):
    """`measured_for` lists the agents with this unit, worst coverage first; `coverage` is for the first of them."""

    fact_uri: str
    content_sha256: str
    tokens: int
    status: str
    coverage: CoverageReportRow | None = None
    measured_for: tuple[str, ...] = ()


class ManifestRequest(AgentRequest, frozen=True):
    version: Name
    entries: tuple[ManifestEntry, ...]
    skip_coverage_gate: bool = False
    migration_mode: MigrationMode | None = None
    approvals: Annotated[tuple[SubmittedApproval, ...], msgspec.Meta(max_length=200)] = ()


class PublishResponse(msgspec.Struct, frozen=True):
    fact_uri: str
    token_count: int
    coverage_report: tuple[CoverageReportRow, ...]
    warnings: tuple[str, ...]


class ManifestResponse(msgspec.Struct, frozen=True):
    manifest_version: str
    fact_uri: str
    token_count: int
    entries: tuple[dict[str, object], ...]
    last_updated_at: str
    embedding_model_version: str
    migration_mode: str


class RecallRequest(AgentRequest, frozen=True):
    intent: str = ""
    max_chunks: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3
    token_budget: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 2000
    manifest_hint: Names = ()
    heartbeat_id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None = None
    explain: bool = False
    floor: bool | None = None
    shadow: bool = False


class RecallWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`vector` is an alias of `semantic`."""

    lexical: float = 0.0
    semantic: float | None = None
    vector: float | None = None
    graph: float = 0.0


class ScopeRecallRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`query` is an alias of `intent`."""

    scope: str
    intent: str | None = None
    query: str | None = None
    max_facts: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3
    token_budget: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 2000
    weights: RecallWeights | None = None
    require_garden_ids: Names = ()
    explain: bool = False
    floor: bool | None = None


class StageScore(msgspec.Struct, frozen=True):
    stage: str
    fit: float
    added: float


class RecallExplanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """`lifted` is shown to admins only, because it reveals that the unit's coverage is critical.

    `fits_task_type`: the unit lists the task type of the current heartbeat.
    """

    picked_as: str
    relevance: float
    stages: tuple[StageScore, ...]
    matched_terms: tuple[str, ...]
    links: tuple[str, ...]
    lifted: bool | None = None
    fits_task_type: bool = False


class RecallChunk(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    fact_uri: str | None
    content: str
    tokens: int
    valid_until: str | None
    version: str | None
    score: float
    source: str
    why: RecallExplanation | None = None


class DroppedUnit(msgspec.Struct, frozen=True):
    name: str
    reason: str
    score: float


class RecallResponse(msgspec.Struct, frozen=True, kw_only=True):
    chunks: tuple[RecallChunk, ...]
    total_tokens: int
    truncated: bool
    missed_hints: tuple[str, ...]
    dropped_hints: tuple[str, ...]
    unavailable: tuple[str, ...]
    audit_token: str
    snapshot_id: str
    embedding_model_version: str
    dropped: tuple[DroppedUnit, ...] | None = None


class CloseAuditRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With a trace alone the audit record stays open for the agent's own report."""

    audit_token: str = ""
    used_chunks: Names | msgspec.UnsetType = msgspec.UNSET
    missed_chunks: Names | msgspec.UnsetType = msgspec.UNSET
    trace: Annotated[tuple[TraceStep, ...], msgspec.Meta(max_length=TRACE_STEPS_MAX)] | msgspec.UnsetType = (
        msgspec.UNSET
    )


class UnitCoverageRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`coverage_status` is shown to admins only."""

    name: str
    coverage_pct: float | None
    hit_at_10: float | None
    probe_count: int
    last_evaluated_at: str
    coverage_status: str | None = None


class CoverageResponse(msgspec.Struct, frozen=True, kw_only=True):
    manifest_version: str
    embedding_model_version: str
    evaluated_at: str
    kind: str
    skipped: bool
    stale: bool
    recert_due: str | None
    units: tuple[UnitCoverageRow, ...]


class ApprovalRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    kind: str
    unit: str | None
    version: str | None
    authored_by: str
    authored_at: str
    reason: str


class ApprovalResponse(msgspec.Struct, frozen=True):
    approval: ApprovalRow
    activated: tuple[str, ...]


class ApprovalRequest(AgentRequest, frozen=True, kw_only=True):
    kind: str
    unit: Name | None = None
    version: Name | None = None
    authored_by: Name | None = None
    authored_at: Name | None = None
    reason: Annotated[str, msgspec.Meta(max_length=4000)] = ""
    signature: Annotated[str, msgspec.Meta(max_length=100)] | None = None


class ApprovalsResponse(msgspec.Struct, frozen=True):
    approvals: tuple[ApprovalRow, ...]


class SignerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    public_key: Annotated[str, msgspec.Meta(max_length=100)]


class SignerResponse(msgspec.Struct, frozen=True):
    entity: str
    public_key: str


class PublicKeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    public_key: str


class SignerRow(msgspec.Struct, frozen=True):
    """`is_accepted`: the entity has a usable admin key, so its signatures are accepted."""

    entity: str
    public_key: str
    registered_at: str
    is_accepted: bool


class SignersResponse(msgspec.Struct, frozen=True):
    signers: tuple[SignerRow, ...]


class HeartbeatRequest(AgentRequest, frozen=True):
    wake_token: str = ""
    profile: str = "generic"


class PreloadRow(msgspec.Struct, frozen=True):
    name: str
    fact_uri: str | None
    content: str
    tokens: int
    version: str | None
    source: str


class HeartbeatWarning(msgspec.Struct, frozen=True):
    code: str
    message: str
    unit: str | None


class HeartbeatResponse(msgspec.Struct, frozen=True, kw_only=True):
    heartbeat_id: str
    session_start: str
    stub: str
    preloads: tuple[PreloadRow, ...]
    warnings: tuple[HeartbeatWarning, ...]
    total_tokens: int
    audit_token: str


class AuditRecordsRequest(AgentRequest, frozen=True):
    days: Annotated[int, msgspec.Meta(ge=1, le=3650)] = 7


class AuditRecordRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    agent_id: str
    heartbeat_id: str
    session_start: str
    intent: str
    loaded_chunks: tuple[str, ...]
    used_chunks: tuple[str, ...]
    missed_chunks: tuple[str, ...]
    audit_token: str
    audit_closed: str | None
    created_at: str
    event_type: str
    loaded: tuple[dict[str, object], ...]
    detail: dict[str, object]
    detected_used: tuple[str, ...] | None
    detected_missed: tuple[str, ...] | None
    detected: tuple[DetectedUnit, ...] | None
    detected_at: str | None


class AuditRecordsResponse(msgspec.Struct, frozen=True):
    records: tuple[AuditRecordRow, ...]


class MeasuresRequest(AgentRequest, frozen=True):
    k: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3
    days: Annotated[int, msgspec.Meta(ge=1, le=3650)] = 7


class ShadowRequest(AgentRequest, frozen=True):
    days: Annotated[int, msgspec.Meta(ge=1, le=3650)] = 30


class ShadowResponse(msgspec.Struct, frozen=True):
    passed: bool
    report: ShadowReport


class ReplayRequest(AgentRequest, frozen=True):
    audit_token: str


class ProbeRequest(AgentRequest, frozen=True):
    probe_id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    intent: Annotated[str, msgspec.Meta(min_length=1, max_length=4000)]
    required_units: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=50)]
    k: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3


class ProbeRow(msgspec.Struct, frozen=True):
    probe_id: str
    intent: str
    required_units: tuple[str, ...]
    k: int
    coverage_at_k: float | None
    hit: bool | None


class ProbesResponse(msgspec.Struct, frozen=True):
    probes: tuple[ProbeRow, ...]
    coverage_at_k: float | None
    hit_at_k: float | None
