"""Events of model calls and of the tool calls in their replies: requested, sent or run, completed or failed."""

from decimal import Decimal
from typing import Any, Literal

import msgspec

from holdfast.errors import FailureKind
from holdfast.events.payloads import Payload
from holdfast.types.prompt import Parameters, Plan, PrefixChange
from holdfast.types.reply import CacheDiagnosis, ReplySource, StopReason
from holdfast.types.request_buffer import PrefixDigest
from holdfast.types.usage import Usage

UNPRICED = "unpriced"
"""The pricing version of calls whose model has no price: their cost is recorded as 0 but is not known."""

VOLATILE_PREFIX = "volatile "
"""How the anti-patterns begin that a rewrite fixes by moving text to the end of the request."""


class RequestChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """One anti-pattern that was fixed in a request, or could have been: `anti_pattern` names it, `location` locates it.

    `diff` shows the change with every letter as x and every digit as 0.
    """

    anti_pattern: str
    location: str
    is_applied: bool = False
    diff: tuple[str, ...] = ()


class RewriteEstimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a forwarded call costs without and with a rewrite, reply included: one is its cost, the other an estimate.

    `findings` has what each anti-pattern costs if only the others are fixed.
    """

    without_usd: Decimal
    with_usd: Decimal
    findings: tuple[tuple[str, Decimal], ...] = ()


class ConversationTrace(msgspec.Struct, frozen=True, omit_defaults=True):
    """Digests that identify a conversation after a restart.

    The first `shared_blocks` blocks are those of the previous request, followed by `blocks`. `session_digest` is the
    digest of an id that the client sent, and `reason` says where in the request it was found.
    """

    mount: str
    prefix_digest: str
    shared_blocks: int
    blocks: tuple[str, ...]
    session_digest: str | None = None
    reason: str = ""


class ReplyTrace(msgspec.Struct, frozen=True, omit_defaults=True):
    """Digests of the blocks of a forwarded reply, in order, and of the texts that it passes to tools."""

    blocks: tuple[str, ...] = ()
    delegated: tuple[str, ...] = ()


class GatewayForwarded(Payload, frozen=True, tag="gateway.forwarded"):
    """Why a request was assigned to this session, with which confidence from 0 to 1, and by whose key.

    `key_id` is one of our own keys, with its user and team; provider keys are never stored. `client` is the program, as
    its user agent names it. `shape` has one letter for each block that the previous request did not have. If
    `is_planned`, `--improve` was on for the request, whether it changed anything or not. `unreadable` names the parts
    of the request that could not be decoded, each with the reason; they are recorded as raw JSON.
    """

    reason: str
    confidence: float
    key_id: str | None = None
    is_improved: bool = False
    changes: tuple[RequestChange, ...] = ()
    user_id: str | None = None
    team_id: str | None = None
    trace: ConversationTrace | None = None
    shape: str = ""
    client: str = ""
    is_planned: bool = False
    unreadable: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class RequestPrepared(Payload, frozen=True, tag="request.prepared"):
    """The plan, and the digest chain from the first block that the previous call did not have.

    The first `shared_blocks` blocks equal those of the previous call, byte for byte; where it had more, `prefix_change`
    describes the change. `settings` are the parameters that a cached prefix depends on, named as in the catalog's
    rules. `unreadable` names the parts of a wrapped client's request that could not be decoded, each with the reason.
    """

    plan: Plan
    encoding: str
    shared_blocks: int
    digests: tuple[PrefixDigest, ...]
    parameters_digest: str
    body_bytes: int
    settings: tuple[tuple[str, str], ...] = ()
    prefix_change: PrefixChange | None = None
    unreadable: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class ModelSwitched(Payload, frozen=True, tag="model.switched"):
    """From here on another model answers. `dropped` counts the blocks that were not transferred, by kind.

    `cache_miss_cost_usd` is the cost of writing the prompt into the new model's empty cache.
    """

    before: str
    after: str
    parameters: Parameters
    prompt_tokens: int
    cache_miss_cost_usd: Decimal
    dropped: tuple[tuple[str, int], ...] = ()
    reworded_entries: int = 0


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
    first. `unreadable` says which part of a forwarded response could not be decoded; its usage was.
    `uncached_cost_usd` is set where list prices do not apply, as for the results of a batch. `rewrite` is set for calls
    through a gateway or a wrapped client. `reply` identifies a forwarded response in the request that continues it;
    `first_byte_ms` says when it began.
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
    diagnosis: CacheDiagnosis | None = None  # Only where the provider was asked to diagnose its cache.
    source: ReplySource = "provider"
    completion_key: str = ""
    is_completion_cached: bool = False
    compaction_usage: Usage | msgspec.UnsetType = msgspec.UNSET
    unreadable: str | msgspec.UnsetType = msgspec.UNSET
    uncached_cost_usd: Decimal | msgspec.UnsetType = msgspec.UNSET
    rewrite: RewriteEstimate | msgspec.UnsetType = msgspec.UNSET
    reply: ReplyTrace | msgspec.UnsetType = msgspec.UNSET
    first_byte_ms: int | msgspec.UnsetType = msgspec.UNSET


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
    is_diagnosis_refused: bool = False  # It failed only because a diagnosis was requested; do not request one again.
    is_output_estimated: bool = False


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


SideEffects = Literal["none", "read", "write", "execute", "network"]
ToolErrorClass = Literal[
    "not_found",
    "validation_error",
    "permission_denied",
    "user_denied",
    "timeout",
    "execution_error",
    "cancelled",
    "confirmation_timeout",
]


class ToolCalled(Payload, frozen=True, tag="tool.called"):
    tool_use_id: str
    tool_name: str
    input_hash: str
    input_size_bytes: int
    side_effects: SideEffects


class ToolCompleted(Payload, frozen=True, tag="tool.completed"):
    """`metadata` describes the result for readers of the log; the model does not see it."""

    tool_use_id: str
    success: bool
    output_size_bytes: int
    latency_ms: int
    files_modified: tuple[str, ...] | None = None
    command_executed: str | None = None
    metadata: dict[str, Any] | None = None  # JSON, whose recursive type msgspec cannot decode.


class ToolFailed(Payload, frozen=True, tag="tool.failed"):
    tool_use_id: str
    error_class: ToolErrorClass
    error_message: str
    latency_ms: int


class ToolInputInvalid(Payload, frozen=True, tag="tool.input_invalid"):
    tool_name: str
    validation_errors: tuple[str, ...]


class ToolConfirmationRequested(Payload, frozen=True, tag="tool.confirmation_requested"):
    tool_use_id: str
    tool_name: str
    side_effects: SideEffects
    input_summary: str
    expires_at: float


class ToolConfirmationResolved(Payload, frozen=True, tag="tool.confirmation_resolved"):
    tool_use_id: str
    decision: Literal["allow", "deny", "timeout"]
    scope: str | None = None
