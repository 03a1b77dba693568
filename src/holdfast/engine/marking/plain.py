"""Converts an SDK client's arguments to the JSON body that it would send."""

from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from holdfast.canonical.blocks import Json
from holdfast.errors import UserError

Arguments = dict[str, object]

_ABSENT = frozenset({"NotGiven", "Omit"})
"""Names of the SDKs' sentinel classes for an argument that was not given."""

NOT_SENT = frozenset({"extra_headers", "extra_query", "extra_body", "timeout"})
"""Arguments that are not sent in the body under their own name."""


def is_absent(value: object) -> bool:
    return type(value).__name__ in _ABSENT


def settled(value: object) -> object:
    """The value with iterators turned into lists, so that both we and the client can read them."""
    if isinstance(value, Iterator) and not hasattr(value, "read"):
        return [settled(part) for part in value]
    if isinstance(value, list | tuple):
        parts = [settled(part) for part in value]
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else parts
    if isinstance(value, dict):
        members = {name: settled(member) for name, member in value.items()}
        return value if all(members[name] is value[name] for name in members) else members
    return value


def plain(value: object) -> Json:
    """The value as JSON; `UserError` for values without a JSON form, such as an open file."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(member) for name, member in value.items() if not is_absent(member)}
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        left_out = getattr(value, "__api_exclude__", None)
        dumped: object = dump(mode="json", exclude_unset=True, by_alias=True, exclude=left_out, warnings=False)
        return plain(dumped)
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray) and not hasattr(value, "read"):
        return [plain(part) for part in value]
    raise UserError(f"cannot convert an argument of type {type(value).__name__} to JSON")


def body_of(arguments: Mapping[str, object], *, left_out: frozenset[str] = frozenset()) -> dict[str, Json]:
    """The JSON object that the client sends for these arguments."""
    unsent = NOT_SENT | left_out
    sent = {name: value for name, value in arguments.items() if name not in unsent and not is_absent(value)}
    body = {name: plain(value) for name, value in sent.items()}
    return body | extra_body(arguments)


def extra_body(arguments: Mapping[str, object]) -> dict[str, Json]:
    """The caller's `extra_body`, whose members override the arguments."""
    value = arguments.get("extra_body")
    if value is None or is_absent(value):
        return {}
    extra = plain(value)
    if not isinstance(extra, dict):
        raise UserError("extra_body must be an object")
    return extra


def members_of(value: object) -> Mapping[str, object]:
    """A block's members: the caller's dict, or the JSON form of an SDK object."""
    if isinstance(value, Mapping):
        return value
    encoded = plain(value)
    if not isinstance(encoded, dict):
        raise UserError(f"expected an object, got {type(value).__name__}")
    return cast("Mapping[str, object]", encoded)  # Json is narrower than object, but a dict's values are invariant.


def parts_of(value: object) -> list[object]:
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        return list(value)
    raise UserError(f"expected a list, got {type(value).__name__}")
