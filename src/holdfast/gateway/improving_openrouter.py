"""What is mended in OpenRouter's requests beside what is in OpenAI's: marks of who serves the model, and a session."""

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
"""Who says what a mark can stand on."""


def with_marks(body: Body, wanted: Sequence[Mark], adapter: Adapter) -> tuple[Body, int]:
    """The body with those of the wanted marks that stand at the end of a message, and how many those are.

    Which block of the prompt a place is, the adapter says: it reads the body with a mark on each of a few places.
    """
    messages = objects_in(body.get("messages"))
    lifetimes = {mark.piece: mark.ttl for mark in wanted}
    own = {mark.piece for mark in _marks(body, adapter)}
    placed, count = body, 0
    for place in _places(messages):
        tried = _marked(placed, place, "5m")
        new = {mark.piece for mark in _marks(tried, adapter)} - own
        for piece in new & lifetimes.keys():
            placed, count = _marked(placed, place, lifetimes[piece]), count + 1
            own.add(piece)
    return placed, count


def session_in(body: Body) -> str:
    """The same for all requests of one conversation, wherever marks stand in it."""
    users = (one for one in objects_in(body.get("messages")) if one.get("role") == "user")
    first = next(users, {})
    parts = [{name: value for name, value in part.items() if name != MARK} for part in objects_in(first.get("content"))]
    return session_of({"messages": [{"role": "user", "content": [*parts]}], "tools": body.get("tools")}, "messages")


def _places(messages: list[Body]) -> list[int]:
    """The end of the system prompt, of the request before, and of this one."""
    newest = max((place for place, one in enumerate(messages) if one.get("role") == "assistant"), default=0)
    return [
        place for place in sorted({0, newest - 1, len(messages) - 1}) if place >= 0 and _takes_mark(messages[place])
    ]


def _takes_mark(message: Body) -> bool:
    parts = objects_in(message.get("content"))
    return message.get("role") in ROLES and bool(parts) and parts[-1].get("type") == "text" and MARK not in parts[-1]


def _marked(body: Body, place: int, ttl: Ttl) -> Body:
    messages = objects_in(body["messages"])
    parts = objects_in(messages[place]["content"])
    mark: Json = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    content: Json = [*parts[:-1], {**parts[-1], MARK: mark}]
    return {**body, "messages": [*messages[:place], {**messages[place], "content": content}, *messages[place + 1 :]]}


def _marks(body: Body, adapter: Adapter) -> tuple[Mark, ...]:
    return adapter.read_request(plain_json(body)).plan.marks
