"""The explicit cache of a session (Gemini CachedContent): created, used, extended, replaced and deleted."""

import asyncio
from contextlib import aclosing, suppress
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from holdfast.economics.cost import storage_usd
from holdfast.engine.budget import call_cost_usd_max, can_spend
from holdfast.engine.conversation import Conversation
from holdfast.errors import ProviderError
from holdfast.events.payloads.cache import ExplicitCacheAction, ExplicitCacheChanged
from holdfast.planning.explicit_cache import (
    CreateCache,
    ExplicitCacheConfig,
    ExplicitCacheState,
    ExtendCache,
    SkipCache,
    UseCache,
    WantedPrefix,
    plan_explicit_cache,
)
from holdfast.providers.adapter import Endpoint, ExplicitCacheAdapter, ExplicitCacheEntry, model_capabilities
from holdfast.providers.wire_request import read_whole_response
from holdfast.types.prompt import Parameters

CACHE_RESPONSE_BYTES_MAX = 1_000_000
DELETE_SECONDS_MAX = 5.0
"""How long closing a session waits for the deletion; the cache expires by itself anyway."""


class CacheReference(msgspec.Struct, frozen=True):
    """A reference to an explicit cache: the request omits its first `blocks` blocks and names the cache instead."""

    parameters: Parameters
    blocks: int


async def prepare_explicit_cache(conversation: Conversation) -> CacheReference | None:
    """The explicit cache that the next request uses; created or extended first, if that pays."""
    adapter, buffer = conversation.deps.adapter, conversation.draft.buffer
    stable_blocks = buffer.stable_count
    if not isinstance(adapter, ExplicitCacheAdapter) or not stable_blocks:
        return None
    if stable_blocks < len(buffer.blocks) and buffer.blocks[stable_blocks].section != "messages":
        # Gemini refuses a system instruction beside a cache, so the cache must hold the whole system prompt.
        await delete_explicit_cache(conversation, "a part of the system prompt changes from turn to turn")
        return None
    cache = await _current_cache(conversation, adapter)
    if cache is None:
        return None
    return CacheReference(adapter.reference_cache(conversation.parameters, cache.name), buffer.stable_count)


async def record_lost_cache(conversation: Conversation, reason: str) -> None:
    """Record that the provider has lost the cache; the session continues without it."""
    if (cache := conversation.state.explicit_cache) is not None:
        await _record_change(conversation, cache, "lost", reason, storage_cost_usd=-_remaining_usd(conversation, cache))


async def delete_explicit_cache(conversation: Conversation, reason: str) -> None:
    """Delete a cache that will not be used again, to stop its storage cost."""
    cache, adapter = conversation.state.explicit_cache, conversation.deps.adapter
    if cache is None or not isinstance(adapter, ExplicitCacheAdapter) or conversation.deps.clock() >= cache.expires_at:
        return
    # It expires by itself; closing a session does not wait for the deletion.
    with suppress(TimeoutError):
        async with asyncio.timeout(DELETE_SECONDS_MAX):
            await _delete(conversation, adapter, cache, reason)


async def _current_cache(conversation: Conversation, adapter: ExplicitCacheAdapter) -> ExplicitCacheState | None:
    deps, state, buffer = conversation.deps, conversation.state, conversation.draft.buffer
    stable_blocks = buffer.stable_count
    tokens = state.calibration.correct_estimate(sum(buffer.tokens[:stable_blocks]))
    wanted = WantedPrefix(deps.model.id, buffer.digests[stable_blocks - 1].digest, tokens)
    is_supported = model_capabilities(deps.model).explicit_caches
    step = plan_explicit_cache(
        state.explicit_cache,
        wanted,
        deps.explicit_cache if is_supported else ExplicitCacheConfig(ttl_seconds=0),
        rules=deps.model.cache,
        price=conversation.price(tokens),
        uncached_calls=state.uncached_calls,
        at=deps.clock(),
        uncached_seconds=state.uncached_span[1] - state.uncached_span[0],
        implicit_reads=state.implicit_reads,
    )
    match step:
        case UseCache(cache):
            return cache
        case ExtendCache(cache, reason):
            return await _extend(conversation, adapter, cache, reason)
        case CreateCache(reason, instead_of):
            if instead_of is not None:
                await _delete(conversation, adapter, instead_of, "the prefix has changed")
            return await _create(conversation, adapter, wanted, reason)
        case SkipCache(reason, delete):
            if delete is not None:
                await _delete(conversation, adapter, delete, reason)
            return None


