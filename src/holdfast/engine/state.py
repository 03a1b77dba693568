"""The state of a session at one moment."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.catalog.token_count import TokenCalibration
from holdfast.compaction.decision import CompactionMonitor
from holdfast.engine.tools.skill_budget import NO_ACTIVATIONS, Activations
from holdfast.events.payloads.cache import CacheControlsApplied, CacheLearned
from holdfast.events.payloads.calls import LlmCallStarted
from holdfast.events.payloads.session import ParentSession
from holdfast.planning.explicit_cache import ExplicitCacheState
from holdfast.planning.learned import NO_IMPLICIT_READS, CacheMemory, ImplicitReads, RequestRecord
from holdfast.recovery.attempts import Incidents
from holdfast.types.prompt import HistoryEntry, LayerText, Layout, Parameters, Segment, Ttl
from holdfast.types.request_buffer import PrefixDigest
from holdfast.types.tool_spec import ToolSpec
from holdfast.types.usage import Usage


class CompletedCall(msgspec.Struct, frozen=True):
    """A completed call: start time, TTL of its last breakpoint (None without one), and usage."""

    at: float
    ttl: Ttl | None
    usage: Usage = Usage()


class DiagnosisBaseline(msgspec.Struct, frozen=True):
    """What a cache-miss diagnosis compares the next request with: the id of the newest response, by model.

    `refused_by` are providers that refused a request with the diagnosis parameter.
    """

    response_ids: Mapping[str, str] = {}
    refused_by: frozenset[str] = frozenset()


class ProviderLimits(msgspec.Struct, frozen=True):
    """None where no limit is known. `short_ttls_only`: breakpoints use the shortest TTL only."""

    breakpoints_max: int | None = None
    short_ttls_only: bool = False
    window_tokens_max: int | None = None


NO_LIMITS = ProviderLimits()


class TurnState(msgspec.Struct, frozen=True):
    """The turn in progress."""

    id: str
    started_at: float
    llm_calls: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)


class UndoPoint(msgspec.Struct, frozen=True):
    """The view as it would be without the newest compaction, whose event id is `compaction_id`.

    The reducer applies later events to it as well. `last_message` was the newest message at the compaction.
    """

    compaction_id: str
    last_message: int
    entries: tuple[HistoryEntry, ...]
    sent_count: int
    emitted: tuple[LayerText, ...]
    first_ephemeral: int | None
    activations: Activations
    compaction_watch: CompactionMonitor


class SessionState(msgspec.Struct, frozen=True):
    """The first `sent_count` entries were in the last request or its reply; `digests` is that request's digest chain.

    `uncached_calls` counts calls that read nothing from any cache; `uncached_span` holds the start times of the first
    and the last of them. `implicit_reads` are those of the others. `padding` is the reason for the padding decision.
    `request` is the newest request, `last_call` the newest completed one. `delegated_sessions` work for this one; their
    cost is not included yet. `message_count` counts all messages on the log, including those no longer in the view.
    `undo_point` is what undoing the newest compaction restores, None if nothing can be undone.
    """

    session_id: str
    model: str = ""
    name: str | None = None
    profile: Literal["default", "seed"] = "default"
    layout: Layout = "default"
    workspace_path: str | None = None
    simulated: bool = False
    user_id: str | None = None
    team_id: str | None = None
    spend_max_usd: Decimal | None = None
    parameters: Parameters | None = None
    started_at: float = 0.0
    event_count: int = 0
    last_event_id: str | None = None
    epoch: int = 0
    pinned: tuple[LayerText, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    skills: tuple[str, ...] = ()
    stable_prefix: tuple[Segment, ...] = ()
    entries: tuple[HistoryEntry, ...] = ()
    sent_count: int = 0
    emitted: tuple[LayerText, ...] = ()
    first_ephemeral: int | None = None
    system_tail: LayerText | None = None
    digests: tuple[PrefixDigest, ...] = ()
    answered_blocks: int = 0
    request: RequestRecord | None = None
    cache_memory: CacheMemory = CacheMemory()
    learned_record: CacheLearned | None = None
    turn: TurnState | None = None
    turn_count: int = 0
    padding: str | None = None
    open_call: LlmCallStarted | None = None
    last_call: CompletedCall | None = None
    diagnosis_baseline: DiagnosisBaseline = DiagnosisBaseline()
    has_called_tools: bool = False
    activations: Activations = NO_ACTIVATIONS
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)
    pinged_usd: Decimal = Decimal(0)
    calibration: TokenCalibration = TokenCalibration()
    uncached_calls: int = 0
    uncached_span: tuple[float, float] = (0.0, 0.0)
    implicit_reads: ImplicitReads = NO_IMPLICIT_READS
    explicit_cache: ExplicitCacheState | None = None
    refused_prefix: str | None = None
    parent: ParentSession | None = None
    delegated_sessions: frozenset[str] = frozenset()
    limits: ProviderLimits = NO_LIMITS
    incidents: Incidents = {}
    cache_settings: CacheControlsApplied = CacheControlsApplied()
    is_ended: bool = False
    message_count: int = 0
    compaction_watch: CompactionMonitor = CompactionMonitor()
    undo_point: UndoPoint | None = None
