"""What one turn writes to the log, and in how many commits; counted, so that it cannot depend on the machine."""

from collections.abc import Sequence
from concurrent.futures import Future

import pytest
from tests.support.agents import MakeAgent, says

from holdfast import tool
from holdfast.errors import StoreError
from holdfast.events.log import Event, event_type_of
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import ToolUse

OPENING = ["turn.started", "message.appended", "request.prepared", "llm.call_started"]
CLOSING = ["llm.call_completed", "message.appended", "turn.completed"]


class CountingStore(MemoryStore):
    """Keeps the types of events of each append; refuses the appends that contain the type `refused`."""

    def __init__(self) -> None:
        super().__init__()
        self.appends: list[list[str]] = []
        self.refused = ""

    def append(self, events: Sequence[Event], *, at_head: bool = False) -> Future[None]:
        types = [event_type_of(event.payload) for event in events]
        if self.refused in types:
            refusal: Future[None] = Future()
            refusal.set_exception(StoreError("the disk is full"))
            return refusal
        self.appends.append(types)
        return super().append(events, at_head=at_head)


async def test_a_turn_is_two_commits_however_long_the_conversation_is(agent: MakeAgent) -> None:
    store = CountingStore()
    turns = 30
    async with agent(*[says("ok")] * turns, store=store).session as session:
        for _ in range(turns):
            store.appends.clear()
            await session.send("hello")
            appends = [[type for type in types if type != "cache.learned"] for types in store.appends]
            assert appends == [OPENING, CLOSING]


async def test_a_reply_is_on_the_log_before_the_tools_that_it_calls_run(agent: MakeAgent) -> None:
    store = CountingStore()
    seen: list[str] = []

    @tool
    def look() -> str:
        """Look."""
        seen.extend(event_type_of(event.payload) for event in store.read(session.id))
        return "nothing"

    async with agent(says(ToolUse("t", "look", "{}")), says("ok"), tools=[look], store=store).session as session:
        await session.send("look around")
    assert seen[-3:] == ["llm.call_completed", "message.appended", "tool.called"]


@pytest.mark.parametrize("refused", ["llm.call_started", "turn.completed"])
async def test_after_a_refused_append_the_session_is_as_the_log_has_it(agent: MakeAgent, refused: str) -> None:
    store = CountingStore()
    async with agent(says("ok"), says("fine"), says("good"), store=store).session as session:
        await session.send("hello")
        store.refused = refused
        with pytest.raises(StoreError, match="disk is full"):
            await session.send("lost")
        store.refused = ""
        stored = [event.payload for event in store.read(session.id)]
        assert ("lost" in str(stored)) == (refused == "turn.completed")
        await session.send("again")
        texts = str(session.history)
        assert ("lost" in texts, "again" in texts) == (refused == "turn.completed", True)