async def _create(
    conversation: Conversation, adapter: ExplicitCacheAdapter, wanted: WantedPrefix, reason: str
) -> ExplicitCacheState | None:
    """None if the provider refuses (not retried for this prefix) or if the budget is too small."""
    deps, ttl = conversation.deps, conversation.deps.explicit_cache.ttl_seconds
    if conversation.state.refused_prefix == wanted.digest or not _can_afford(conversation, wanted.tokens):
        return None
    buffer = conversation.draft.buffer
    prefix_bytes = buffer.cacheable_bytes()[: buffer.stable_prefix_length]
    request = adapter.encode_create_cache(deps.parameters, prefix_bytes, ttl_seconds=ttl)
    try:
        created = await _request_cache(conversation, adapter, request)
    except ProviderError as error:
        if error.kind not in ("invalid_request", "auth", "context_overflow"):
            # A transient failure; the next call tries again.
            return None
        refused = ExplicitCacheState("", wanted.model, wanted.digest, wanted.tokens, deps.clock())
        await _record_change(conversation, refused, "refused", str(error))
        return None
    tokens = created.tokens or wanted.tokens
    cache = ExplicitCacheState(created.name, wanted.model, wanted.digest, tokens, created.expires_at)
    cost, storage_cost = tokens * conversation.price(tokens).input / 1_000_000, _remaining_usd(conversation, cache)
    await _record_change(conversation, cache, "created", reason, cost_usd=cost, storage_cost_usd=storage_cost)
    return cache


async def _extend(
    conversation: Conversation, adapter: ExplicitCacheAdapter, cache: ExplicitCacheState, reason: str
) -> ExplicitCacheState | None:
    request = adapter.encode_extend_cache(cache.name, ttl_seconds=conversation.deps.explicit_cache.ttl_seconds)
    try:
        answer = await _request_cache(conversation, adapter, request)
    except ProviderError as error:
        if not adapter.is_cache_missing(error):
            # The cache still exists; the next call tries to extend it again.
            return cache
        await record_lost_cache(conversation, str(error))
        return None
    longer = replace(cache, expires_at=answer.expires_at)
    added = storage_usd(cache.tokens, max(0.0, longer.expires_at - cache.expires_at), conversation.price(cache.tokens))
    await _record_change(conversation, longer, "extended", reason, storage_cost_usd=added)
    return longer


async def _delete(
    conversation: Conversation, adapter: ExplicitCacheAdapter, cache: ExplicitCacheState, reason: str
) -> None:
    """Delete the cache; a failure is only recorded, because the cache expires by itself."""
    unused = _remaining_usd(conversation, cache)
    endpoint, body = adapter.encode_delete_cache(cache.name)
    try:
        async with aclosing(conversation.deps.transport.send(endpoint, body)) as chunks:
            async for _ in chunks:
                pass
    except ProviderError as error:
        unused = Decimal(0) if not adapter.is_cache_missing(error) else unused
        reason = f"{reason}; deleting it failed: {error}"
    await _record_change(conversation, cache, "deleted", reason, storage_cost_usd=-unused)


async def _request_cache(
    conversation: Conversation, adapter: ExplicitCacheAdapter, request: tuple[Endpoint, bytes]
) -> ExplicitCacheEntry:
    response = conversation.deps.transport.send(*request)
    return adapter.decode_cache(await read_whole_response(response, bytes_max=CACHE_RESPONSE_BYTES_MAX))


def _can_afford(conversation: Conversation, tokens: int) -> bool:
    """Whether the budget covers the cache and the call that will use it."""
    price = conversation.price(tokens)
    storage_cost = storage_usd(tokens, conversation.deps.explicit_cache.ttl_seconds, price)
    call_cost = call_cost_usd_max(conversation, conversation.request_tokens)
    return can_spend(conversation, tokens * price.input / 1_000_000 + storage_cost + call_cost)


def _remaining_usd(conversation: Conversation, cache: ExplicitCacheState) -> Decimal:
    """The storage cost of the remaining TTL, which is booked in advance."""
    remaining_seconds = max(0.0, cache.expires_at - conversation.deps.clock())
    return storage_usd(cache.tokens, remaining_seconds, conversation.price(cache.tokens))


async def _record_change(
    conversation: Conversation,
    cache: ExplicitCacheState,
    action: ExplicitCacheAction,
    reason: str,
    *,
    cost_usd: Decimal = Decimal(0),
    storage_cost_usd: Decimal = Decimal(0),
) -> None:
    described = (cache.name, cache.model, cache.digest, cache.tokens, cache.expires_at)
    changed = ExplicitCacheChanged(action, *described, cost_usd, storage_cost_usd, reason)
    await conversation.record("system", changed)
