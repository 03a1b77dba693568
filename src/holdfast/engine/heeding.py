"""Applies the cache settings that users made for a session: looked up before each request, recorded when changed."""

import msgspec

from holdfast.canonical.encoding import digest
from holdfast.catalog.rows import Model
from holdfast.engine.adopting import adopt
from holdfast.engine.conversation import Conversation
from holdfast.engine.state import State
from holdfast.events.controls import Controls
from holdfast.events.payloads_controls import CacheControlled
from holdfast.providers.giving_up import ways_to_give_up


async def heed(conversation: Conversation) -> bool:
    """Apply the current cache settings, and return whether they have changed.

    A cache invalidation and a prefix refresh take effect with a turn's first call: within a turn, a changed prefix
    would invalidate the turn's thinking. Invalidating also adopts a pending system-prompt update, because the old
    prefix will not be read again.
    """
    if conversation.parts.controls is None:
        return False
    controls = await conversation.parts.controls(head_owner(conversation.state))
    event = control_of(controls, conversation.state, conversation.given.model)
    if event is None:
        return False
    previous = conversation.state.control
    await conversation.record("system", event)
    if (event.generation, event.adoptions) != (previous.generation, previous.adoptions):
        await adopt(conversation)
    return True


def head_owner(state: State) -> str:
    """The session whose stable prefix this one shares; its cache settings apply to both."""
    return state.parent.head_session_id if state.parent else state.session_id


def control_of(controls: Controls, state: State, model: Model) -> CacheControlled | None:
    """The settings as an event; None if they are already in effect."""
    previous, settings, session = state.control, controls.settings, controls.session
    within_turn = state.turn is not None and state.turn.llm_calls > 0
    generation = previous.generation if within_turn else session.generation
    methods = ways_to_give_up(model) if generation else ()
    owner = head_owner(state)
    enabled = session.caching_enabled and settings.providers.get(model.provider, True)
    nonce = nonce_of(owner, generation) if "prefix_nonce" in methods else ""
    event = CacheControlled(
        enabled=enabled,
        ttl=settings.ttl,
        kept_seconds=settings.gemini_ttl_seconds,
        generation=generation,
        nonce=nonce,
        cache_key=f"{owner}.{generation}" if "cache_key" in methods else "",
        adoptions=previous.adoptions if within_turn else session.adoptions,
    )
    reason = ""
    if previous.enabled and not enabled:
        reason = "caching was turned off"
    elif generation != previous.generation:
        reason = "the cache was invalidated"
    if event == msgspec.structs.replace(previous, reason="", new_prefix=False):
        return None
    return msgspec.structs.replace(event, reason=reason, new_prefix=nonce != previous.nonce)


def nonce_of(owner: str, generation: int) -> str:
    """A text that differs per session and generation, so that no cached prefix can match it."""
    return f"[cache generation {generation}: {digest(f'{owner}/{generation}'.encode())[:16]}]"
