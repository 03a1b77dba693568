"""Where the values of a JSON text stand, and how one is put in or taken out while all other bytes stay."""

import json

import msgspec

from holdfast.canonical.blocks import Json

_SPACES = " \t\r\n"
_INDENT = "  "


class Part(msgspec.Struct, frozen=True):
    """A member of an object, from its name on, or an item of an array; its value begins at `value_start`."""

    name: str | None
    start: int
    value_start: int
    end: int


class Held(msgspec.Struct, frozen=True):
    """An object or an array from its opening to behind its closing bracket, and what stands in it."""

    start: int
    end: int
    parts: tuple[Part, ...]

    def last(self, name: str) -> Part | None:
        """Of several members with one name the last counts."""
        return next((part for part in reversed(self.parts) if part.name == name), None)


def read_json(text: str) -> Json:
    """Raises ValueError for what is no JSON, NaN and Infinity included, or is nested too deeply."""
    try:
        value: Json = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def held_at(text: str, start: int) -> Held | None:
    """What begins there, of a text that is JSON; None where that is neither an object nor an array."""
    if text[start] not in "{[":
        return None
    parts: list[Part] = []
    at = _skip(text, start + 1)
    while text[at] not in "}]":
        begins, name = at, None
        if text[start] == "{":
            name, colon = _value(text, at)
            at = _skip(text, _skip(text, colon) + 1)
        _, end = _value(text, at)
        parts.append(Part(name if isinstance(name, str) else None, begins, at, end))
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at
    return Held(start, at + 1, tuple(parts))


def root_of(text: str) -> Held | None:
    return held_at(text, _skip(text, 0))


def put_last(text: str, held: Held, name: str | None, value: Json) -> str:
    """With one more member or item, written as those around it are: on lines of its own, or on the same line."""
    line_end = "\r\n" if "\r\n" in text else "\n"
    if held.parts:
        last = held.parts[-1]
        margin = _margin(text, last.start)
        if margin is None or "\n" not in text[held.start : last.start]:
            return f"{text[: last.end]}, {_spelled(name, value, None, '')}{text[last.end :]}"
        spelled = _spelled(name, value, _indent_of(text), f"{line_end}{margin}")
        return f"{text[: last.end]},{line_end}{margin}{spelled}{text[last.end :]}"
    before = text[text.rfind("\n", 0, held.start) + 1 : held.start]
    outer = before[: len(before) - len(before.lstrip(" \t"))]
    margin = f"{outer}{_indent_of(text)}"
    spelled = _spelled(name, value, _indent_of(text), f"{line_end}{margin}")
    return f"{text[: held.start + 1]}{line_end}{margin}{spelled}{line_end}{outer}{text[held.end - 1 :]}"


def without_part(text: str, held: Held, index: int) -> str:
    """Less one member or item, and the comma and the spaces that set it apart."""
    part, count = held.parts[index], len(held.parts)
    if count == 1:
        return text[: held.start + 1] + text[held.end - 1 :]
    if index == count - 1:
        return text[: held.parts[index - 1].end] + text[part.end :]
    return text[: part.start] + text[held.parts[index + 1].start :]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _value(text: str, at: int) -> tuple[Json, int]:
    return json.JSONDecoder().raw_decode(text, at)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACES:
        at += 1
    return at


def _margin(text: str, start: int) -> str | None:
    """What a line has before this place; None where that is more than spaces."""
    margin = text[text.rfind("\n", 0, start) + 1 : start]
    return None if margin.strip(" \t") else margin


def _indent_of(text: str) -> str:
    root = root_of(text)
    margin = _margin(text, root.parts[0].start) if root and root.parts else None
    return margin or _INDENT


def _spelled(name: str | None, value: Json, indent: str | None, line: str) -> str:
    spelled = json.dumps(value, indent=indent, ensure_ascii=False).replace("\n", line)
    return spelled if name is None else f"{json.dumps(name, ensure_ascii=False)}: {spelled}"
