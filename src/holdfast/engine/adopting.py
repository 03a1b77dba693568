"""When a session takes what its head would say now: with a compaction, when it is asked to, or with every turn."""

import asyncio

from holdfast.engine.conversation import Conversation
from holdfast.events.payloads import EpochOpened


async def adopt(talk: Conversation) -> bool:
    """Whether another epoch begins, with another head; what was said so far stays."""
    if talk.parts.adopting is None:
        return False
    state = talk.state
    pinned = await asyncio.to_thread(talk.parts.adopting.newer_pins, state.pinned)
    if pinned is None:
        return False
    opened = EpochOpened(state.epoch + 1, pinned, state.tools, skills=state.skills, padding=state.padding)
    await talk.record("system", opened)
    return True
