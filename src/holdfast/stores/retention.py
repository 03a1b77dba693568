"""What of old sessions goes, and what stays: who was allowed what, and what it cost."""

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
)
"""Kinds of events that outlive the retention. None of them holds what was said: prompts, replies, and what tools were
given and gave are gone, and with them what a request was made of, so that verdicts are gone too."""

AUDIT_TYPES = tuple(str(kind.__struct_config__.tag) for kind in AUDITED)
