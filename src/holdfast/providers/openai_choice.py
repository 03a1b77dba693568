"""Encodes and decodes the tool choice for OpenAI, whose two APIs wrap the tool's name differently."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.canonical.blocks import Json
from holdfast.canonical.encoding import plain_json
from holdfast.errors import UserError
from holdfast.providers.members import quoted, spliced

CHOICE = "tool_choice"
PARALLEL = "parallel_tool_calls"

# Our values are Anthropic's; OpenAI calls `any` `required`.
_OPENAI_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_CHOICES = {theirs: ours for ours, theirs in _OPENAI_CHOICES.items()}


class _Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


def spell_choice(tool_choice_json: str, *, nested: bool) -> dict[str, bytes]:
    """The request members for a tool choice; `nested` is the format of Chat Completions."""
    try:
        choice = msgspec.json.decode(spliced(tool_choice_json), type=_Choice)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        choice = None
    if choice is None or (choice.type == "tool") != (choice.name is not None):
        raise UserError('the tool choice must be {"type": "auto"}, "any" or "none", or a "tool" with its "name"')
    encoded = quoted(_OPENAI_CHOICES.get(choice.type, ""))
    if choice.name is not None:
        name = b'"name":' + quoted(choice.name)
        encoded = b'{"type":"function","function":{%b}}' % name if nested else b'{"type":"function",%b}' % name
    return {CHOICE: encoded} | ({PARALLEL: b"false"} if choice.disable_parallel_tool_use else {})


def read_choice(top: Mapping[str, bytes], *, nested: bool) -> tuple[str | None, frozenset[str]]:
    """The choice in our format, and the members it was decoded from; a choice only OpenAI has stays an extra field."""
    choice = _canonical_choice(msgspec.json.decode(top.get(CHOICE, b"null")), nested=nested)
    if choice is None:
        return None, frozenset()
    names = frozenset({CHOICE})
    if top.get(PARALLEL) == b"false":
        choice["disable_parallel_tool_use"] = True
        names |= {PARALLEL}
    return plain_json(choice).decode(), names


def _canonical_choice(choice: Json, *, nested: bool) -> dict[str, Json] | None:
    match choice:
        case str() if choice in _CHOICES:
            return {"type": _CHOICES[choice]}
        case {"type": "function", "function": {"name": str(name), **inner}, **others} if nested and not others | inner:
            return {"type": "tool", "name": name}
        case {"type": "function", "name": str(name), **others} if not nested and not others:
            return {"type": "tool", "name": name}
        case _:
            return None
