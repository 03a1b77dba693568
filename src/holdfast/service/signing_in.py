"""How a page in a browser carries a key: in a cookie that no script can read, and no other site can send."""

from collections.abc import Mapping

import msgspec

from holdfast.events.access import COOKIE
from holdfast.service.routes import Answer, Asked, Nothing, Route, convert
from holdfast.service.service import Service

_RULES = "Path=/; HttpOnly; SameSite=Strict"

_encode = msgspec.json.Encoder().encode


class Visitor(msgspec.Struct, frozen=True):
    """Whose requests these are, and what the page can offer: `sample` is off unless the service simulates."""

    scope: str
    signed_in: bool
    sample: str


def carried(authorization: str | None, cookies: Mapping[str, str]) -> str | None:
    """What a request says of its key; what is said in a header comes first."""
    if authorization is not None or COOKIE not in cookies:
        return authorization
    return f"Bearer {cookies[COOKIE]}"


async def who(service: Service, asked: Asked) -> Answer:
    convert(asked, Nothing)
    return Answer(_encode(_visitor(service, asked)))


async def sign_in(service: Service, asked: Asked) -> Answer:
    convert(asked, Nothing)
    if asked.secret is None:
        # Nothing to keep: this machine needs no key yet.
        return Answer(_encode(_visitor(service, asked)))
    return Answer(_encode(_visitor(service, asked)), headers={"set-cookie": f"{COOKIE}={asked.secret}; {_RULES}"})


async def sign_out(service: Service, asked: Asked) -> Answer:
    convert(asked, Nothing)
    forgotten = f"{COOKIE}=; {_RULES}; Max-Age=0"
    return Answer(_encode(Visitor("", False, _sample(service))), headers={"set-cookie": forgotten})


def _visitor(service: Service, asked: Asked) -> Visitor:
    return Visitor(asked.scope or "", asked.key is not None, _sample(service))


def _sample(service: Service) -> str:
    if service.sample is None:
        return "off"
    return "playing" if service.sample.playing else "ready"


ROUTES: tuple[Route, ...] = (
    Route("GET", "/api/visitor", "read", "Whose key this is, and what the page can offer.", Nothing, Visitor, who),
    Route(
        "POST",
        "/api/sign_in",
        "read",
        "Keep the key that the request carries in a cookie, for a page in a browser.",
        Nothing,
        Visitor,
        sign_in,
    ),
    Route("POST", "/api/sign_out", "read", "Forget that cookie.", Nothing, Visitor, sign_out),
)
