"""Describes one method of an SDK client: how its arguments are rewritten and how its streamed items are encoded."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, cast

from holdfast.catalog.schema import Model
from holdfast.errors import UserError
from holdfast.providers.adapter import Adapter, WireRequest
from holdfast.providers.sse import encode_event
from holdfast.types.blocks import Json
from holdfast.types.json_encoding import encode_json
from holdfast.types.request_buffer import RequestBuffer


class ClientRequest(NamedTuple):
    """A caller's request, decoded and encoded by us.

    `previous_tail` is the last breakpoint's block in the previous request, if this request is unchanged up to it.
    """

    body: Mapping[str, Json]
    wire_request: WireRequest
    buffer: RequestBuffer
    model: Model
    session: str
    previous_tail: int | None = None


Arguments = dict[str, object]


class RewrittenRequest(NamedTuple):
    """The arguments to send, and the request that they encode: the same prompt with all breakpoints."""

    arguments: Arguments
    wire_request: WireRequest


def encode_bare_event(item: Mapping[str, Json]) -> bytes:
    """A streamed item as a server-sent event without a name."""
    return encode_event(encode_json(item))


def encode_named_event(item: Mapping[str, Json]) -> bytes:
    """A streamed item as a server-sent event named by its type."""
    return encode_event(encode_json(item), str(item.get("type", "")))


class ClientMethod(NamedTuple):
    """`left_out` are arguments that are not sent in the body; `closing` are the bytes that end a stream.

    `opens_stream` is true for a method that returns a context manager around a stream.
    """

    adapter: Adapter
    rewrite: Callable[[Arguments, ClientRequest], RewrittenRequest]
    as_event: Callable[[Mapping[str, Json]], bytes]
    left_out: frozenset[str] = frozenset()
    closing: bytes = b""
    opens_stream: bool = False
    is_added_item: Callable[[Arguments, Arguments, Mapping[str, Json]], bool] = lambda arguments, sent, item: False
    """Whether a streamed item exists only because of an argument that we added."""


_ABSENT = frozenset({"NotGiven", "Omit"})
"""Names of the SDKs' sentinel classes for an argument that was not given."""

NOT_IN_BODY = frozenset({"extra_headers", "extra_query", "extra_body", "timeout"})
"""Arguments that are not sent in the body under their own name."""


def is_absent(value: object) -> bool:
    return type(value).__name__ in _ABSENT


def materialize_iterators(value: object) -> object:
    """The value with iterators turned into lists, so that both we and the client can read them."""
    if isinstance(value, Iterator) and not hasattr(value, "read"):
        return [materialize_iterators(part) for part in value]
    if isinstance(value, list | tuple):
        parts = [materialize_iterators(part) for part in value]
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else parts
    if isinstance(value, dict):
        members = {name: materialize_iterators(member) for name, member in value.items()}
        return value if all(members[name] is value[name] for name in members) else members
    return value


def _refuse_value(value: object) -> Json:
    raise UserError(f"cannot convert an argument of type {type(value).__name__} to JSON")


def describe_value(value: object) -> Json:
    """What is recorded of a value without a JSON form; the client may know how to send it."""
    return {"type": "unreadable", "class": type(value).__name__}


def to_json(value: object, default: Callable[[object], Json] = _refuse_value) -> Json:
    """The value as JSON; `default` converts values without a JSON form, such as an open file. Raises UserError."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): to_json(member, default) for name, member in value.items() if not is_absent(member)}
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        left_out = getattr(value, "__api_exclude__", None)
        dumped: object = dump(mode="json", exclude_unset=True, by_alias=True, exclude=left_out, warnings=False)
        return to_json(dumped, default)
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray) and not hasattr(value, "read"):
        return [to_json(part, default) for part in value]
    return default(value)


def client_body(
    arguments: Mapping[str, object],
    *,
    left_out: frozenset[str] = frozenset(),
    default: Callable[[object], Json] = _refuse_value,
) -> dict[str, Json]:
    """The JSON object that the client sends for these arguments."""
    unsent = NOT_IN_BODY | left_out
    sent = {name: value for name, value in arguments.items() if name not in unsent and not is_absent(value)}
    body = {name: to_json(value, default) for name, value in sent.items()}
    return body | extra_body_members(arguments, default)


def extra_body_members(
    arguments: Mapping[str, object], default: Callable[[object], Json] = _refuse_value
) -> dict[str, Json]:
    """The caller's `extra_body`, whose members override the arguments."""
    value = arguments.get("extra_body")
    if value is None or is_absent(value):
        return {}
    extra = to_json(value, default)
    if not isinstance(extra, dict):
        raise UserError("extra_body must be an object")
    return extra


def block_members(value: object) -> Mapping[str, object]:
    """A block's members: the caller's dict, or the JSON form of an SDK object."""
    if isinstance(value, Mapping):
        return value
    encoded = to_json(value)
    if not isinstance(encoded, dict):
        raise UserError(f"expected an object, got {type(value).__name__}")
    return cast("Mapping[str, object]", encoded)  # Json is narrower than object, but a dict's values are invariant.


def list_parts(value: object) -> list[object]:
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        return list(value)
    raise UserError(f"expected a list, got {type(value).__name__}")
