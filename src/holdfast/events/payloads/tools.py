"""Events of a tool call: requested, confirmed or denied, called, completed or failed."""

from typing import Any, Literal

from holdfast.events.payloads.base import Payload

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
