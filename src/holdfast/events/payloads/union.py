"""All event payloads as one closed union: every fold must handle a new case.

Usage is in disjoint buckets. External text is redacted before it enters an error message.
"""

from holdfast.events.payloads.cache import CacheControlsApplied, CacheLearned, CachePinged, ExplicitCacheChanged
from holdfast.events.payloads.calls import (
    GatewayForwarded,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    ModelSwitched,
    RequestPrepared,
    RouteDecided,
    ToolCalled,
    ToolCompleted,
    ToolConfirmationRequested,
    ToolConfirmationResolved,
    ToolFailed,
    ToolInputInvalid,
)
from holdfast.events.payloads.compaction import (
    CompactionRequested,
    CompactionSkipped,
    CompactionUndone,
    ContextCompacted,
    SkillReleased,
)
from holdfast.events.payloads.recovery import AnyRecoveryPayload
from holdfast.events.payloads.session import (
    ContextInjected,
    DelegationCompleted,
    DelegationStarted,
    EpochOpened,
    MemoryEviction,
    MemoryUpdated,
    MessageAppended,
    MessagesWithdrawn,
    SessionEnded,
    SessionStarted,
    SkillLoaded,
    SkillUsed,
    TurnCancelled,
    TurnCompleted,
    TurnStarted,
)

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
    | ExplicitCacheChanged
    | CachePinged
    | CacheLearned
    | CacheControlsApplied
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
    | SkillUsed
    | MemoryUpdated
    | MemoryEviction
    | AnyRecoveryPayload
    | ContextCompacted
    | CompactionUndone
    | CompactionRequested
    | CompactionSkipped
    | SkillReleased
)
