"""All event payloads as one closed union: every fold must handle a new case.

Usage is in disjoint buckets. External text is redacted before it enters an error message.
"""

from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.canonical.blocks import Message
from holdfast.canonical.diagnosis import Diagnosis
from holdfast.canonical.moves import Move
from holdfast.canonical.pieces import Link
from holdfast.canonical.prompt import Parameters, Plan, Ttl
from holdfast.canonical.reply import ReplySource, StopReason
from holdfast.canonical.tools import ToolSpec
from holdfast.canonical.usage import Usage, without
from holdfast.canonical.view import LayerText, Layout
from holdfast.errors import FailureKind
from holdfast.events.payload import Payload
from holdfast.events.payloads_compaction import CompactionRefused, ContextCompacted, SkillReleased
from holdfast.events.payloads_controls import CacheControlled
from holdfast.events.payloads_gateway import GatewayForwarded
from holdfast.events.payloads_recovery import AnyRecoveryPayload
from holdfast.events.payloads_tools import SideEffects as SideEffects
from holdfast.events.payloads_tools import ToolCalled as ToolCalled
from holdfast.events.payloads_tools import ToolCompleted as ToolCompleted
from holdfast.events.payloads_tools import ToolConfirmationRequested as ToolConfirmationRequested
from holdfast.events.payloads_tools import ToolConfirmationResolved as ToolConfirmationResolved
from holdfast.events.payloads_tools import ToolErrorClass as ToolErrorClass
from holdfast.events.payloads_tools import ToolFailed as ToolFailed
from holdfast.events.payloads_tools import ToolInputInvalid as ToolInputInvalid


class Parent(msgspec.Struct, frozen=True):
    """The session that started this one, the tool call it was started for, and how many sessions are above it.

    `prefix_session_id` is the first of the sessions that share one stable prefix, and with it one cache.
    """

    session_id: str
    tool_use_id: str
    head_session_id: str
    depth: int


class SessionStarted(Payload, frozen=True, tag="session.started"):
    """A `simulated` session costs no real money."""

    model: str
    workspace_path: str | None = None
    workspace_hash: str | None = None
    name: str | None = None
    profile: Literal["default", "seed"] = "default"
    layout: Layout = "default"
    spend_max_usd: Decimal | None = None
    parameters: Parameters | None = None
    parent: Parent | None = None
    simulated: bool = False
    user_id: str | None = None
    team_id: str | None = None


class SessionEnded(Payload, frozen=True, tag="session.ended"):
    disposition: Literal["completed", "abandoned", "error"]
    turn_count: int
    total_cost_usd: Decimal
    duration_seconds: float


class EpochOpened(Payload, frozen=True, tag="epoch.opened"):
    """What stays fixed until the next epoch, pinned so that a resumed session sends the same bytes.

    `padding` is the reason why `system` contains a padding layer, or why it does not.
    """

    epoch: int
    system: tuple[LayerText, ...]
    tools: tuple[ToolSpec, ...]
    skills: tuple[str, ...] = ()
    digest: str | None = None
    padding: str | None = None


class TurnStarted(Payload, frozen=True, tag="turn.started"):
    user_message_hash: str
    estimated_input_tokens: int
    has_images: bool = False
    has_tool_calls_in_history: bool = False


class TurnCompleted(Payload, frozen=True, tag="turn.completed"):
    stop_reason: StopReason
    llm_call_count: int
    tool_call_count: int
    usage: Usage
    total_cost_usd: Decimal
    wall_time_seconds: float


class TurnCancelled(Payload, frozen=True, tag="turn.cancelled"):
    reason: Literal["user_cancel", "client_disconnect", "timeout", "error", "step_limit", "budget"]
    partial_llm_calls: int
    partial_tool_calls: int


class MessageAppended(Payload, frozen=True, tag="message.appended"):
    message: Message


class MessagesWithdrawn(Payload, frozen=True, tag="message.withdrawn"):
    """Removes messages that no model has answered: the provider accepted none of them, so none is cached."""

    reason: str


