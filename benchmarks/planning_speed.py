"""How long it takes to plan the breakpoints of a call, after 100 messages and after 1,000."""

import statistics
import time

from benchmarks.request_bytes import ADAPTER, MODEL, history, view
from holdfast.engine.request_draft import RequestDraft
from holdfast.layers.assemble import assemble_prompt
from holdfast.planning.learned import CacheMemory, RequestRecord, memory_after_call
from holdfast.planning.plan import plan_cache
from holdfast.planning.policy import PlanningMoment
from holdfast.replay.playback import find_newest_price
from holdfast.types.usage import Usage

TIMES = 2_000
CALLS_BEFORE = 20
MICROSECONDS_MAX = 1_000
RATIO_MAX = 1.5


def planning_microseconds(messages: int) -> float:
    """The median, with the memory of a session that has paused now and then."""
    entries = history(messages)
    draft = RequestDraft(ADAPTER, len)
    memory, moment = CacheMemory(), None
    for number in range(CALLS_BEFORE + 1):
        draft.update(assemble_prompt(view(entries[: messages - 2 * (CALLS_BEFORE - number)])))
        buffer, at = draft.buffer, 1_000.0 + 400.0 * number
        moment = PlanningMoment(buffer, MODEL.cache, find_newest_price(MODEL, buffer.tokens_total), at, 400.0, "tool")
        if number < CALLS_BEFORE:
            sent = RequestRecord(at, plan_cache(moment, memory).breakpoints, len(buffer.blocks))
            memory = memory_after_call(memory, sent, Usage(cache_write_5m=buffer.tokens_total))
    assert moment is not None
    seconds = []
    for _ in range(TIMES):
        start = time.perf_counter()
        plan_cache(moment, memory)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e6


def run() -> list[tuple[str, str]]:
    short, long = planning_microseconds(101), planning_microseconds(1001)
    return [
        ("100 messages", f"{short:.0f} microseconds (bar: below {MICROSECONDS_MAX})"),
        ("1,000 messages", f"{long:.0f} microseconds (bar: below {MICROSECONDS_MAX})"),
        ("1,000 over 100", f"{long / short:.2f} (bar: at most {RATIO_MAX})"),
    ]
