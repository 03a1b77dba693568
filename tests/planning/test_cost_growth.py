"""Planning a call costs the same after 3,000 messages as after 300, counted in operations."""

import pytest
from benchmarks.request_bytes import ADAPTER, MODEL, history, view
from tests.support.operations import OperationCounter

from holdfast.engine.request_draft import RequestDraft
from holdfast.layers.assemble import assemble_prompt
from holdfast.planning.learned import CacheMemory, RequestRecord, memory_after_call
from holdfast.planning.plan import plan_cache
from holdfast.planning.policy import PlanningMoment
from holdfast.replay.playback import find_newest_price
from holdfast.types.usage import Usage

CALLS_BEFORE = 20


def count_planning(messages: int, idle_seconds: float) -> int:
    """The operations of the plan that follows twenty calls, of which each waited so long for the one before."""
    entries = history(messages)
    draft, memory = RequestDraft(ADAPTER, len), CacheMemory()
    for number in range(CALLS_BEFORE + 1):
        draft.update(assemble_prompt(view(entries[: messages - 2 * (CALLS_BEFORE - number)])))
        buffer, at = draft.buffer, 1_000.0 + idle_seconds * number
        price = find_newest_price(MODEL, buffer.tokens_total)
        moment = PlanningMoment(buffer, MODEL.cache, price, at, idle_seconds, "tool")
        with OperationCounter().counting() as operations:
            plan = plan_cache(moment, memory)
        sent = RequestRecord(at, plan.breakpoints, len(buffer.blocks))
        memory = memory_after_call(memory, sent, Usage(cache_write_5m=buffer.tokens_total))
    return operations.total()


@pytest.mark.parametrize("idle_seconds", [10.0, 400.0, 4_000.0])
def test_a_plan_after_3000_messages_costs_what_it_costs_after_300(idle_seconds: float) -> None:
    short, long = (count_planning(messages, idle_seconds) for messages in (301, 3_001))
    assert 0 < long < 1.05 * short
