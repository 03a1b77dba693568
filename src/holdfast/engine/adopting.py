"""When a session takes what its head would say now: with a compaction, when it is asked to, or with every turn."""

import asyncio

from holdfast.engine.conversation import Conversation
from holdfast.events.payloads import EpochOpened


async def adopt(conversation: Conversation) -> bool:
    """Whether another epoch begins, with another head; what was said so far stays."""
    if conversation.parts.adopting is None:
        return False
    state = conversation.state
    pinned = await asyncio.to_thread(conversation.parts.adopting.newer_pins, state.pinned)
    if pinned is None:
        return False
    opened = EpochOpened(state.epoch + 1, pinned, state.tools, skills=state.skills, padding=state.padding)
    await conversation.record("system", opened)
    return True
