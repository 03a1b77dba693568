"""Makes a model's tool call arguments valid, so that they can be sent back."""

import re

import msgspec

from holdfast.canonical.encoding import plain_json

# One limit for all, because the depth at which decoding fails differs by Python version.
NESTING_MAX = 100

_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_BRACKETS = re.compile(r"[{}\[\]]")


def legal_arguments(text: str) -> str:
    """The text if it is a JSON object, else an object that wraps it: providers refuse a history with invalid ones."""
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return plain_json({"INVALID_JSON": text}).decode()
    if _is_deeper(text, NESTING_MAX):
        return plain_json({"INVALID_JSON": text}).decode()
    return text


def _is_deeper(text: str, depth_max: int) -> bool:
    """Whether the JSON nests deeper. Brackets inside strings do not count."""
    if text.count("{") + text.count("[") <= depth_max:
        return False
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub("", text)):
        depth += 1 if bracket in "{[" else -1
        if depth > depth_max:
            return True
    return False
