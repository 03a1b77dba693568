"""Browser sign-in: the key is stored in a cookie that scripts cannot read and other sites cannot send."""

from collections.abc import Mapping

import msgspec

from holdfast.events.records import KEY_COOKIE
from holdfast.service.context import AppContext
from holdfast.service.http.routes import (
    EmptyRequest,
    Route,
    RouteRequest,
    RouteResponse,
    decode_request_fields,
    get_summary,
)

# The cookie holds the key itself, so that restarts and replicas need no session state; HttpOnly keeps it from scripts
# and SameSite=Strict from requests of other sites (docs/decisions/0030). Not Secure: localhost is served over HTTP.
_COOKIE_ATTRIBUTES = "Path=/; HttpOnly; SameSite=Strict"
_encode = msgspec.json.Encoder().encode


class Visitor(msgspec.Struct, frozen=True):
    """The current caller, and whether sample sessions are available: `sample` is off unless the service simulates.

    `key_id` is the id of the caller's key, null without one. A service that `is_simulating` includes simulated sessions
    in every view, as the header of the switch does.
    """

    scope: str
    signed_in: bool
    sample: str
    is_simulating: bool
    key_id: str | None = None


def get_authorization(authorization: str | None, cookies: Mapping[str, str]) -> str | None:
    """The Authorization value of a request, from the header or else from the cookie."""
    if authorization is not None or KEY_COOKIE not in cookies:
        return authorization
    return f"Bearer {cookies[KEY_COOKIE]}"


async def get_visitor(context: AppContext, incoming: RouteRequest) -> RouteResponse:
    """The current caller, and whether sample sessions are available."""
    decode_request_fields(incoming, EmptyRequest)
    return RouteResponse(_encode(_visitor(context, incoming)))


async def sign_in(context: AppContext, incoming: RouteRequest) -> RouteResponse:
    """Store the request's key in a cookie, for use in a browser."""
    decode_request_fields(incoming, EmptyRequest)
    cookie = f"{KEY_COOKIE}={incoming.secret}; {_COOKIE_ATTRIBUTES}"
    # Without a secret there is no key to store: the service does not require one yet.
    headers = {} if incoming.secret is None else {"set-cookie": cookie}
    return RouteResponse(_encode(_visitor(context, incoming)), headers=headers)


async def sign_out(context: AppContext, incoming: RouteRequest) -> RouteResponse:
    """Delete the sign-in cookie."""
    decode_request_fields(incoming, EmptyRequest)
    expired_cookie = f"{KEY_COOKIE}=; {_COOKIE_ATTRIBUTES}; Max-Age=0"
    return RouteResponse(
        _encode(Visitor("", False, _sample(context), context.is_simulating)), headers={"set-cookie": expired_cookie}
    )


def _visitor(context: AppContext, incoming: RouteRequest) -> Visitor:
    key = incoming.key
    return Visitor(
        incoming.scope or "", key is not None, _sample(context), context.is_simulating, None if key is None else key.id
    )


def _sample(context: AppContext) -> str:
    if context.sample is None:
        return "off"
    return "playing" if context.sample.is_playing else "ready"


ROUTES: tuple[Route, ...] = (
    Route("GET", "/api/visitor", "read", get_summary(get_visitor), EmptyRequest, Visitor, get_visitor),
    Route("POST", "/api/sign_in", "read", get_summary(sign_in), EmptyRequest, Visitor, sign_in),
    Route("POST", "/api/sign_out", "read", get_summary(sign_out), EmptyRequest, Visitor, sign_out),
)
