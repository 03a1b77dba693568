"""Changes that say the same in another order: volatile lines taken out, tools sorted, text put into parts."""

from collections.abc import Callable

import msgspec

from holdfast.canonical.blocks import Json
from holdfast.events.payloads_gateway import Change
from holdfast.gateway.volatile import Volatile
from holdfast.providers.anthropic.blocks import MARK

Body = dict[str, Json]
Taken = list[tuple[str, str]]
"""What was taken out, each with the name of its rule."""

TOOLS = "tools out of order"
MARKS = "marks missing"
LIFETIMES = "lifetimes out of order"
KEY = "no key of a cache"
BREAKPOINT = "breakpoint missing"
VOLATILE = "volatile "


class Edits:
    """What is changed in one request; habits that are `left` stay as they are."""

    def __init__(self, volatile: Volatile, left: frozenset[str] = frozenset()) -> None:
        self._volatile = volatile.without(frozenset(name.removeprefix(VOLATILE) for name in left))
        self._left = left
        self.changes: list[Change] = []
        self.moved = ""

    def mends(self, habit: str) -> bool:
        return habit not in self._left

    def note(self, habit: str, place: str) -> None:
        self.changes.append(Change(habit, place, done=True))

    def move(self, taken: Taken, place: str) -> None:
        """Lines were taken out of that place, and are to be said at the end."""
        self.moved = "\n".join((*((self.moved,) if self.moved else ()), *(text for _, text in taken)))
        for name in dict(taken):
            if all(change.habit != f"{VOLATILE}{name}" for change in self.changes):
                self.note(f"{VOLATILE}{name}", place)

    def text_without_volatile(self, text: str) -> tuple[str, Taken]:
        rest, found = self._volatile.taken_out(text)
        return rest, list(found)

    def without_volatile(self, said: Json | None) -> tuple[Json, Taken]:
        """A text, or parts with texts in them, and what was taken out; a part with nothing left in it is gone."""
        if isinstance(said, str):
            return self.text_without_volatile(said)
        kept: list[Json] = []
        taken: Taken = []
        for part in said if isinstance(said, list) else ():
            text = part.get("text") if isinstance(part, dict) else None
            if not isinstance(part, dict) or not isinstance(text, str):
                kept.append(part)
                continue
            rest, found = self.text_without_volatile(text)
            taken += found
            if rest.strip() or not found:
                kept.append({**part, "text": rest} if found else part)
        return kept, taken

    def sorted_tools(self, tools: Json | None, name_of: Callable[[Body], Json | None]) -> Json | None:
        """By name, where all have one of their own and none carries a mark; else None."""
        if not isinstance(tools, list) or not self.mends(TOOLS):
            return None
        named = [(name_of(tool), tool) for tool in tools if isinstance(tool, dict)]
        names = [name for name, _ in named if isinstance(name, str)]
        if len(set(names)) != len(tools) or any(tool.get(MARK) for _, tool in named):
            return None
        ordered: list[Json] = [tool for _, tool in sorted(named, key=lambda pair: str(pair[0]))]
        if ordered == tools:
            return None
        self.note(TOOLS, "tools")
        return ordered


def in_parts(messages: Json, kind: str, roles: tuple[str, ...]) -> Json:
    """Text alone as a part, in every message of these roles, so that a mark on one of them changes no other byte."""
    if not isinstance(messages, list):
        return messages
    return [
        {**message, "content": [{"type": kind, "text": message["content"]}]}
        if isinstance(message, dict)
        and message.get("role") in roles
        and isinstance(message.get("content"), str)
        and message["content"]
        else message
        for message in messages
    ]


def objects_in(value: Json | None) -> list[Body]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def converted(arguments: object) -> Body:
    body: Body = msgspec.convert(arguments, dict)
    return body