class ContextInjected(Payload, frozen=True, tag="context.injected"):
    """Text of a volatile layer, exactly as it is sent.

    In the messages it is history from now on (ephemeral text leaves with the turn); at the end of the system prompt it
    replaces the previous text.
    """

    layer: str
    text: str
    ephemeral: bool = False
    place: Literal["messages", "system"] = "messages"


class RequestPrepared(Payload, frozen=True, tag="request.prepared"):
    """The plan, and the digest chain from the first block that the previous call did not have.

    The first `shared_blocks` blocks equal those of the previous call, byte for byte; where it had more, `prefix_change`
    describes the change. `settings` are the parameters that a cached prefix depends on, named as in the catalog's
    rules.
    """

    plan: Plan
    encoding: str
    shared_blocks: int
    links: tuple[Link, ...]
    parameters_digest: str
    body_bytes: int
    settings: tuple[tuple[str, str], ...] = ()
    moved: Move | None = None


class ModelSwitched(Payload, frozen=True, tag="model.switched"):
    """From here on another model answers. `dropped` counts the blocks that were not transferred, by kind.

    `cache_miss_cost_usd` is the cost of writing the prompt into the new model's empty cache.
    """

    before: str
    after: str
    parameters: Parameters
    prompt_tokens: int
    cold_cost_usd: Decimal
    dropped: tuple[tuple[str, int], ...] = ()
    reworded_passages: int = 0


KeepingAction = Literal["created", "extended", "deleted", "lost", "refused"]


class CacheKept(Payload, frozen=True, tag="cache.kept"):
    """A change of an explicit cache at the provider.

    Storage is paid in advance at creation and extension. Deleting early is recorded as a negative storage cost, so that
    the amounts of all events add up to what was really stored.
    """

    action: KeepingAction
    name: str
    model: str
    digest: str
    tokens: int
    expires_at: float
    cost_usd: Decimal = Decimal(0)
    storage_cost_usd: Decimal = Decimal(0)
    reason: str = ""


PingKind = Literal["refresh", "upgrade", "warm"]


class CachePinged(Payload, frozen=True, tag="cache.pinged"):
    """A request for no output: it refreshed the cache, extended its TTL, or prewarmed the stable prefix.

    `breakpoint_block` is the block of its last breakpoint, `block_count` the number of conversation blocks it contained
    and `prefix_tokens` their tokens; it was sent at `sent_at`.
    """

    kind: PingKind
    model: str
    ttl: Ttl
    usage: Usage
    cost_usd: Decimal
    pricing_version: str
    reason: str = ""
    sent_at: float = 0.0
    piece: int | None = None
    pieces: int = 0
    marked_tokens: int = 0


class CacheLearned(Payload, frozen=True, tag="cache.learned"):
    """What a session has observed so far: its idle times and its provider's cache behaviour. The newest one counts.

    Idle times are histograms by length, separately for waiting on a tool and on a person. An anchor is a breakpoint
    with the long TTL after a warm prefix: it was read after a pause, or lost. The provider's floor is above the largest
    prompt with a breakpoint of which nothing was cached, and at most the smallest of which something was.
    """

    model: str
    route: str
    workspace_hash: str | None
    calls: int
    tool_gaps: tuple[float, ...]
    person_gaps: tuple[float, ...]
    anchors_read: int = 0
    anchors_lost: int = 0
    upgrade_log_odds: float = 0.0
    floor_above_tokens: int = 0
    floor_misses: int = 0
    floor_upto_tokens: int | None = None


class LlmCallStarted(Payload, frozen=True, tag="llm.call_started"):
    """`waited_seconds` is how long it waited for another request that was writing the same prefix."""

    model: str
    provider: str
    estimated_input_tokens: int
    request_id: str
    waited_seconds: float = 0.0


