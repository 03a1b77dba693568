"""Explicit caches (Gemini CachedContent) of forwarded conversations: whether one pays, and what to send for it.

A cache holds the head (tools, system text, tool choice) of the requests of one credential to one model, whatever
conversation they belong to. Nothing is sent from here: the gateway and wrapped clients send what `begin` asks for, with
the credential of the call that waits for it. Several processes on one store have one cache for a head: the one that
creates it holds a lease, whose value names the cache.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from decimal import Decimal
from typing import Literal

import msgspec
from msgspec.structs import replace

from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.schema import Price
from holdfast.economics.cost import storage_usd
from holdfast.engine.cache.message_tree import PlannedConversation
from holdfast.engine.inject.gemini_body import GeminiBody
from holdfast.engine.leases import ProcessLeases
from holdfast.errors import ProviderError
from holdfast.events.payloads.cache import CacheSettings, ExplicitCacheAction, ExplicitCacheChanged
from holdfast.gateway.http.headers import CREDENTIAL_HEADERS, Headers
from holdfast.gateway.rewrite.request_analysis import RequestAnalysis
from holdfast.planning.explicit_cache import (
    CreateCache,
    ExplicitCacheConfig,
    ExplicitCacheState,
    ExplicitCacheStep,
    ExtendCache,
    SkipCache,
    UseCache,
    WantedPrefix,
    plan_explicit_cache,
)
from holdfast.providers.adapter import Endpoint, ExplicitCacheEntry
from holdfast.providers.gemini import gemini
from holdfast.providers.gemini.cached_content import CREATE_CACHE
from holdfast.types.json_encoding import sha256_hex

REFUSED_STATUSES = (400, 403, 404)
"""Gemini reports a missing cache as 403; whatever the wording, the request may pass without the cache."""

CACHE_SECONDS_MAX = 20.0
"""How long a call waits for a request about its cache; then it is sent without one."""

CACHE_RESPONSE_BYTES_MAX = 1_000_000
PREFIXES_MAX = 10_000
LEASE_PREFIX = "explicit cache"

# Other APIs with Gemini's format, such as Vertex, have their caches elsewhere.
_API_PATH = re.compile(r"/v1(?:beta)?/models/[^/:]+:(?:stream)?[gG]enerateContent")
_QUERY_KEY = re.compile(rb"(?:^|&)(key=[^&]+)")
_PROJECT_HEADER = b"x-goog-user-project"


def find_query_key(query: bytes) -> bytes:
    """The credential that Gemini takes in the query, as `key=...`; empty if there is none."""
    found = _QUERY_KEY.search(query)
    return found[1] if found else b""


def identify_credential(headers: Headers, query: bytes, authority: bytes) -> str:
    """Equal for calls that may share a cache: of one credential, for one project, at one host. Empty without one."""
    named = [b"%b:%b" % pair for pair in headers if pair[0] in (*CREDENTIAL_HEADERS, _PROJECT_HEADER)]
    key = find_query_key(query)
    return sha256_hex(b"\n".join((authority, key, *sorted(named)))) if named or key else ""


class CacheRequest(msgspec.Struct, frozen=True):
    """A request about the cache, to be sent before the call."""

    action: Literal["created", "extended", "deleted"]
    endpoint: Endpoint
    body: bytes
    reason: str


class _Prefix:
    """What is known of the cache of one head and credential; `is_own` if this process created it."""

    def __init__(self, lease: str) -> None:
        self.lease = lease
        self.cache: ExplicitCacheState | None = None
        self.is_own = False
        self.is_changing = False
        self.is_refused = False
        self.lost_name = ""


class CacheUse:
    """The explicit cache of one call: a `request` to send first, the `cache` to refer to, and what has `changed`."""

    def __init__(
        self,
        prefix: _Prefix,
        prompt: GeminiBody,
        wanted: WantedPrefix,
        price: Price,
        *,
        conversation: PlannedConversation,
        version: str,
    ) -> None:
        self.prefix = prefix
        self.conversation = conversation
        self.wanted = wanted
        self.price = price
        self.request: CacheRequest | None = None
        self.cache: ExplicitCacheState | None = None
        self.changed: list[ExplicitCacheChanged] = []
        self.is_doubtful = False
        self._prompt = prompt
        self._version = version

    def encode(self) -> bytes | None:
        """The body that refers to the cache; None if there is none to refer to."""
        if self.cache is None:
            return None
        body = self._prompt.encode_with_cache(self.cache.name)
        self.conversation.is_head_stored = True
        return body

    def take_changes(self) -> tuple[ExplicitCacheChanged, ...]:
        changed, self.changed = tuple(self.changed), []
        return changed

    def plan_step(self, step: ExplicitCacheStep, config: ExplicitCacheConfig) -> None:
        match step:
            case UseCache(cache):
                self.cache = cache
            case ExtendCache(cache, reason):
                self.cache = cache
                extending = gemini.encode_extend_cache(cache.name, ttl_seconds=config.ttl_seconds)
                self.request = CacheRequest("extended", *extending, reason)
            case CreateCache(reason):
                body = self._prompt.encode_cached_content(ttl_seconds=config.ttl_seconds)
                self.request = CacheRequest("created", CREATE_CACHE, body, reason)
            case SkipCache(reason, delete):
                if delete is not None:
                    self.request = CacheRequest("deleted", *gemini.encode_delete_cache(delete.name), reason)
        if self.request is not None:
            # In the version of the API that the client's own calls use.
            endpoint = self.request.endpoint
            version, collection = self._version, endpoint.path.split("/", 2)[2]
            self.request = replace(self.request, endpoint=replace(endpoint, path=f"/{version}/{collection}"))

    def record(
        self,
        action: ExplicitCacheAction,
        cache: ExplicitCacheState,
        reason: str,
        *,
        cost_usd: Decimal = Decimal(0),
        storage_cost_usd: Decimal = Decimal(0),
    ) -> None:
        described = (cache.name, cache.model, cache.digest, cache.tokens, cache.expires_at)
        self.changed.append(ExplicitCacheChanged(action, *described, cost_usd, storage_cost_usd, reason))

    def price_storage(self, cache: ExplicitCacheState, seconds: float) -> Decimal:
        return storage_usd(cache.tokens, max(0.0, seconds), self.price)


class ExplicitCaches:
    """The explicit caches that one process knows. Thread-safe; `begin` may wait for the store."""

    def __init__(
        self,
        config: ExplicitCacheConfig,
        *,
        read_settings: Callable[[], CacheSettings] | None = None,
        leases: ProcessLeases | None = None,
    ) -> None:
        """Without `leases`, no other process has caches of the same credential."""
        self._config = config
        self._read_settings = read_settings
        self._leases = leases
        self._prefixes: OrderedDict[tuple[str, bytes], _Prefix] = OrderedDict()
        self._lock = threading.Lock()

    def begin(
        self, analysis: RequestAnalysis, body: bytes, *, path: str, credential: str, at: float, is_enabled: bool = True
    ) -> CacheUse | None:
        """What a call that sends `body` does about its cache; None if it has none and gets none.

        A use with a request is ended by `finish`. May raise anything: then the call is sent as it is.
        """
        call, row = analysis.call, analysis.row
        if analysis.adapter is not gemini or not credential or not _API_PATH.fullmatch(path):
            return None
        call.conversation.is_head_stored = False
        head, floor = call.conversation.head, row.cache.explicit_tokens_min
        tokens = sum(head.tokens)
        if not row.prices or not floor or tokens < floor:
            return None
        prefix = self._find_prefix((credential, head.key), body, path=path, at=at)
        if prefix.is_refused:
            return None
        config = self._configure() if is_enabled else replace(self._config, ttl_seconds=0)
        wanted = WantedPrefix(row.id, call.digests[head.count - 1].digest, tokens)
        price, (first, last) = price_at(row, utc_date(at), tokens), head.uncached_span
        with self._lock:
            step = plan_explicit_cache(
                prefix.cache,
                wanted,
                config,
                rules=row.cache,
                price=price,
                uncached_calls=head.uncached_calls,
                at=at,
                uncached_seconds=last - first,
                implicit_reads=head.implicit_reads,
            )
            # What another call is just changing, or another process has created, is used as it is.
            if isinstance(step, ExtendCache) and (prefix.is_changing or not prefix.is_own):
                step = UseCache(step.cache)
            is_change = not isinstance(step, UseCache) and not prefix.is_changing
            is_change = is_change and (not isinstance(step, SkipCache) or (step.delete is not None and prefix.is_own))
            if not is_change and not isinstance(step, UseCache):
                return None
            prefix.is_changing = prefix.is_changing or is_change
        prompt, version = GeminiBody(body, path=path), path.split("/")[1]
        use = CacheUse(prefix, prompt, wanted, price, conversation=call.conversation, version=version)
        use.plan_step(step, config)
        if isinstance(step, CreateCache) and not self._claim(prefix, at):
            use.request, use.cache, prefix.is_changing = None, prefix.cache, False
        return use if use.request is not None or use.cache is not None else None

    def finish(self, use: CacheUse, status: int, answer: bytes, *, at: float) -> None:
        """The request of the use was answered; status 0 if it was not. What it changed is in `use.changed`."""
        request, prefix = use.request, use.prefix
        if request is None:
            return
        try:
            self._apply_answer(use, request, status, answer, at=at)
        finally:
            prefix.is_changing = False

    def lose(self, use: CacheUse, error: ProviderError, *, at: float) -> None:
        """The provider has refused a request that refers to the cache; it is sent again without."""
        use.conversation.is_head_stored = False
        if use.cache is None:
            return
        use.is_doubtful = not gemini.is_cache_missing(error)
        if not use.is_doubtful:
            self._forget(use, use.cache, "the provider has lost it", at=at)

    def distrust(self, use: CacheUse, *, at: float) -> None:
        """The request was accepted without the cache, so that the reference was what the provider refused."""
        if use.is_doubtful and use.cache is not None:
            use.prefix.is_refused = True
            self._forget(use, use.cache, "the provider refuses requests that refer to it", at=at)

    def _configure(self) -> ExplicitCacheConfig:
        """The configuration with the settings of the store, which may be changed while the process runs."""
        settings = self._read_settings() if self._read_settings is not None else CacheSettings()
        if not settings.providers.get(gemini.name, True):
            return replace(self._config, ttl_seconds=0)
        ttl = settings.gemini_ttl_seconds
        return self._config if ttl is None else replace(self._config, ttl_seconds=ttl)

    def _find_prefix(self, key: tuple[str, bytes], body: bytes, *, path: str, at: float) -> _Prefix:
        with self._lock:
            prefix = self._prefixes.get(key)
            if prefix is not None:
                self._prefixes.move_to_end(key)
                return prefix
        prompt = GeminiBody(body, path=path)
        # The account in the key of the head is salted by each process; what is stored names neither key nor prompt.
        content = prompt.encode_cached_content(ttl_seconds=0)
        prefix = _Prefix(f"{LEASE_PREFIX} {sha256_hex(key[0].encode() + content)[:32]}")
        prefix.cache = self._find_shared(prefix, at)
        with self._lock:
            prefix = self._prefixes.setdefault(key, prefix)
            while len(self._prefixes) > PREFIXES_MAX:
                self._prefixes.popitem(last=False)
            return prefix

    def _find_shared(self, prefix: _Prefix, at: float) -> ExplicitCacheState | None:
        """The cache that another process has for the prefix."""
        lease = self._leases.find(prefix.lease) if self._leases is not None else None
        if lease is None or not lease.value:
            return None
        cache = msgspec.json.decode(lease.value, type=ExplicitCacheState)
        return cache if cache.expires_at > at and cache.name != prefix.lost_name else None

    def _claim(self, prefix: _Prefix, at: float) -> bool:
        """Whether this process may create the cache; if another has one, that one is used."""
        if self._leases is None or self._leases.take(prefix.lease, seconds=2 * CACHE_SECONDS_MAX):
            return True
        prefix.cache, prefix.is_own = self._find_shared(prefix, at), False
        return False

    def _apply_answer(self, use: CacheUse, request: CacheRequest, status: int, answer: bytes, *, at: float) -> None:
        prefix, cache, is_accepted = use.prefix, use.prefix.cache, 200 <= status < 300
        error = None if is_accepted else gemini.decode_error(status, {}, answer)
        is_missing = error is not None and gemini.is_cache_missing(error)
        if request.action == "created" and is_accepted:
            self._hold(use, gemini.decode_cache(answer), "created", request.reason, at=at)
        elif request.action == "created":
            if status in REFUSED_STATUSES:
                # For this prefix it is not tried again; any other failure may be over with the next call.
                prefix.is_refused = True
                refused = ExplicitCacheState("", use.wanted.model, use.wanted.digest, use.wanted.tokens, at)
                use.record("refused", refused, f"HTTP status {status}")
            self._release(prefix)
        elif cache is None:
            pass
        elif request.action == "extended":
            if is_accepted:
                self._hold(use, gemini.decode_cache(answer), "extended", request.reason, at=at)
            elif is_missing:
                self._forget(use, cache, "the provider has lost it", at=at)
        else:
            # It expires by itself if this failed; then its storage is paid.
            unused = use.price_storage(cache, cache.expires_at - at) if is_accepted or is_missing else Decimal(0)
            use.record("deleted", cache, request.reason, storage_cost_usd=-unused)
            prefix.cache = None
            self._release(prefix)

    def _hold(
        self, use: CacheUse, entry: ExplicitCacheEntry, action: ExplicitCacheAction, reason: str, *, at: float
    ) -> None:
        """The cache exists until its new end, and its storage is paid for until then."""
        prefix, wanted = use.prefix, use.wanted
        tokens = entry.tokens or wanted.tokens
        is_new = prefix.cache is None or prefix.cache.name != entry.name
        creation = tokens * use.price.input / 1_000_000 if is_new else Decimal(0)
        paid_until = at if is_new or prefix.cache is None else prefix.cache.expires_at
        cache = ExplicitCacheState(entry.name, wanted.model, wanted.digest, tokens, entry.expires_at)
        storage = use.price_storage(cache, cache.expires_at - paid_until)
        prefix.cache, prefix.is_own, use.cache = cache, True, cache
        use.record(action, cache, reason, cost_usd=creation, storage_cost_usd=storage)
        if self._leases is not None:
            value = msgspec.json.encode(cache).decode()
            self._leases.take(prefix.lease, seconds=max(0.0, cache.expires_at - at), value=value)

    def _forget(self, use: CacheUse, cache: ExplicitCacheState, reason: str, *, at: float) -> None:
        """The cache is not used again; what is left of its storage is not paid, if the provider has lost it."""
        prefix, use.cache = use.prefix, None
        with self._lock:
            # Several calls may have referred to it; one of them says so.
            if prefix.cache is None or prefix.cache.name != cache.name:
                return
            prefix.cache, prefix.lost_name = None, cache.name
        is_refunded = prefix.is_own and not use.is_doubtful
        unused = use.price_storage(cache, cache.expires_at - at) if is_refunded else Decimal(0)
        use.record("lost", cache, reason, storage_cost_usd=-unused)
        self._release(prefix)

    def _release(self, prefix: _Prefix) -> None:
        if self._leases is not None:
            self._leases.release(prefix.lease)
