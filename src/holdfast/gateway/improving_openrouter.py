"""OpenRouter's additions to the OpenAI rewrite: Anthropic-style breakpoints and a session id for sticky routing."""

from collections.abc import Sequence

from holdfast.canonical.blocks import Json
from holdfast.canonical.encoding import plain_json
from holdfast.canonical.prompt import Mark, Ttl
from holdfast.gateway.edits import Body, objects_in
from holdfast.gateway.improving_openai import session_of
from holdfast.providers.adapter import Adapter
from holdfast.providers.anthropic.blocks import MARK

SESSION = "session_id"
ROLES = ("system", "developer", "user", "tool")
"""Roles whose messages can carry a breakpoint."""


def with_marks(body: Body, wanted: Sequence[Mark], adapter: Adapter) -> tuple[Body, int]:
    """Sets those of the wanted breakpoints that fall on the end of a message; returns the body and their number.

    To learn which block index a message end has, it decodes the body with a trial breakpoint there.
    """
    messages = objects_in(body.get("messages"))
    ttls = {breakpoint_.piece: breakpoint_.ttl for breakpoint_ in wanted}
    existing = {breakpoint_.piece for breakpoint_ in _breakpoints(body, adapter)}
    placed, count = body, 0
    for index in _candidate_indexes(messages):
        trial = _with_breakpoint(placed, index, "5m")
        new = {breakpoint_.piece for breakpoint_ in _breakpoints(trial, adapter)} - existing
        for block in new & ttls.keys():
            placed, count = _with_breakpoint(placed, index, ttls[block]), count + 1
            existing.add(block)
    return placed, count


def session_in(body: Body) -> str:
    """An id that is equal for all requests of one conversation, regardless of breakpoints in it."""
    messages = objects_in(body.get("messages"))
    first = next((message for message in messages if message.get("role") == "user"), {})
    # Without breakpoints: they move from request to request and must not change the id.
    parts = [{name: value for name, value in part.items() if name != MARK} for part in objects_in(first.get("content"))]
    return session_of({"messages": [{"role": "user", "content": [*parts]}], "tools": body.get("tools")}, "messages")


def _candidate_indexes(messages: list[Body]) -> list[int]:
    """The last messages of the system prompt, of the previous request and of this one."""
    newest = max((index for index, message in enumerate(messages) if message.get("role") == "assistant"), default=0)
    return [
        index
        for index in sorted({0, newest - 1, len(messages) - 1})
        if index >= 0 and _can_carry_breakpoint(messages[index])
    ]


def _can_carry_breakpoint(message: Body) -> bool:
    parts = objects_in(message.get("content"))
    return message.get("role") in ROLES and bool(parts) and parts[-1].get("type") == "text" and MARK not in parts[-1]


def _with_breakpoint(body: Body, index: int, ttl: Ttl) -> Body:
    messages = objects_in(body["messages"])
    parts = objects_in(messages[index]["content"])
    # 5m is the default TTL.
    cache_control: Json = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    content: Json = [*parts[:-1], {**parts[-1], MARK: cache_control}]
    return {**body, "messages": [*messages[:index], {**messages[index], "content": content}, *messages[index + 1 :]]}


def _breakpoints(body: Body, adapter: Adapter) -> tuple[Mark, ...]:
    return adapter.read_request(plain_json(body)).plan.marks
