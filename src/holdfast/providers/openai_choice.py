"""Which tool the model shall call: our words for it, and OpenAI's, whose two APIs wrap a name differently."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.canonical.blocks import Json
from holdfast.canonical.encoding import plain_json
from holdfast.errors import UserError
from holdfast.providers.members import quoted, spliced

CHOICE = "tool_choice"
PARALLEL = "parallel_tool_calls"

_WORDS = {"auto": "auto", "any": "required", "none": "none"}
_OUR_WORDS = {theirs: ours for ours, theirs in _WORDS.items()}


class _Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


def spell_choice(tool_choice_json: str, *, nested: bool) -> dict[str, bytes]:
    """The members that say it; `nested` is the way of chat completions."""
    try:
        choice = msgspec.json.decode(spliced(tool_choice_json), type=_Choice)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        choice = None
    if choice is None or (choice.type == "tool") != (choice.name is not None):
        raise UserError('the tool choice must be {"type": "auto"}, "any" or "none", or a "tool" with its "name"')
    wanted = quoted(_WORDS.get(choice.type, ""))
    if choice.name is not None:
        named = b'"name":' + quoted(choice.name)
        wanted = b'{"type":"function","function":{%b}}' % named if nested else b'{"type":"function",%b}' % named
    return {CHOICE: wanted} | ({PARALLEL: b"false"} if choice.disable_parallel_tool_use else {})


def read_choice(top: Mapping[str, bytes], *, nested: bool) -> tuple[str | None, frozenset[str]]:
    """The choice in our words, and the members that it was read from; what we have no words for is not read."""
    wanted = _our_words(msgspec.json.decode(top.get(CHOICE, b"null")), nested=nested)
    if wanted is None:
        return None, frozenset()
    names = frozenset({CHOICE})
    if top.get(PARALLEL) == b"false":
        wanted["disable_parallel_tool_use"] = True
        names |= {PARALLEL}
    return plain_json(wanted).decode(), names


def _our_words(choice: Json, *, nested: bool) -> dict[str, Json] | None:
    match choice:
        case str() if choice in _OUR_WORDS:
            return {"type": _OUR_WORDS[choice]}
        case {"type": "function", "function": {"name": str(name), **inner}, **others} if nested and not others | inner:
            return {"type": "tool", "name": name}
        case {"type": "function", "name": str(name), **others} if not nested and not others:
            return {"type": "tool", "name": name}
        case _:
            return None