class LlmCallCompleted(Payload, frozen=True, tag="llm.call_completed"):
    """A call that was answered.

    With a completion cache, `completion_key` identifies the request and `is_completion_cached` says whether the reply
    was stored. A call answered from that cache cost nothing; one with the source `summary` is not part of the
    conversation. `compaction_usage` is the part of the usage that the provider needed to compact the conversation
    first.
    """

    model: str
    provider: str
    usage: Usage
    cost_usd: Decimal
    pricing_version: str
    latency_ms: int
    stop_reason: StopReason
    produced_tool_calls: int
    produced_thinking_blocks: int
    request_id: str
    response_id: str = ""
    retry_count: int = 0
    diagnosis: Diagnosis | None = None  # Only where the provider was asked to diagnose its cache.
    source: ReplySource = "provider"
    completion_key: str = ""
    completion_kept: bool = False
    compacting: Usage | msgspec.UnsetType = msgspec.UNSET

    @property
    def answering(self) -> Usage:
        """The usage of the answer itself; only what that read and wrote is in the cache afterwards."""
        return self.usage if self.compacting is msgspec.UNSET else without(self.usage, self.compacting)


class LlmCallFailed(Payload, frozen=True, tag="llm.call_failed"):
    model: str
    provider: str
    error_class: FailureKind
    error_message_redacted: str
    retry_count: int
    latency_ms: int
    request_id: str
    usage: Usage = Usage()  # Reported before the call was interrupted; it is charged all the same.
    cost_usd: Decimal = Decimal(0)
    refused_diagnosis: bool = False  # It failed only because a diagnosis was requested; do not request one again.
    output_estimated: bool = False


class DelegationStarted(Payload, frozen=True, tag="delegation.started"):
    """From here on another session works for this one; its cost is counted here once it has ended."""

    tool_use_id: str
    child_session_id: str


class DelegationCompleted(Payload, frozen=True, tag="delegation.completed"):
    """The usage and cost of a session that worked for this one, including the sessions it started in turn."""

    child_session_id: str
    outcome: Literal["completed", "failed", "cancelled", "interrupted"]
    usage: Usage
    cost_usd: Decimal


class RouteStep(msgspec.Struct, frozen=True):
    policy: str
    verdict: str
    reason: str
    candidate_model: str | None = None


class RouteDecided(Payload, frozen=True, tag="route.decided"):
    chosen_model: str
    winner_index: int
    elapsed_ms: int
    chain: tuple[RouteStep, ...]


class SkillLoaded(Payload, frozen=True, tag="skill.loaded"):
    skill_id: str
    skill_version: str
    load_reason: Literal["always", "on_demand", "auto_suggested"]
    load_size_tokens: int
    source: Literal["global", "workspace"]
    triggered_by_tool_use_id: str | None = None


class MemoryUpdated(Payload, frozen=True, tag="memory.updated"):
    file: str
    operation: Literal["add", "replace", "consolidate"]
    before_hash: str
    after_hash: str
    before_size_bytes: int
    after_size_bytes: int


class MemoryEviction(Payload, frozen=True, tag="memory.eviction"):
    file: str
    trigger: Literal["size_cap_exceeded", "manual"]
    entries_evicted: int
    size_before_bytes: int
    size_after_bytes: int


AnyPayload = (
    SessionStarted
    | SessionEnded
    | EpochOpened
    | TurnStarted
    | TurnCompleted
    | TurnCancelled
    | MessageAppended
    | MessagesWithdrawn
    | ContextInjected
    | RequestPrepared
    | ModelSwitched
    | CacheKept
    | CachePinged
    | CacheLearned
    | CacheControlled
    | GatewayForwarded
    | LlmCallStarted
    | LlmCallCompleted
    | LlmCallFailed
    | ToolCalled
    | ToolCompleted
    | ToolFailed
    | ToolInputInvalid
    | ToolConfirmationRequested
    | ToolConfirmationResolved
    | DelegationStarted
    | DelegationCompleted
    | RouteDecided
    | SkillLoaded
    | MemoryUpdated
    | MemoryEviction
    | AnyRecoveryPayload
    | ContextCompacted
    | CompactionRefused
    | SkillReleased
)
