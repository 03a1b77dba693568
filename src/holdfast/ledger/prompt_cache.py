"""What can be told of a prompt cache from requests and reported usage alone, by the seed's rules and by ours.

The seed compares hashes of whole parts, so that in a conversation, whose messages grow, every break looks expected.
Ours compares chained digests of blocks: what was sent before has to stand at the beginning of what is sent now.
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

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_64_BITS = 0xFFFFFFFFFFFFFFFF

Request = Mapping[str, Json]
"""The members of a request as they are sent."""


class PromptCacheConfig(msgspec.Struct, frozen=True):
    """Whole replies are given again before `completion_ttl` is over; a prompt is cached for `prompt_ttl`."""

    session_id: str = "default"
    completion_ttl: timedelta = timedelta(seconds=30)
    prompt_ttl: timedelta = timedelta(seconds=300)
    cache_break_min_drop: int = 2_000


class HashedPrompt(msgspec.Struct, frozen=True, tag="seed"):
    """A request as the seed remembers it: one hash for each of its parts."""

    observed_at: float
    model_hash: str
    system_hash: str
    tools_hash: str
    messages_hash: str
    cache_read_input_tokens: int
    fingerprint_version: int = FINGERPRINT_VERSION


class ChainedPrompt(msgspec.Struct, frozen=True, tag="default"):
    """A request as we remember it: a digest for each of its blocks, made of all that stands before it.

    `kept_tokens` is what the provider said to have read or written; `settings` are what a prefix depends on besides.
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
    found = _FNV_OFFSET
    for byte in data:
        found = (found ^ byte) * _FNV_PRIME & _64_BITS
    return found


def folder_name(session_id: str, profile: Profile = "default") -> str:
    """A name for the session's folder, of 80 characters at most; in ours, no two sessions have the same."""
    plain = "".join(one if one.isascii() and one.isalnum() else "-" for one in session_id)
    is_kept = len(plain) <= FOLDER_NAME_CHARS_MAX and (profile == "seed" or plain == session_id)
    if is_kept:
        return plain
    suffix = f"-{fnv1a_64(session_id.encode('utf-8', 'surrogatepass')):x}"
    return plain[: FOLDER_NAME_CHARS_MAX - len(suffix)] + suffix


def request_key(request: Request, profile: Profile = "default") -> str:
    """The same for requests that are written in the same bytes. Raises `UserError` for what is no JSON."""
    raw = _written(request)
    return f"v{FINGERPRINT_VERSION}-{fnv1a_64(raw):016x}" if profile == "seed" else digest(raw)


def tracked(request: Request, usage: Usage, at: float, profile: Profile = "default") -> TrackedPrompt:
    """What to remember of a request that was answered. Raises `UserError` for one that cannot be read."""
    if profile == "seed":
        parts = (_written(request.get(part)) for part in ("model", "system", "tools", "messages"))
        model, system, tools, messages = (f"{fnv1a_64(part):016x}" for part in parts)
        return HashedPrompt(at, model, system, tools, messages, usage.cache_read)
    sent = read_sent(_written(request))
    settings = settings_of(sent.told.provider, sent.row.cache, sent.wire.parameters) if sent.row else ()
    kept = usage.cache_read + usage.cache_write
    return ChainedPrompt(at, sent.model, tuple(sent.scroll.links), settings, usage.cache_read, kept)


def detect_cache_break(
    config: PromptCacheConfig, previous: TrackedPrompt | None, current: TrackedPrompt
) -> CacheBreakEvent | None:
    """Whether less was read than the request before could make one expect, and whether that was to be expected."""
    match previous, current:
        case None, _:
            return None
        case HashedPrompt(), HashedPrompt():
            return _by_hashes(config, previous, current)
        case ChainedPrompt(), ChainedPrompt():
            return _by_chains(config, previous, current)
        case _:
            reason = "the requests were remembered by different rules"
            return _event(previous.cache_read_input_tokens, current, reason, unexpected=False)


def _by_hashes(config: PromptCacheConfig, previous: HashedPrompt, current: HashedPrompt) -> CacheBreakEvent | None:
    before = previous.cache_read_input_tokens
    if previous.fingerprint_version != current.fingerprint_version:
        reason = f"fingerprint version {previous.fingerprint_version} became {current.fingerprint_version}"
        return _event(before, current, reason, unexpected=False)
    if max(0, before - current.cache_read_input_tokens) < config.cache_break_min_drop:
        return None
    parts = {
        "model changed": (previous.model_hash, current.model_hash),
        "system prompt changed": (previous.system_hash, current.system_hash),
        "tool definitions changed": (previous.tools_hash, current.tools_hash),
        "message payload changed": (previous.messages_hash, current.messages_hash),
    }
    if changed := [name for name, (old, new) in parts.items() if old != new]:
        return _event(before, current, ", ".join(changed), unexpected=False)
    elapsed = current.observed_at - previous.observed_at
    if elapsed > config.prompt_ttl.total_seconds():
        return _event(before, current, f"possible TTL expiry after {elapsed:.0f} s", unexpected=False)
    return _event(before, current, "less was read, and the fingerprint is stable", unexpected=True)


def _by_chains(config: PromptCacheConfig, previous: ChainedPrompt, current: ChainedPrompt) -> CacheBreakEvent | None:
    """The first cause that holds, in the order in which verdicts on calls look for it."""
    before = previous.kept_tokens
    if previous.encoding != current.encoding:
        reason = f"encoding {previous.encoding} became {current.encoding}"
        return _event(before, current, reason, unexpected=False)
    if max(0, before - current.cache_read_input_tokens) < config.cache_break_min_drop:
        return None
    if previous.model != current.model:
        return _event(before, current, "planned: another model", unexpected=False, component="model")
    if changed := sorted(name for name, _ in set(previous.settings) ^ set(current.settings)):
        reason = f"parameter_changed: {changed[0]} is another than before"
        return _event(before, current, reason, unexpected=False, component=changed[0])
    shared = shared_links(previous.links, current.links)
    if shared < len(previous.links):
        reason = f"prefix_changed: block {shared} of {len(previous.links)} is another than before"
        return _event(before, current, reason, unexpected=True, component=previous.links[shared].layer)
    elapsed = current.observed_at - previous.observed_at
    if elapsed >= config.prompt_ttl.total_seconds():
        return _event(before, current, f"ttl_expired: idle for {elapsed:.0f} s", unexpected=False)
    return _event(before, current, "provider_side: the same bytes, in time, and not read", unexpected=True)


def _event(
    before: int, current: TrackedPrompt, reason: str, *, unexpected: bool, component: str | None = None
) -> CacheBreakEvent:
    read = current.cache_read_input_tokens
    return CacheBreakEvent(unexpected, reason, before, read, max(0, before - read), component)


def _written(value: Json | Request) -> bytes:
    try:
        with readable("invalid_request", "the request"):
            return plain_json(value)
    except (ProviderError, TypeError) as error:
        raise UserError(f"the request cannot be written as JSON: {type(error).__name__}") from None
