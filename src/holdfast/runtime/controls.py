"""Where a session looks up what people have set for its cache: in the store that it shares with them."""

import asyncio

from holdfast.engine.conversation import LookUpControls
from holdfast.events.controls import Controls
from holdfast.events.log import Log
from holdfast.events.records import HasRecords
from holdfast.stores.memory import MemoryStore


def controls_of(log: Log) -> LookUpControls | None:
    """None where the store keeps nothing but a log."""
    if not isinstance(log, HasRecords):
        return None
    kept = log

    async def look_up(session_id: str) -> Controls:
        if isinstance(kept, MemoryStore):
            return kept.records.controls(session_id)
        # A database may be far away, or locked: nobody else should have to wait.
        return await asyncio.to_thread(kept.records.controls, session_id)

    return look_up
