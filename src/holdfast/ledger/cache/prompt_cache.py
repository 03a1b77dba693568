"""Detects prompt cache breaks from requests and reported usage alone, by the seed's rules or by ours, and counts them.

The seed compares hashes of whole parts, so in a conversation, whose messages always grow, every break looks expected.
Ours compares chained digests of blocks: the previous request has to be a prefix of the current one.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

import msgspec

from holdfast.catalog.lookup import Models
from holdfast.errors import ProviderError, UserError
from holdfast.events.log import Event
from holdfast.ledger.accounting import ACCOUNTED_PAYLOADS, AccountingState, LedgerEntry, record_event
from holdfast.ledger.cache.verdicts import DROP_TOKENS_MIN
from holdfast.ledger.requests.parse import parse_request
from holdfast.planning.breakpoints import CacheProfile
from holdfast.providers.cache_inputs import cache_settings
from holdfast.providers.errors import decoding_errors
from holdfast.types.blocks import Json
from holdfast.types.json_encoding import JSON_ENCODING_VERSION, encode_json, sha256_hex
from holdfast.types.request_buffer import PrefixDigest, count_shared_blocks
from holdfast.types.usage import Usage

# Version, length and hash function are those of specification 002: offset basis and prime of 64-bit FNV-1a.
FINGERPRINT_VERSION = 1
FOLDER_NAME_CHARS_MAX = 80
_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_64_BITS = 0xFFFFFFFFFFFFFFFF

# A request body as a mapping of its JSON members.
RequestMembers = Mapping[str, Json]

# Drops of a smaller share of the cached tokens rank after larger ones; they are counted all the same.
RANK_SHARE_MIN = 0.05


class PromptCacheConfig(msgspec.Struct, frozen=True):
    """`completion_ttl` is how long a whole reply may be reused, `prompt_ttl` how long a prompt stays cached."""

    session_id: str = "default"
    completion_ttl: timedelta = timedelta(seconds=30)
    prompt_ttl: timedelta = timedelta(seconds=300)
    cache_break_min_drop: int = 2_000


class HashedPrompt(msgspec.Struct, frozen=True, tag="seed"):
    """A request as the seed tracks it: one hash per part."""

    observed_at: float
    model_hash: str
    system_hash: str
    tools_hash: str
    messages_hash: str
    cache_read_input_tokens: int
    fingerprint_version: int = FINGERPRINT_VERSION


class ChainedPrompt(msgspec.Struct, frozen=True, tag="default"):
    """A request as we track it: one digest per block, chained over everything before it.

    `cached_tokens` is what the provider reported as read or written; `settings` are the parameters that a prefix
    depends on.
    """

    observed_at: float
    model: str
    digests: tuple[PrefixDigest, ...]
    settings: tuple[tuple[str, str], ...]
    cache_read_input_tokens: int
    cached_tokens: int
    encoding: str = JSON_ENCODING_VERSION


TrackedPrompt = HashedPrompt | ChainedPrompt


def fnv1a_64(data: bytes) -> int:
    hash_ = _FNV_OFFSET
    for byte in data:
        hash_ = (hash_ ^ byte) * _FNV_PRIME & _64_BITS
    return hash_


def session_folder_name(session_id: str, profile: CacheProfile = "default") -> str:
    """A folder name of at most 80 characters for the session; in our profile no two sessions share one."""
    plain = "".join(character if character.isascii() and character.isalnum() else "-" for character in session_id)
    is_usable = len(plain) <= FOLDER_NAME_CHARS_MAX and (profile == "seed" or plain == session_id)
    if is_usable:
        return plain
    suffix = f"-{fnv1a_64(session_id.encode('utf-8', 'surrogatepass')):x}"
    return plain[: FOLDER_NAME_CHARS_MAX - len(suffix)] + suffix


def compute_request_key(request: RequestMembers, profile: CacheProfile = "default") -> str:
    """Equal for requests with equal bytes. Raises `UserError` for values that are not JSON."""
    raw = _encode_json(request)
    return f"v{FINGERPRINT_VERSION}-{fnv1a_64(raw):016x}" if profile == "seed" else sha256_hex(raw)


def track_prompt(request: RequestMembers, usage: Usage, at: float, profile: CacheProfile = "default") -> TrackedPrompt:
    """What to remember of an answered request. Raises `UserError` for one that cannot be decoded."""
    if profile == "seed":
        values = (_encode_json(request.get(name)) for name in ("model", "system", "tools", "messages"))
        model, system, tools, messages = (f"{fnv1a_64(value):016x}" for value in values)
        return HashedPrompt(at, model, system, tools, messages, usage.cache_read)
    sent = parse_request(_encode_json(request))
    settings = cache_settings(sent.recognised.provider, sent.row.cache, sent.wire.parameters) if sent.row else ()
    cached_tokens = usage.cache_read + usage.cache_write
    return ChainedPrompt(at, sent.model, tuple(sent.buffer.digests), settings, usage.cache_read, cached_tokens)


class CacheBreakEvent(msgspec.Struct, frozen=True):
    """`token_drop` fewer tokens were read than expected; `component` is the cause, where it is known."""

    unexpected: bool
    reason: str
    previous_cache_read_input_tokens: int
    current_cache_read_input_tokens: int
    token_drop: int
    component: str | None = None

    @property
    def drop_share(self) -> float:
        before = self.previous_cache_read_input_tokens
        return self.token_drop / before if before else 0.0


def detect_cache_break(
    config: PromptCacheConfig, previous: TrackedPrompt | None, current: TrackedPrompt
) -> CacheBreakEvent | None:
    """A break if the request read less than the one before had left in the cache, and whether that was expected."""
    match previous, current:
        case None, _:
            return None
        case HashedPrompt(), HashedPrompt():
            return _compare_hashes(config, previous, current)
        case ChainedPrompt(), ChainedPrompt():
            return _compare_chains(config, previous, current)
        case _:
            reason = "the requests were tracked by different rules"
            return _build_event(previous.cache_read_input_tokens, current, reason, unexpected=False)


def _compare_hashes(config: PromptCacheConfig, previous: HashedPrompt, current: HashedPrompt) -> CacheBreakEvent | None:
    before = previous.cache_read_input_tokens
    if previous.fingerprint_version != current.fingerprint_version:
        reason = f"fingerprint version changed from {previous.fingerprint_version} to {current.fingerprint_version}"
        return _build_event(before, current, reason, unexpected=False)
    if max(0, before - current.cache_read_input_tokens) < config.cache_break_min_drop:
        return None
    hashes = {
        "model changed": (previous.model_hash, current.model_hash),
        "system prompt changed": (previous.system_hash, current.system_hash),
        "tool definitions changed": (previous.tools_hash, current.tools_hash),
        "message payload changed": (previous.messages_hash, current.messages_hash),
    }
    if changed := [name for name, (old, new) in hashes.items() if old != new]:
        return _build_event(before, current, ", ".join(changed), unexpected=False)
    elapsed = current.observed_at - previous.observed_at
    if elapsed > config.prompt_ttl.total_seconds():
        return _build_event(before, current, f"possible TTL expiry after {elapsed:.0f} s", unexpected=False)
    return _build_event(before, current, "less was read although the fingerprint is stable", unexpected=True)


def _compare_chains(
    config: PromptCacheConfig, previous: ChainedPrompt, current: ChainedPrompt
) -> CacheBreakEvent | None:
    """The first cause that applies, in the order of `VerdictKind`."""
    before = previous.cached_tokens
    if previous.encoding != current.encoding:
        reason = f"encoding changed from {previous.encoding} to {current.encoding}"
        return _build_event(before, current, reason, unexpected=False)
    if max(0, before - current.cache_read_input_tokens) < config.cache_break_min_drop:
        return None
    if previous.model != current.model:
        return _build_event(before, current, "planned: the model changed", unexpected=False, component="model")
    if changed := sorted(name for name, _ in set(previous.settings) ^ set(current.settings)):
        reason = f"parameter_changed: {changed[0]} changed"
        return _build_event(before, current, reason, unexpected=False, component=changed[0])
    shared = count_shared_blocks(previous.digests, current.digests)
    if shared < len(previous.digests):
        reason = f"prefix_changed: block {shared} of {len(previous.digests)} changed"
        return _build_event(before, current, reason, unexpected=True, component=previous.digests[shared].layer)
    elapsed = current.observed_at - previous.observed_at
    if elapsed >= config.prompt_ttl.total_seconds():
        return _build_event(before, current, f"ttl_expired: idle for {elapsed:.0f} s", unexpected=False)
    return _build_event(before, current, "provider_side: the same bytes, sent in time, but not read", unexpected=True)


def _build_event(
    before: int, current: TrackedPrompt, reason: str, *, unexpected: bool, component: str | None = None
) -> CacheBreakEvent:
    read = current.cache_read_input_tokens
    return CacheBreakEvent(unexpected, reason, before, read, max(0, before - read), component)


def _encode_json(value: Json | RequestMembers) -> bytes:
    try:
        with decoding_errors("invalid_request", "the request"):
            return encode_json(value)
    except (ProviderError, TypeError) as error:
        raise UserError(f"the request cannot be encoded as JSON: {type(error).__name__}") from None


class PromptCacheStats(msgspec.Struct, frozen=True):
    """`tracked_requests` went to a provider; `completion_cache_*` count the cache of whole replies.

    A request whose reply was interrupted or failed was also looked up in that cache, but is not counted as a miss.
    """

    tracked_requests: int = 0
    completion_cache_hits: int = 0
    completion_cache_misses: int = 0
    completion_cache_writes: int = 0
    expected_invalidations: int = 0
    unexpected_cache_breaks: int = 0
    total_cache_creation_input_tokens: int = 0
    total_cache_read_input_tokens: int = 0
    last_cache_creation_input_tokens: int | None = None
    last_cache_read_input_tokens: int | None = None
    last_request_hash: str | None = None
    last_completion_cache_key: str | None = None
    last_break_reason: str | None = None
    last_cache_source: str | None = None


class TokenStats(msgspec.Struct, frozen=True):
    """Token totals of one provider: sent, read from the cache, and received."""

    input_tokens: int = 0
    cache_tokens: int = 0
    output_tokens: int = 0

    @property
    def hit_percent(self) -> int:
        # Rounded down, so that 100 means everything was read.
        return 100 * self.cache_tokens // self.input_tokens if self.input_tokens else 0


def find_cache_break(entry: LedgerEntry, *, drop_tokens_min: int = DROP_TOKENS_MIN) -> CacheBreakEvent | None:
    """The cache break that a call was, if any: it read less than the call before had left in the cache.

    What that call had left is reported as the previous read.
    """
    verdict = entry.verdict
    # max(1, ...): even with a threshold of 0 a call that read everything is no break.
    if verdict is None or verdict.drop_class is None or verdict.drop_tokens < max(1, drop_tokens_min):
        return None
    return CacheBreakEvent(
        unexpected=verdict.drop_class == "unexpected",
        reason=f"{verdict.kind}: {verdict.detail}" if verdict.detail else verdict.kind,
        previous_cache_read_input_tokens=verdict.read_tokens + verdict.drop_tokens,
        current_cache_read_input_tokens=verdict.read_tokens,
        token_drop=verdict.drop_tokens,
        component=verdict.component,
    )


def iter_cache_breaks(entries: Iterable[LedgerEntry]) -> Iterator[CacheBreakEvent]:
    return (event for event in map(find_cache_break, entries) if event is not None)


def rank_cache_breaks(breaks: Iterable[CacheBreakEvent]) -> tuple[CacheBreakEvent, ...]:
    """The largest drop first; drops of less than `RANK_SHARE_MIN` of the cached tokens last."""
    return tuple(sorted(breaks, key=lambda event: (event.drop_share < RANK_SHARE_MIN, -event.token_drop)))


def compute_cache_stats(entries: Iterable[LedgerEntry]) -> PromptCacheStats:
    return functools.reduce(count_entry, entries, PromptCacheStats())


def count_entry(stats: PromptCacheStats, entry: LedgerEntry) -> PromptCacheStats:
    if entry.source == "completion-cache":
        return msgspec.structs.replace(
            stats,
            completion_cache_hits=stats.completion_cache_hits + 1,
            last_completion_cache_key=entry.completion_key,
            last_cache_source=entry.source,
        )
    usage = entry.record.usage
    counted = msgspec.structs.replace(
        stats,
        tracked_requests=stats.tracked_requests + 1,
        completion_cache_misses=stats.completion_cache_misses + bool(entry.completion_key),
        completion_cache_writes=stats.completion_cache_writes + entry.is_completion_cached,
        total_cache_creation_input_tokens=stats.total_cache_creation_input_tokens + usage.cache_write,
        total_cache_read_input_tokens=stats.total_cache_read_input_tokens + usage.cache_read,
        last_cache_creation_input_tokens=usage.cache_write,
        last_cache_read_input_tokens=usage.cache_read,
        last_request_hash=entry.prompt_digest or None,
        last_completion_cache_key=entry.completion_key or stats.last_completion_cache_key,
        last_cache_source=entry.source,
    )
    event = find_cache_break(entry)
    return counted if event is None else count_cache_break(counted, event)


def count_cache_break(stats: PromptCacheStats, event: CacheBreakEvent) -> PromptCacheStats:
    return msgspec.structs.replace(
        stats,
        expected_invalidations=stats.expected_invalidations + (not event.unexpected),
        unexpected_cache_breaks=stats.unexpected_cache_breaks + event.unexpected,
        last_break_reason=event.reason,
    )


def compute_token_stats(entries: Iterable[LedgerEntry]) -> dict[str, TokenStats]:
    """By provider, in the order of their first call."""
    tokens: dict[str, TokenStats] = {}
    return functools.reduce(_add_tokens, entries, tokens)


def _add_tokens(tokens: dict[str, TokenStats], entry: LedgerEntry) -> dict[str, TokenStats]:
    before, usage = tokens.get(entry.provider, TokenStats()), entry.record.usage
    sent, read = before.input_tokens + usage.tokens_sent, before.cache_tokens + usage.cache_read
    return {**tokens, entry.provider: TokenStats(sent, read, before.output_tokens + usage.output)}


class CacheStatsState(msgspec.Struct, frozen=True):
    """The counters of a session up to one of its events, and the state needed to continue from there."""

    last_event_id: str | None = None
    accounting: AccountingState = AccountingState()
    stats: PromptCacheStats = PromptCacheStats()
    tokens: dict[str, TokenStats] = {}


def fold_cache_stats(state: CacheStatsState, events: Iterable[Event], models: Models) -> CacheStatsState:
    """The counters after more events; events already counted are not read again."""
    accounting, stats, tokens, last_event_id = state.accounting, state.stats, state.tokens, state.last_event_id
    for event in events:
        last_event_id = event.id
        if not isinstance(event.payload, ACCOUNTED_PAYLOADS):
            continue
        accounting, entry = record_event(accounting, event, models)
        if entry is not None:
            stats, tokens = count_entry(stats, entry), _add_tokens(tokens, entry)
    return CacheStatsState(last_event_id, accounting, stats, tokens)
