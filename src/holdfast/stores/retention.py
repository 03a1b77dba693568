"""Which events outlive the retention period: what was allowed, and what it cost."""

from holdfast.events.payload import Payload
from holdfast.events.payloads import (
    CacheKept,
    CachePinged,
    DelegationCompleted,
    DelegationStarted,
    LlmCallCompleted,
    LlmCallFailed,
    ModelSwitched,
    SessionEnded,
    SessionStarted,
    ToolCalled,
    ToolConfirmationResolved,
)
from holdfast.events.payloads_gateway import GatewayForwarded

# Event types that outlive the retention period. None contains conversation content: prompts, replies, tool inputs and
# outputs are deleted, and with them the composition of requests, so verdicts cannot be recomputed.
AUDITED: tuple[type[Payload], ...] = (
    SessionStarted,
    SessionEnded,
    ModelSwitched,
    LlmCallCompleted,
    LlmCallFailed,
    CacheKept,
    CachePinged,
    ToolCalled,
    ToolConfirmationResolved,
    DelegationStarted,
    DelegationCompleted,
    GatewayForwarded,
)

AUDIT_TYPES = tuple(str(kind.__struct_config__.tag) for kind in AUDITED)
