"""A request of another program as a rewrite sees it, and the request that it returns."""

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.catalog.schema import Model
from holdfast.errors import UserError
from holdfast.providers.adapter import WireRequest
from holdfast.types.blocks import Json
from holdfast.types.request_buffer import RequestBuffer


class ClientRequest(NamedTuple):
    """A client's request, decoded and encoded by us.

    `previous_tail` is the last breakpoint's block in the previous request, if this request is unchanged up to it.
    """

    body: Mapping[str, Json]
    wire_request: WireRequest
    buffer: RequestBuffer
    model: Model
    session: str
    previous_tail: int | None = None


class RewrittenRequest(NamedTuple):
    """The body to send, and its decoded form: the same prompt with all breakpoints."""

    body: dict[str, Json]
    wire_request: WireRequest


def as_list(value: Json | None) -> list[Json]:
    if not isinstance(value, list):
        raise UserError(f"expected a list, got {type(value).__name__}")
    return value


def as_object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise UserError(f"expected an object, got {type(value).__name__}")
    return value
