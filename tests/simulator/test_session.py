"""A session against the simulator, without a socket."""

from tests.support.simulated import LONG, simulator

from holdfast.clock import CountingIds, ManualClock
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallStarted
from holdfast.runtime.session import Session
from holdfast.stores.memory import MemoryStore


async def test_a_session_estimates_its_prompts_as_the_simulator_counts_them() -> None:
    """Both count the same bytes, so a difference means that one of them has a block that the other lacks."""
    store = MemoryStore()
    session = Session.create(
        model="anthropic:claude-sonnet-5-5",
        system_prompt=LONG,
        store=store,
        transport=simulator(),
        clock=ManualClock(),
        new_id=CountingIds(),
    )
    async with session:
        await session.send("One.")
        await session.send("Two.")
        payloads = [event.payload for event in store.read(session.id)]
    estimated = [payload.estimated_input_tokens for payload in payloads if isinstance(payload, LlmCallStarted)]
    usages = [payload.usage for payload in payloads if isinstance(payload, LlmCallCompleted)]
    assert estimated == [usage.tokens_sent for usage in usages]
    assert usages[1].cache_read == usages[0].tokens_sent
