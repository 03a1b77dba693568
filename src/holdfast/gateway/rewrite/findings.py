"""Shows what a rewrite changes in a request: as a diff, and as one that reveals no text."""

import difflib
import re
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile

import msgspec

from holdfast.events.payloads.calls import VOLATILE_PREFIX, RequestChange
from holdfast.gateway.rewrite.operations import TOOLS_UNSORTED, JsonObject
from holdfast.types.blocks import Json
from holdfast.types.json_encoding import encode_json

LINES_MAX = 12
LINE_CHARS_MAX = 160
DIFF_BYTES_MAX = 512 * 1024
_CONTENT_MEMBERS = ("messages", "input", "contents", "prompt_cache_key")
_MEMBERS_BY_FINDING = {TOOLS_UNSORTED: ("tools",), VOLATILE_PREFIX: ("system", "instructions", "systemInstruction")}
"""The request members an anti-pattern concerns, by prefix of its name."""


def add_masked_diffs(changes: tuple[RequestChange, ...], before: bytes, after: bytes) -> tuple[RequestChange, ...]:
    """Adds to each change the masked diff of the members it concerns; a member is shown with one change only."""
    if len(before) > DIFF_BYTES_MAX:
        return changes
    old: JsonObject = msgspec.json.decode(before)
    new: JsonObject = msgspec.json.decode(after)
    shown_members: set[str] = set()
    annotated: list[RequestChange] = []
    for change in changes:
        names = next(
            (names for start, names in _MEMBERS_BY_FINDING.items() if change.anti_pattern.startswith(start)),
            _CONTENT_MEMBERS,
        )
        lines: list[str] = []
        for name in names:
            if name not in shown_members and old.get(name) != new.get(name):
                shown_members.add(name)
                members = _drop_equal_ends(old.get(name), new.get(name))
                differs = iterate_diff_lines(*(encode_json({name: member}) for member in members), context=0)
                # Cut before masking, which takes longer than comparing.
                shown = islice(
                    (line for line in differs if not line.startswith(("---", "+++", "@@"))), LINES_MAX - len(lines)
                )
                lines += [mask_line(line) for line in shown]
        annotated.append(msgspec.structs.replace(change, diff=tuple(lines)))
    return tuple(annotated)


def _drop_equal_ends(before: Json, after: Json) -> tuple[Json, Json]:
    """Of two lists what is between their equal first and last members: of a long conversation few messages differ."""
    if not isinstance(before, list) or not isinstance(after, list):
        return before, after
    start = _count_equal(zip(before, after, strict=False))
    before, after = before[start:], after[start:]
    end = _count_equal(zip(reversed(before), reversed(after), strict=False))
    return before[: len(before) - end], after[: len(after) - end]


def _count_equal(pairs: Iterable[tuple[Json, Json]]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def iterate_diff_lines(before: bytes, after: bytes, *, context: int = 2) -> Iterator[str]:
    """Unified diff of two request bodies, one line per scalar; texts are split at their line breaks."""
    for line in difflib.unified_diff(_lines(before), _lines(after), "as received", "as sent", "", "", context, ""):
        yield line[:LINE_CHARS_MAX]


def _lines(body: bytes) -> list[str]:
    return list(_flatten(msgspec.json.decode(body), ""))


def _flatten(value: Json, indent: str) -> Iterator[str]:
    match value:
        case dict():
            for name, member in value.items():
                if isinstance(member, dict | list):
                    yield f"{indent}{name}:"
                    yield from _flatten(member, indent + "  ")
                else:
                    yield from _flatten(member, f"{indent}{name}: ")
        case list():
            for member in value:
                yield f"{indent}-"
                yield from _flatten(member, indent + "  ")
        case str():
            for line in value.split("\n"):
                yield indent + line
        case _:
            yield f"{indent}{msgspec.json.encode(value).decode()}"


def mask_line(line: str) -> str:
    """Replaces letters by x and digits by 0, except in member names, so that a diff reveals no prompt text."""
    sign, rest = line[:1], line[1:]
    match = re.match(r"\s*(?:[a-z_]+:|-)(?: |$)", rest)
    name = match[0] if match else ""
    return sign + name + re.sub(r"[^\W\d_]", "x", re.sub(r"\d", "0", rest[len(name) :]))
