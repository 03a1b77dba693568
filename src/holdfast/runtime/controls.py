"""Gives a session access to the cache controls that users set for it in the shared store."""

import asyncio

from holdfast.engine.conversation import LookUpControls
from holdfast.events.controls import Controls
from holdfast.events.log import Log
from holdfast.events.records import HasRecords
from holdfast.stores.memory import MemoryStore


def controls_of(log: Log) -> LookUpControls | None:
    """A function that reads the controls of a session; None if the store holds nothing but a log."""
    if not isinstance(log, HasRecords):
        return None
    store = log

    async def look_up(session_id: str) -> Controls:
        if isinstance(store, MemoryStore):
            return store.records.controls(session_id)
        # A database may be remote or locked, and a query on the event loop would block every other session.
        return await asyncio.to_thread(store.records.controls, session_id)

    return look_up
