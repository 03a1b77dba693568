"""Edits JSON text in place: adds or removes a member or item while all other bytes stay unchanged."""

import json

import msgspec

from holdfast.types.blocks import Json

_SPACES = " \t\r\n"
_INDENT = "  "


class JsonPart(msgspec.Struct, frozen=True):
    """A member of an object, including its name, or an item of an array; its value starts at `value_start`."""

    name: str | None
    start: int
    value_start: int
    end: int


class JsonContainer(msgspec.Struct, frozen=True):
    """An object or array with its parts; start is inclusive, end is exclusive, brackets included."""

    start: int
    end: int
    parts: tuple[JsonPart, ...]

    def find_last(self, name: str) -> JsonPart | None:
        """The last member with this name, which is the one that JSON parsers use."""
        return next((part for part in reversed(self.parts) if part.name == name), None)


def read_json(text: str) -> Json:
    """Raises ValueError for invalid JSON, including NaN and Infinity, and for too deep nesting."""
    try:
        value: Json = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def find_container(text: str, start: int) -> JsonContainer | None:
    """The object or array that starts at `start` of a valid JSON text; None for any other value."""
    if text[start] not in "{[":
        return None
    parts: list[JsonPart] = []
    position = _skip_spaces(text, start + 1)
    while text[position] not in "}]":
        part_start, name = position, None
        if text[start] == "{":
            name, colon = _decode_value(text, position)
            position = _skip_spaces(text, _skip_spaces(text, colon) + 1)
        _, end = _decode_value(text, position)
        parts.append(JsonPart(name if isinstance(name, str) else None, part_start, position, end))
        position = _skip_spaces(text, end)
        position = _skip_spaces(text, position + 1) if text[position] == "," else position
    return JsonContainer(start, position + 1, tuple(parts))


def find_root(text: str) -> JsonContainer | None:
    return find_container(text, _skip_spaces(text, 0))


def append_part(text: str, container: JsonContainer, name: str | None, value: Json) -> str:
    """Append a member or item in the style of its neighbours: on its own lines, or on the same line."""
    line_end = "\r\n" if "\r\n" in text else "\n"
    if container.parts:
        last = container.parts[-1]
        margin = _indentation_at(text, last.start)
        if margin is None or "\n" not in text[container.start : last.start]:
            return f"{text[: last.end]}, {_encode_part(name, value, None, '')}{text[last.end :]}"
        encoded = _encode_part(name, value, _indent_of(text), f"{line_end}{margin}")
        return f"{text[: last.end]},{line_end}{margin}{encoded}{text[last.end :]}"
    before = text[text.rfind("\n", 0, container.start) + 1 : container.start]
    outer = before[: len(before) - len(before.lstrip(" \t"))]
    margin = f"{outer}{_indent_of(text)}"
    encoded = _encode_part(name, value, _indent_of(text), f"{line_end}{margin}")
    return f"{text[: container.start + 1]}{line_end}{margin}{encoded}{line_end}{outer}{text[container.end - 1 :]}"


def remove_part(text: str, container: JsonContainer, index: int) -> str:
    """Remove one member or item together with its comma and whitespace."""
    part, count = container.parts[index], len(container.parts)
    if count == 1:
        return text[: container.start + 1] + text[container.end - 1 :]
    if index == count - 1:
        return text[: container.parts[index - 1].end] + text[part.end :]
    return text[: part.start] + text[container.parts[index + 1].start :]


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _decode_value(text: str, at: int) -> tuple[Json, int]:
    return json.JSONDecoder().raw_decode(text, at)


def _skip_spaces(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACES:
        at += 1
    return at


def _indentation_at(text: str, start: int) -> str | None:
    """The indentation before a position; None if the line has other text before it."""
    margin = text[text.rfind("\n", 0, start) + 1 : start]
    return None if margin.strip(" \t") else margin


def _indent_of(text: str) -> str:
    root = find_root(text)
    margin = _indentation_at(text, root.parts[0].start) if root and root.parts else None
    return margin or _INDENT


def _encode_part(name: str | None, value: Json, indent: str | None, line_break: str) -> str:
    encoded = json.dumps(value, indent=indent, ensure_ascii=False).replace("\n", line_break)
    return encoded if name is None else f"{json.dumps(name, ensure_ascii=False)}: {encoded}"
