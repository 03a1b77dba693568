"""The habits of a request that is forwarded as it came: which there are, what each shows as a diff, what each costs."""

import difflib
import re
from collections.abc import Iterator

import msgspec

from holdfast.canonical.blocks import Json
from holdfast.canonical.encoding import plain_json
from holdfast.catalog.rows import Model
from holdfast.events.payloads_gateway import Change, Priced
from holdfast.gateway.edits import TOOLS, VOLATILE, Body
from holdfast.gateway.improving import Improver
from holdfast.gateway.routing import Target
from holdfast.gateway.shadow import AS_SENT, IMPROVED, Shadow
from holdfast.providers.adapter import Adapter, WireRequest

PRICED_BYTES_MAX = 1024 * 1024
LINES_MAX = 12
LINE_CHARS_MAX = 160
DIFF_BYTES_MAX = 512 * 1024


_SAID = ("messages", "input", "contents", "prompt_cache_key")
_MEMBERS = {TOOLS: ("tools",), VOLATILE: ("system", "instructions", "systemInstruction")}
"""Which members of a request a habit is about, by how its name begins."""


class Habits(msgspec.Struct, frozen=True):
    changes: tuple[Change, ...] = ()
    priced: Priced | None = None


def habits_of(
    improver: Improver, target: Target, body: bytes, *, shadow: Shadow, call: tuple[Adapter, WireRequest, float, int]
) -> Habits:
    """What improving would change in a request, and what that is worth. Raises what an unknown body makes us raise.

    `call` is how the request reads, when it was made, and how many tokens it is thought to have.
    """
    adapter, wire, at, tokens = call
    improved = improver.improved(target.speaks or "", body, path=target.path)
    changes = tuple(msgspec.structs.replace(change, done=False) for change in improved.changes)
    ways = {AS_SENT: wire}
    if improved.body is not None:
        ways[IMPROVED] = improved.wire
        for change in changes if len(body) <= PRICED_BYTES_MAX else ():
            left = improver.improved(target.speaks or "", body, path=target.path, left=frozenset({change.habit}))
            ways[change.habit] = left.wire
    made = shadow.priced(adapter, improved.row, at, tokens=tokens, ways=ways)
    if made is None:
        return Habits(changes)
    priced, extra = made
    told = (msgspec.structs.replace(change, usd=extra.get(change.habit)) for change in changes)
    return Habits(tuple(told), priced)


def as_sent(adapter: Adapter, row: Model | None, shadow: Shadow, call: tuple[WireRequest, float, int]) -> Priced | None:
    """What a request costs that was improved already, or that nothing can be said of but its size."""
    wire, at, tokens = call
    made = None if row is None else shadow.priced(adapter, row, at, tokens=tokens, ways={AS_SENT: wire})
    return None if made is None else made[0]


def with_diff(changes: tuple[Change, ...], before: bytes, after: bytes) -> tuple[Change, ...]:
    """Each change with the masked diff of the member that it is about; what two are about is shown once."""
    if len(before) > DIFF_BYTES_MAX:
        return changes
    old: Body = msgspec.json.decode(before)
    new: Body = msgspec.json.decode(after)
    shown: set[str] = set()
    told: list[Change] = []
    for change in changes:
        names = next((names for start, names in _MEMBERS.items() if change.habit.startswith(start)), _SAID)
        lines: list[str] = []
        for name in names:
            if name not in shown and old.get(name) != new.get(name):
                shown.add(name)
                differs = diff_lines(plain_json({name: old.get(name)}), plain_json({name: new.get(name)}), context=0)
                lines += [masked(line) for line in differs if not line.startswith(("---", "+++", "@@"))]
        told.append(msgspec.structs.replace(change, diff=tuple(lines[:LINES_MAX])))
    return tuple(told)


def diff_lines(before: bytes, after: bytes, *, context: int = 2) -> Iterator[str]:
    """How two requests differ, line by line; texts are broken at their own line ends."""
    for line in difflib.unified_diff(_lines(before), _lines(after), "as it came", "as it is sent", "", "", context, ""):
        yield line[:LINE_CHARS_MAX]


def _lines(body: bytes) -> list[str]:
    return list(_spread(msgspec.json.decode(body), ""))


def _spread(value: Json, indent: str) -> Iterator[str]:
    match value:
        case dict():
            for name, member in value.items():
                if isinstance(member, dict | list):
                    yield f"{indent}{name}:"
                    yield from _spread(member, indent + "  ")
                else:
                    yield from _spread(member, f"{indent}{name}: ")
        case list():
            for member in value:
                yield f"{indent}-"
                yield from _spread(member, indent + "  ")
        case str():
            for line in value.split("\n"):
                yield indent + line
        case _:
            yield f"{indent}{msgspec.json.encode(value).decode()}"


def masked(line: str) -> str:
    """A line of a diff that tells no word of what was said; names of members stay."""
    sign, rest = line[:1], line[1:]
    name = re.match(r"\s*(?:[a-z_]+:|-)(?: |$)", rest)
    kept = name[0] if name else ""
    return sign + kept + re.sub(r"[^\W\d_]", "x", re.sub(r"\d", "0", rest[len(kept) :]))
