"""Who may use the gateway, with whose key the provider is asked, and how much they may spend."""

import asyncio
import hashlib
import re
from collections.abc import Callable

import msgspec

from holdfast.clock import Clock
from holdfast.gateway.exchange import Caller
from holdfast.gateway.forwarding import Admitted, TurnedAwayError
from holdfast.gateway.grants import Grants
from holdfast.gateway.headers import CREDENTIALS, OUR_KEY, header
from holdfast.gateway.reply import Headers
from holdfast.gateway.routing import Target

REMEMBERED_SECONDS = 10.0
REMEMBERED_MAX = 10_000

_SUBSCRIPTIONS = (b"sk-ant-oat", b"eyJ", b"ya29.")
"""How tokens begin that a person signed in for."""

OUR_KEYS = re.compile(rb"(?:Bearer +)?(hf_[0-9a-f]{16}_[0-9a-f]{64})", re.IGNORECASE)

Judge = Callable[[str | None], "Holder | None"]
"""Whose key it is; None where no key is needed and none was sent. May wait for a store.

Raises TurnedAwayError for a key that opens nothing, and for none where one is needed.
"""


class Holder(msgspec.Struct, frozen=True):
    key_id: str
    label: str | None = None
    user_id: str | None = None
    team_id: str | None = None


class KeyDoor:
    """Judges keys, and remembers for a few seconds what it found: revoking one takes so long."""

    def __init__(self, judge: Judge, grants: Grants, *, clock: Clock, salt: bytes, improve: bool = False) -> None:
        self._judge = judge
        self._grants = grants
        self._clock = clock
        self._salt = salt
        self._improve = improve
        self._remembered: dict[bytes | None, tuple[float, Holder | None]] = {}

    async def admit(self, target: Target, headers: Headers) -> Admitted:
        key, in_its_place = _our_key(headers)
        holder = await self._holder(key, passes=in_its_place is None)
        account = b"\n".join(value for name, value in headers if name in CREDENTIALS)
        if holder is None:
            if in_its_place is not None:
                raise TurnedAwayError(401, "this key is not known to the gateway, or no longer valid")
            return Admitted(Caller(self._account(account)), headers, self._improve and not is_subscription(headers))
        self._grants.check(holder.key_id, self._clock())
        if in_its_place is not None:
            secret = self._grants.provider_key(holder.key_id, target.mount)
            headers = _replaced(headers, in_its_place, secret)
            account = secret
        wanted = self._improve or self._grants.row(holder.key_id).improve
        caller = Caller(
            self._account(account), holder.key_id, holder.label, user_id=holder.user_id, team_id=holder.team_id
        )
        return Admitted(caller, headers, wanted and not is_subscription(headers))

    async def _holder(self, key: bytes | None, *, passes: bool) -> Holder | None:
        now = self._clock()
        known = self._remembered.get(key)
        if known is not None and now - known[0] < REMEMBERED_SECONDS:
            return known[1]
        try:
            holder = await asyncio.to_thread(self._judge, None if key is None else key.decode("latin-1"))
        except TurnedAwayError:
            self._remembered.pop(key, None)
            raise
        except Exception:  # noqa: BLE001 - whatever it was, a client's call does not stand or fall with our store
            if known is not None or passes:
                return known[1] if known is not None else None
            raise TurnedAwayError(503, "the gateway cannot look up its keys now", retry_after_seconds=5) from None
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[key] = (now, holder)
        return holder

    def _account(self, credential: bytes) -> str:
        """Tells one credential from another, for as long as this process lives, and tells neither."""
        return hashlib.blake2b(credential, key=self._salt, digest_size=8).hexdigest()


def _our_key(headers: Headers) -> tuple[bytes | None, bytes | None]:
    """Our key, and the provider's header that it stands in, where it stands in the place of a provider's key."""
    own = header(headers, OUR_KEY)
    for name, value in headers:
        if name in CREDENTIALS and (found := OUR_KEYS.fullmatch(value.strip())):
            return found[1], name
    return own, None


def _replaced(headers: Headers, in_its_place: bytes, secret: bytes) -> Headers:
    """With the provider's key in one header; a client that says ours in several must not tell it to the provider."""
    return [
        (name, _spelled(value, secret)) if name == in_its_place else (name, value)
        for name, value in headers
        if name == in_its_place or name not in CREDENTIALS or not OUR_KEYS.fullmatch(value.strip())
    ]


def _spelled(value: bytes, secret: bytes) -> bytes:
    bearer, _, _ = value.rpartition(b" ")
    return b"%s %s" % (bearer, secret) if bearer else secret


def is_subscription(headers: Headers) -> bool:
    """Whether a request is paid by a subscription: its tokens are for its own client's requests, as that wrote them."""
    for name, value in headers:
        if name == b"anthropic-beta" and b"oauth" in value:
            return True
        token = value.strip().rpartition(b" ")[2]
        if name in CREDENTIALS and token.startswith(_SUBSCRIPTIONS):
            return True
    return False
