"""Authenticates gateway requests, limits their rate, and chooses the provider credential each is forwarded with."""

import asyncio
import functools
import hashlib
import logging
import re
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from holdfast.clock import Clock
from holdfast.errors import StoreError
from holdfast.events.records import RequestCountStore
from holdfast.gateway.exchange import AuthenticatedRequest, GatewayCaller, GatewayRefusedError
from holdfast.gateway.http.client_addresses import MINUTE_SECONDS, FailedKeys
from holdfast.gateway.http.headers import CREDENTIAL_HEADERS, KEY_HEADER, Headers, get_header_value
from holdfast.gateway.key_limits import STORE_THREADS_MAX, KeyLimits, KeyLimitTable
from holdfast.gateway.routes import Target

logger = logging.getLogger(__name__)

# A revoked key keeps working for up to this long, in exchange for one store lookup per key instead of per request.
KEY_CACHE_SECONDS = 10.0
KEY_CACHE_MAX = 10_000

LOOKUP_SECONDS_MAX, KNOWN_SECONDS_MAX = 5.0, 1.0
"""How long a call waits for the store to say whose key it has, and one whose key was known a moment ago."""

RETRY_SECONDS = 5.0
"""A store that did not answer in time is asked again after this long; until then what is known counts."""

LOOKUP_THREADS_MAX = 4
LOOKUPS_MAX = 1_000

REQUEST_SHARE = 20
"""The store grants a twentieth of a minute's requests at a time."""

RATE_SECONDS_MAX = 1.0
RATE_RETRY_SECONDS = 5.0
"""A rate guards no money: a store that does not answer delays a request for a second, and is asked again later."""

_SUBSCRIPTION_PREFIXES = (b"sk-ant-oat", b"eyJ", b"ya29.")
"""Prefixes of subscription tokens: Anthropic OAuth, JWT (ChatGPT sign-in) and Google OAuth access tokens."""

_SIGNATURE = re.compile(rb"AWS4-\S+ Credential=([^/,\s]+)")
"""An authorization header by AWS's Signature Version 4, which covers the body; the group is the key's id."""

_METHOD_HEADERS = (b"x-http-method-override", b"x-http-method", b"x-method-override")

GATEWAY_KEY_PATTERN = re.compile(rb"(?:Bearer +)?(hf_[0-9a-f]{16}_[0-9a-f]{64})", re.IGNORECASE)

FindHolder = Callable[[str | None], "KeyHolder | None"]
"""Returns the holder of a gateway key, or None if no key is required and none was sent. May block on a store.

Raises GatewayRefusedError if the key is invalid, or if a key is required and missing.
"""


class KeyHolder(msgspec.Struct, frozen=True):
    key_id: str
    label: str | None = None
    user_id: str | None = None
    team_id: str | None = None
    limits: KeyLimits = KeyLimits()


class _KeyRate:
    """The requests of one key: those of the last minute here, and how many more of this minute the store granted."""

    def __init__(self) -> None:
        self.times: deque[float] = deque()
        self.minute = 0
        self.granted = 0
        self.is_exhausted = False
        self.lock = asyncio.Lock()


