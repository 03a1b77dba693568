"""Browser sign-in: the key is stored in a cookie that scripts cannot read and other sites cannot send."""

from collections.abc import Mapping

import msgspec

from holdfast.events.access import COOKIE
from holdfast.service.routes import Answer, Asked, Nothing, Route, convert
from holdfast.service.service import Service

# The cookie holds the key itself, so that restarts and replicas need no session state; HttpOnly keeps it from scripts
# and SameSite=Strict from requests of other sites (docs/decisions/0030). Not Secure: localhost is served over HTTP.
_COOKIE_ATTRIBUTES = "Path=/; HttpOnly; SameSite=Strict"

_encode = msgspec.json.Encoder().encode


class Visitor(msgspec.Struct, frozen=True):
    """The current caller, and whether sample sessions are available: `sample` is off unless the service simulates."""

    scope: str
    signed_in: bool
    sample: str


def carried(authorization: str | None, cookies: Mapping[str, str]) -> str | None:
    """The Authorization value of a request, from the header or else from the cookie."""
    if authorization is not None or COOKIE not in cookies:
        return authorization
    return f"Bearer {cookies[COOKIE]}"


async def who(context: Service, incoming: Asked) -> Answer:
    convert(incoming, Nothing)
    return Answer(_encode(_visitor(context, incoming)))


async def sign_in(context: Service, incoming: Asked) -> Answer:
    convert(incoming, Nothing)
    if incoming.secret is None:
        # There is no key to store: the service does not require one yet.
        return Answer(_encode(_visitor(context, incoming)))
    return Answer(
        _encode(_visitor(context, incoming)),
        headers={"set-cookie": f"{COOKIE}={incoming.secret}; {_COOKIE_ATTRIBUTES}"},
    )


async def sign_out(context: Service, incoming: Asked) -> Answer:
    convert(incoming, Nothing)
    expired_cookie = f"{COOKIE}=; {_COOKIE_ATTRIBUTES}; Max-Age=0"
    return Answer(_encode(Visitor("", False, _sample(context))), headers={"set-cookie": expired_cookie})


def _visitor(context: Service, incoming: Asked) -> Visitor:
    return Visitor(incoming.scope or "", incoming.key is not None, _sample(context))


def _sample(context: Service) -> str:
    if context.sample is None:
        return "off"
    return "playing" if context.sample.playing else "ready"


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/api/visitor",
        "read",
        "The current caller, and whether sample sessions are available.",
        Nothing,
        Visitor,
        who,
    ),
    Route(
        "POST",
        "/api/sign_in",
        "read",
        "Store the request's key in a cookie, for use in a browser.",
        Nothing,
        Visitor,
        sign_in,
    ),
    Route("POST", "/api/sign_out", "read", "Delete the sign-in cookie.", Nothing, Visitor, sign_out),
)
