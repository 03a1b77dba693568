"""Events of a session and its turns: messages, injected context, delegation, skills and memory files."""

from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.events.payloads import Payload
from holdfast.types.blocks import Message
from holdfast.types.prompt import LayerText, Layout, Parameters
from holdfast.types.reply import StopReason
from holdfast.types.tool_spec import ToolSpec
from holdfast.types.usage import Usage


class ParentSession(msgspec.Struct, frozen=True):
    """The session that started this one, the tool call it was started for, and how many sessions are above it.

    `prefix_session_id` is the first of the sessions that share one stable prefix, and with it one cache.
    """

    session_id: str
    tool_use_id: str
    prefix_session_id: str
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
    parent: ParentSession | None = None
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

    `padding` is the reason why `system` contains a padding layer, or why it does not. `preloaded` are the skills whose
    bodies are in it, if it is the prefix of another session, whose log has their loads.
    """

    epoch: int
    system: tuple[LayerText, ...]
    tools: tuple[ToolSpec, ...]
    skills: tuple[str, ...] = ()
    digest: str | None = None
    padding: str | None = None
    preloaded: tuple[str, ...] = ()


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
    section: Literal["messages", "system"] = "messages"


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


class SkillLoaded(Payload, frozen=True, tag="skill.loaded"):
    skill_id: str
    skill_version: str
    load_reason: Literal["always", "on_demand", "auto_suggested"]
    load_size_tokens: int
    source: Literal["global", "workspace"]
    triggered_by_tool_use_id: str | None = None


class SkillUsed(Payload, frozen=True, tag="skill.used"):
    """The first sign that the model used a preloaded body; a preload without one was wasted."""

    skill_id: str
    evidence: Literal["skill_load", "folder", "output"]
    tool_use_id: str | None = None


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
