"""Refreshing a session's stable prefix: at a compaction, on request, or with every turn."""

import asyncio

from holdfast.engine.conversation import Conversation
from holdfast.events.payloads import EpochOpened


async def adopt(conversation: Conversation) -> bool:
    """Start a new epoch if the pinned texts have changed, and return whether they had; the history stays."""
    if conversation.parts.adopting is None:
        return False
    state = conversation.state
    pinned = await asyncio.to_thread(conversation.parts.adopting.newer_pins, state.pinned)
    if pinned is None:
        return False
    opened = EpochOpened(state.epoch + 1, pinned, state.tools, skills=state.skills, padding=state.padding)
    await conversation.record("system", opened)
    return True
