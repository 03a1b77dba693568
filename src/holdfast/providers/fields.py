"""What a request says in fields that are not part of every provider's request."""

import msgspec

from holdfast.canonical.encoding import canonical_json
from holdfast.canonical.prompt import Parameters


def extra_field(parameters: Parameters, name: str) -> object:
    """A field that is not part of every provider's request; None where it is absent or unreadable."""
    return decoded(dict(parameters.extra).get(name))


def decoded(text: str | None) -> object:
    """What JSON text holds; None where it is absent or unreadable."""
    try:
        return msgspec.json.decode(text) if text is not None else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def field_of(value: object, *names: str) -> object:
    """A member of nested JSON objects; None where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def same_spelling(text: str | None) -> str | None:
    value = decoded(text)
    return None if value is None else canonical_json(value).decode()
