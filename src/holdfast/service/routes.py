"""What a route is: one value from which decoding, access, errors and the OpenAPI document are made."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Literal, TypeVar

import msgspec

from holdfast.events.access import KeyRow
from holdfast.service.service import Service

Method = Literal["GET", "POST", "PUT", "DELETE"]

Rule = Literal["open", "read", "admin", "agent", "caller"]
"""Who may: anybody; keys that may read; admins; admins, and the agent that the path names; whom the route allows."""

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
PLAIN_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class NoReply(msgspec.Struct, frozen=True):
    """The answer is no JSON."""


class Answer(msgspec.Struct, frozen=True):
    """What goes back; an iterator is sent as it comes."""

    body: bytes | AsyncIterator[bytes]
    content_type: str = JSON
    status: int = 200
    headers: Mapping[str, str] = {}


class Asked(msgspec.Struct, frozen=True):
    """What came in: fields by name from path and query, which are text, or from path and body; a header; who asks.

    `key` is None where none was sent because none is needed; `secret` is that key as it was given.
    """

    fields: Mapping[str, object]
    is_text: bool
    last_event_id: str | None = None
    scope: str | None = None
    key: KeyRow | None = None
    secret: str | None = None


class Route(msgspec.Struct, frozen=True):
    """`keyless`: without a key a request from this machine acts as an admin's, until a key exists.

    `refusals` are the statuses that this route may answer with, beside those that every route may; `successes` those
    of what was done. `denied` is the code for a key that may not. `body_optional`: the route says what is missing.
    `unfit_status` is that of a body that does not fit; `retry_code` says that the store failed, and to try again.
    `check_holder` refuses a key that may not ask of what the path names: who may not is told so, and not what is wrong
    with the rest of what was said. `check_served` refuses everybody where the service has no such route.
    """

    method: Method
    path: str
    rule: Rule
    summary: str
    request: type[msgspec.Struct]
    reply: type[msgspec.Struct]
    respond: Callable[[Service, Asked], Awaitable[Answer]]
    keyless: bool = True
    content_type: str = JSON
    refusals: tuple[int, ...] = ()
    successes: tuple[int, ...] = (200,)
    denied: str = "not_allowed"
    body_optional: bool = False
    unfit_status: int = 422
    retry_code: str | None = None
    check_holder: Callable[[Service, KeyRow, Mapping[str, str]], Awaitable[None]] | None = None
    check_served: Callable[[Service], object] | None = None

    @property
    def path_names(self) -> tuple[str, ...]:
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    @property
    def other_names(self) -> tuple[str, ...]:
        """Fields that come from the query or the body."""
        names = (field.encode_name for field in msgspec.structs.fields(self.request))
        return tuple(name for name in names if name not in self.path_names)

    @property
    def needs_body(self) -> bool:
        """What says something, or must; only a POST that has a default for everything may come without a body."""
        if self.body_optional:
            return False
        fields = (field for field in msgspec.structs.fields(self.request) if field.encode_name in self.other_names)
        return any(self.method == "PUT" or field.required for field in fields)


class OneSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    session_id: str


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request that says no more than its path."""


Request = TypeVar("Request", bound=msgspec.Struct)
Reply = TypeVar("Reply", bound=msgspec.Struct)

_encode = msgspec.json.Encoder().encode


def route(
    method: Method,
    path: str,
    run: Callable[[Service, Request], Awaitable[Reply]],
    *,
    request: type[Request],
    reply: type[Reply],
    rule: Rule,
    summary: str,
    refusals: tuple[int, ...] = (),
    keyless: bool = True,
) -> Route:
    """A route that answers with JSON."""

    async def respond(service: Service, asked: Asked) -> Answer:
        return Answer(_encode(await run(service, convert(asked, request))))

    return Route(method, path, rule, summary, request, reply, respond, keyless=keyless, refusals=refusals)


def raw_route(
    path: str,
    run: Callable[[Service, Request, str | None], Awaitable[Answer]],
    *,
    request: type[Request],
    rule: Rule,
    summary: str,
    content_type: str,
    refusals: tuple[int, ...] = (),
) -> Route:
    """A route that answers with something else, and may look at the id of the last event that was seen."""

    async def respond(service: Service, asked: Asked) -> Answer:
        return await run(service, convert(asked, request), asked.last_event_id)

    return Route("GET", path, rule, summary, request, NoReply, respond, content_type=content_type, refusals=refusals)


def convert(asked: Asked, request: type[Request]) -> Request:
    """Raises msgspec.ValidationError, which names the field."""
    return msgspec.convert(asked.fields, request, strict=not asked.is_text)
