"""Reads provider-specific fields of a request, which are carried as JSON text."""

import msgspec

from holdfast.canonical.encoding import canonical_json
from holdfast.canonical.prompt import Parameters


def extra_field(parameters: Parameters, name: str) -> object:
    """The decoded value of an extra field; None if absent or unreadable."""
    return decoded(dict(parameters.extra).get(name))


def decoded(text: str | None) -> object:
    """The value of a JSON text; None if absent or unreadable."""
    try:
        return msgspec.json.decode(text) if text is not None else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def field_of(value: object, *names: str) -> object:
    """A member of nested JSON objects; None if any of them is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def same_spelling(text: str | None) -> str | None:
    """The JSON text in canonical form, so that equal values compare equal; None if absent or unreadable."""
    value = decoded(text)
    return None if value is None else canonical_json(value).decode()