class RequestRates:
    """Limits the requests a minute of keys, together with all other gateways on the store.

    The store grants REQUEST_SHARE of a minute's limit at a time, so that most requests need no statement, and after a
    refusal none is made before the next minute. What one gateway was granted and does not use, others cannot use.
    In any 60 s this gateway lets at most the limit pass by itself; while the store is away only that holds.
    """

    def __init__(self, limits: KeyLimitTable, store: RequestCountStore, *, clock: Clock) -> None:
        self._limits, self._store, self._clock = limits, store, clock
        self._rates: dict[str, _KeyRate] = {}
        self._swept_minute = 0
        self._unavailable_until = 0.0
        self._threads = ThreadPoolExecutor(STORE_THREADS_MAX, thread_name_prefix="holdfast-rates")

    async def count_request(self, key_id: str) -> None:
        """Raises GatewayRefusedError if the key's request rate is exceeded."""
        limit = self._limits.get_limits(key_id).requests_a_minute
        if limit is None:
            return
        now, rate = self._clock(), self._rates.setdefault(key_id, _KeyRate())
        while rate.times and now - rate.times[0] >= MINUTE_SECONDS:
            rate.times.popleft()
        if len(rate.times) >= limit:
            raise _refuse_request(MINUTE_SECONDS - (now - rate.times[0]) if rate.times else MINUTE_SECONDS)
        # Before the store is asked, so that concurrent requests see each other.
        rate.times.append(now)
        async with rate.lock:
            if not await self._use_grant(key_id, rate, limit, now):
                rate.times.remove(now)
                raise _refuse_request(MINUTE_SECONDS - now % MINUTE_SECONDS)

    def close(self) -> None:
        self._threads.shutdown(wait=True)

    async def _use_grant(self, key_id: str, rate: _KeyRate, limit: int, now: float) -> bool:
        minute = int(now // MINUTE_SECONDS)
        if rate.minute != minute:
            rate.minute, rate.granted, rate.is_exhausted = minute, 0, False
        if not rate.granted and not rate.is_exhausted:
            rate.granted = await self._ask_store(key_id, minute, limit, now)
            rate.is_exhausted = not rate.granted
        if not rate.granted:
            return False
        rate.granted -= 1
        return True

    async def _ask_store(self, key_id: str, minute: int, limit: int, now: float) -> int:
        """How many requests are granted; 1 if the store cannot say."""
        if now < self._unavailable_until:
            return 1
        asked = asyncio.get_running_loop().run_in_executor(self._threads, self._take, key_id, minute, limit)
        try:
            async with asyncio.timeout(RATE_SECONDS_MAX):
                return await asyncio.shield(asked)
        except (StoreError, TimeoutError) as error:
            logger.warning("requests are counted for this gateway alone: %s", str(error) or "the store does not answer")
            asked.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._unavailable_until = now + RATE_RETRY_SECONDS
            return 1

    def _take(self, key_id: str, minute: int, limit: int) -> int:
        if self._swept_minute != minute:
            self._swept_minute = minute
            self._store.delete_request_counts(minute - 1)
        share = max(1, limit // REQUEST_SHARE)
        # The rest of a limit may be less than a share.
        counts = (share, 1) if share > 1 else (1,)
        return next((count for count in counts if self._store.take_requests(key_id, minute, count, limit=limit)), 0)


def _refuse_request(wait_seconds: float) -> GatewayRefusedError:
    return GatewayRefusedError(
        429, "this key exceeds its requests per minute", retry_after_seconds=int(wait_seconds) + 1
    )


class KeyAuthenticator:
    """Checks gateway keys and caches the result for KEY_CACHE_SECONDS."""

    def __init__(
        self,
        find_holder: FindHolder,
        limits: KeyLimitTable,
        *,
        rates: RequestRates,
        clock: Clock,
        salt: bytes,
        improve: bool = False,
        failed_keys: FailedKeys | None = None,
    ) -> None:
        """`failed_keys` is shared with the service, whose keys these are."""
        self._find_holder = find_holder
        self._limits, self._rates = limits, rates
        self._clock = clock
        self._salt = salt
        self._improve = improve
        self._cache: dict[bytes | None, tuple[float, KeyHolder | None]] = {}
        self._failed_keys = failed_keys or FailedKeys()
        self._lookups: dict[bytes | None, asyncio.Future[KeyHolder | None]] = {}
        self._unavailable_until = 0.0
        # Its own threads: lookups in a store that hangs must not keep others waiting.
        self._threads = ThreadPoolExecutor(LOOKUP_THREADS_MAX, thread_name_prefix="holdfast-keys")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def authenticate(
        self, target: Target, headers: Headers, *, is_call: bool = True, address: str = "", method: str = "POST"
    ) -> AuthenticatedRequest:
        key, key_header = _our_key(headers)
        holder = await self._holder(key, has_own_credential=key_header is None, address=address)
        credential = b"\n".join(value for name, value in headers if name in CREDENTIAL_HEADERS)
        if holder is None:
            if key_header is not None:
                raise GatewayRefusedError(401, "unknown or revoked gateway key")
            return AuthenticatedRequest(
                GatewayCaller(self._account(credential)), headers, self._improve and may_rewrite(target, headers)
            )
        if is_call:
            await self._rates.count_request(holder.key_id)
        if key_header is not None:
            self._limits.check_path(holder.key_id, target, method=method)
            provider_key = self._limits.get_provider_key(holder.key_id, target.mount)
            headers = _with_provider_key(headers, key_header, provider_key)
            credential = provider_key
        if target.reads_results:
            # The results of a batch are charged when they are read as a whole.
            headers = [header for header in headers if header[0] not in (b"range", b"if-range")]
        limits = self._limits.get_limits(holder.key_id)
        improve = self._improve or limits.improve
        caller = GatewayCaller(
            self._account(credential),
            holder.key_id,
            holder.label,
            user_id=holder.user_id,
            team_id=holder.team_id,
            has_budget=limits.needs_check,
        )
        return AuthenticatedRequest(caller, headers, improve and may_rewrite(target, headers))

    async def _holder(self, key: bytes | None, *, has_own_credential: bool, address: str) -> KeyHolder | None:
        now = self._clock()
        cached = self._cache.get(key)
        if cached is not None and now - cached[0] < KEY_CACHE_SECONDS:
            return cached[1]
        wait = self._failed_keys.find_wait_seconds(address, key, now) if cached is None else 0
        if wait:
            message = "too many requests from this address without a valid gateway key"
            raise GatewayRefusedError(429, message, retry_after_seconds=wait)
        try:
            holder = await self._look_up(key, now, is_known=cached is not None)
        except GatewayRefusedError as error:
            if error.status == 401:
                self._failed_keys.add(address, now)
            # Never cache a refusal: a key that was just created must work at once.
            self._cache.pop(key, None)
            raise
        except Exception:  # noqa: BLE001 - a failing key store must not fail the client's call
            # Fail open only for requests that carry the client's own provider credential and have no budget to check.
            if cached is not None or (has_own_credential and not self._needs_budget_check(key)):
                return cached[1] if cached is not None else None
            raise GatewayRefusedError(503, "the gateway cannot look up keys right now", retry_after_seconds=5) from None
        # Invalid keys are not cached, so only many valid keys can fill it; clearing is simple and rare.
        if len(self._cache) >= KEY_CACHE_MAX:
            self._cache.clear()
        self._cache[key] = (now, holder)
        if holder is not None:
            self._limits.set_stored_limits(holder.key_id, holder.limits)
        if key is not None and holder is not None:
            self._failed_keys.add_valid(key)
        return holder

    async def _look_up(self, key: bytes | None, now: float, *, is_known: bool) -> KeyHolder | None:
        """Raises TimeoutError if the store does not answer, or did not a moment ago."""
        asked = self._lookups.get(key)
        if now < self._unavailable_until or (asked is None and len(self._lookups) >= LOOKUPS_MAX):
            raise TimeoutError
        if asked is None:
            text = None if key is None else key.decode("latin-1")
            asked = asyncio.get_running_loop().run_in_executor(self._threads, self._find_holder, text)
            self._lookups[key] = asked
            asked.add_done_callback(functools.partial(self._forget_lookup, key))
        try:
            async with asyncio.timeout(KNOWN_SECONDS_MAX if is_known else LOOKUP_SECONDS_MAX):
                return await asyncio.shield(asked)
        except TimeoutError:
            self._unavailable_until = now + RETRY_SECONDS
            raise

    def _forget_lookup(self, key: bytes | None, asked: "asyncio.Future[KeyHolder | None]") -> None:
        del self._lookups[key]
        # Of one that nobody waits for any more, asyncio would log it.
        _ = asked.cancelled() or asked.exception()

    def _needs_budget_check(self, key: bytes | None) -> bool:
        if key is None or self._limits.when_unavailable == "allow":
            return False
        key_id = key.split(b"_")[1].decode() if GATEWAY_KEY_PATTERN.fullmatch(key) else ""
        return self._limits.get_limits(key_id).needs_check

    def _account(self, credential: bytes) -> str:
        """Pseudonymous id of a credential: equal for equal credentials within this process, and not reversible."""
        # A signature differs from request to request; the id of the key that it was made with does not.
        signed = _SIGNATURE.match(credential)
        credential = signed[1] if signed else credential
        return hashlib.blake2b(credential, key=self._salt, digest_size=8).hexdigest()


def _our_key(headers: Headers) -> tuple[bytes | None, bytes | None]:
    """The gateway key, and the provider credential header that carries it (None if it came in our own header)."""
    for name, value in headers:
        if name in CREDENTIAL_HEADERS and (match := GATEWAY_KEY_PATTERN.fullmatch(value.strip())):
            return match[1], name
    return get_header_value(headers, KEY_HEADER), None


def _with_provider_key(headers: Headers, key_header: bytes, provider_key: bytes) -> Headers:
    """Replaces the gateway key in `key_header`, and drops it from every other credential header.

    Some clients send the same key in several headers; none of them may reach the provider. Nor may a header that names
    another method: which paths the provider's key opens, and what is charged, depend on the method.
    """

    def replace_key(value: bytes) -> bytes:
        scheme, _, _ = value.rpartition(b" ")
        return b"%s %s" % (scheme, provider_key) if scheme else provider_key

    return [
        (name, replace_key(value) if name == key_header else value)
        for name, value in headers
        if name == key_header
        or not (
            name in _METHOD_HEADERS or (name in CREDENTIAL_HEADERS and GATEWAY_KEY_PATTERN.fullmatch(value.strip()))
        )
    ]


def may_rewrite(target: Target, headers: Headers) -> bool:
    """Whether a request may be changed: not if it is signed together with its body, nor if a subscription pays."""
    if any(name == b"authorization" and _SIGNATURE.match(value) for name, value in headers):
        return False
    # There the tokens that look like subscriptions are the usual credentials, and usage is billed.
    return target.provider in ("vertex", "azure") or not is_subscription(headers)


def is_subscription(headers: Headers) -> bool:
    """Whether a subscription pays for the request. Such tokens cover only the client's own unmodified requests."""
    for name, value in headers:
        if name == b"anthropic-beta" and b"oauth" in value:
            return True
        token = value.strip().rpartition(b" ")[2]
        if name in CREDENTIAL_HEADERS and token.startswith(_SUBSCRIPTION_PREFIXES):
            return True
    return False
