"""Applies the cache settings that users made for a session: looked up before each request, recorded when changed."""

import asyncio

from msgspec.structs import replace

from holdfast.catalog.schema import Model
from holdfast.engine.conversation import Conversation
from holdfast.engine.state import SessionState
from holdfast.events.payloads.cache import CacheControls, CacheControlsApplied
from holdfast.events.payloads.session import EpochOpened
from holdfast.providers.cache_inputs import invalidation_methods
from holdfast.types.json_encoding import sha256_hex


async def apply_controls(conversation: Conversation) -> bool:
    """Apply the current cache settings, and return whether they have changed.

    A cache invalidation and a prefix refresh take effect with a turn's first call: within a turn, a changed prefix
    would invalidate the turn's thinking. Invalidating also adopts a pending system-prompt update, because the old
    prefix will not be read again.
    """
    if conversation.deps.controls is None:
        return False
    controls = await conversation.deps.controls(prefix_owner(conversation.state))
    event = controls_event(controls, conversation.state, conversation.base_deps.model)
    if event is None:
        return False
    previous = conversation.state.cache_settings
    await conversation.record("system", event)
    if (event.generation, event.refreshes) != (previous.generation, previous.refreshes):
        await refresh_prefix(conversation)
    return True


def prefix_owner(state: SessionState) -> str:
    """The session whose stable prefix this one shares; its cache settings apply to both."""
    return state.parent.prefix_session_id if state.parent else state.session_id


def controls_event(controls: CacheControls, state: SessionState, model: Model) -> CacheControlsApplied | None:
    """The settings as an event; None if they are already in effect."""
    previous, settings, session = state.cache_settings, controls.settings, controls.session
    within_turn = state.turn is not None and state.turn.llm_calls > 0
    generation = previous.generation if within_turn else session.generation
    methods = invalidation_methods(model) if generation else ()
    owner = prefix_owner(state)
    enabled = session.caching_enabled and settings.providers.get(model.provider, True)
    nonce = cache_nonce(owner, generation) if "prefix_nonce" in methods else ""
    event = CacheControlsApplied(
        caching_enabled=enabled,
        ttl=settings.ttl,
        explicit_ttl_seconds=settings.gemini_ttl_seconds,
        generation=generation,
        nonce=nonce,
        cache_key=f"{owner}.{generation}" if "cache_key" in methods else "",
        refreshes=previous.refreshes if within_turn else session.refreshes,
    )
    reason = ""
    if previous.caching_enabled and not enabled:
        reason = "caching was turned off"
    elif generation != previous.generation:
        reason = "the cache was invalidated"
    if event == replace(previous, reason="", new_prefix=False):
        return None
    return replace(event, reason=reason, new_prefix=nonce != previous.nonce)


def cache_nonce(owner: str, generation: int) -> str:
    """A text that differs per session and generation, so that no cached prefix can match it."""
    return f"[cache generation {generation}: {sha256_hex(f'{owner}/{generation}'.encode())[:16]}]"


async def refresh_prefix(conversation: Conversation) -> bool:
    """Start a new epoch if the pinned texts have changed, and return whether they had; the history stays."""
    if conversation.deps.prefix_refresh is None:
        return False
    state = conversation.state
    pinned = await asyncio.to_thread(conversation.deps.prefix_refresh.find_newer_pins, state.pinned)
    if pinned is None:
        return False
    opened = EpochOpened(state.epoch + 1, pinned, state.tools, skills=state.skills, padding=state.padding)
    await conversation.record("system", opened)
    return True
