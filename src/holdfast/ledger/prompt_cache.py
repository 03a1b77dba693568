"""Detects prompt cache breaks from requests and reported usage alone, by the seed's rules or by ours.

The seed compares hashes of whole parts, so in a conversation, whose messages always grow, every break looks expected.
Ours compares chained digests of blocks: the previous request has to be a prefix of the current one.
"""

from collections.abc import Mapping
from datetime import timedelta

import msgspec

from holdfast.canonical.blocks import Json
from holdfast.canonical.encoding import ENCODING, digest, plain_json
from holdfast.canonical.pieces import Link, shared_links
from holdfast.canonical.usage import Usage
from holdfast.errors import ProviderError, UserError
from holdfast.ledger.requests import read_sent
from holdfast.ledger.stats import CacheBreakEvent
from holdfast.planning.marks import Profile
from holdfast.providers.failures import readable
from holdfast.providers.tier_parameters import settings_of

FINGERPRINT_VERSION = 1
FOLDER_NAME_CHARS_MAX = 80

# Offset basis and prime of 64-bit FNV-1a, which specification 002 uses for its fingerprints.
_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_64_BITS = 0xFFFFFFFFFFFFFFFF

# A request body as a mapping of its JSON members.
Request = Mapping[str, Json]


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
    links: tuple[Link, ...]
    settings: tuple[tuple[str, str], ...]
    cache_read_input_tokens: int
    kept_tokens: int
    encoding: str = ENCODING


TrackedPrompt = HashedPrompt | ChainedPrompt


def fnv1a_64(data: bytes) -> int:
    hash_ = _FNV_OFFSET
    for byte in data:
        hash_ = (hash_ ^ byte) * _FNV_PRIME & _64_BITS
    return hash_


def folder_name(session_id: str, profile: Profile = "default") -> str:
    """A folder name of at most 80 characters for the session; in our profile no two sessions share one."""
    plain = "".join(character if character.isascii() and character.isalnum() else "-" for character in session_id)
    is_usable = len(plain) <= FOLDER_NAME_CHARS_MAX and (profile == "seed" or plain == session_id)
    if is_usable:
        return plain
    suffix = f"-{fnv1a_64(session_id.encode('utf-8', 'surrogatepass')):x}"
    return plain[: FOLDER_NAME_CHARS_MAX - len(suffix)] + suffix


def request_key(request: Request, profile: Profile = "default") -> str:
    """Equal for requests with equal bytes. Raises `UserError` for values that are not JSON."""
    raw = _encode_json(request)
    return f"v{FINGERPRINT_VERSION}-{fnv1a_64(raw):016x}" if profile == "seed" else digest(raw)


def tracked(request: Request, usage: Usage, at: float, profile: Profile = "default") -> TrackedPrompt:
    """What to remember of an answered request. Raises `UserError` for one that cannot be decoded."""
    if profile == "seed":
        parts = (_encode_json(request.get(part)) for part in ("model", "system", "tools", "messages"))
        model, system, tools, messages = (f"{fnv1a_64(part):016x}" for part in parts)
        return HashedPrompt(at, model, system, tools, messages, usage.cache_read)
    sent = read_sent(_encode_json(request))
    settings = settings_of(sent.told.provider, sent.row.cache, sent.wire.parameters) if sent.row else ()
    kept_tokens = usage.cache_read + usage.cache_write
    return ChainedPrompt(at, sent.model, tuple(sent.scroll.links), settings, usage.cache_read, kept_tokens)


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
    parts = {
        "model changed": (previous.model_hash, current.model_hash),
        "system prompt changed": (previous.system_hash, current.system_hash),
        "tool definitions changed": (previous.tools_hash, current.tools_hash),
        "message payload changed": (previous.messages_hash, current.messages_hash),
    }
    if changed := [name for name, (old, new) in parts.items() if old != new]:
        return _build_event(before, current, ", ".join(changed), unexpected=False)
    elapsed = current.observed_at - previous.observed_at
    if elapsed > config.prompt_ttl.total_seconds():
        return _build_event(before, current, f"possible TTL expiry after {elapsed:.0f} s", unexpected=False)
    return _build_event(before, current, "less was read although the fingerprint is stable", unexpected=True)


def _compare_chains(
    config: PromptCacheConfig, previous: ChainedPrompt, current: ChainedPrompt
) -> CacheBreakEvent | None:
    """The first cause that applies, in the order of `VerdictKind`."""
    before = previous.kept_tokens
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
    shared = shared_links(previous.links, current.links)
    if shared < len(previous.links):
        reason = f"prefix_changed: block {shared} of {len(previous.links)} changed"
        return _build_event(before, current, reason, unexpected=True, component=previous.links[shared].layer)
    elapsed = current.observed_at - previous.observed_at
    if elapsed >= config.prompt_ttl.total_seconds():
        return _build_event(before, current, f"ttl_expired: idle for {elapsed:.0f} s", unexpected=False)
    return _build_event(before, current, "provider_side: the same bytes, sent in time, but not read", unexpected=True)


def _build_event(
    before: int, current: TrackedPrompt, reason: str, *, unexpected: bool, component: str | None = None
) -> CacheBreakEvent:
    read = current.cache_read_input_tokens
    return CacheBreakEvent(unexpected, reason, before, read, max(0, before - read), component)


def _encode_json(value: Json | Request) -> bytes:
    try:
        with readable("invalid_request", "the request"):
            return plain_json(value)
    except (ProviderError, TypeError) as error:
        raise UserError(f"the request cannot be encoded as JSON: {type(error).__name__}") from None
