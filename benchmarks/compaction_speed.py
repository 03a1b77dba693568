"""How long it takes to decide, before a call, whether a session of 1,000 messages is to be made shorter."""

import statistics
import time

from benchmarks.request_bytes import ADAPTER, MODEL, history, view
from holdfast.compaction.decide import due
from holdfast.compaction.values import DEFAULT_CONFIG
from holdfast.engine.compacting import Standing, outlook_of
from holdfast.engine.draft import Draft
from holdfast.engine.state import State
from holdfast.layers.assemble import assemble
from holdfast.planning.memory import NOTHING_LEARNED
from holdfast.replay.play import newest_price

TIMES = 2_000
MILLISECONDS_MAX = 2.0


def deciding_milliseconds(messages: int) -> float:
    passages = history(messages)
    draft = Draft(ADAPTER, len)
    draft.update(assemble(view(passages)))
    state = State("s1", passages=passages, sent=len(passages))
    standing = Standing(
        state=state,
        draft=draft,
        model=MODEL,
        price=newest_price(MODEL, draft.scroll.tokens_total),
        at=0.0,
        learned=NOTHING_LEARNED,
        output_tokens_max=4_096,
        raw=lambda: passages,
        new_draft=lambda: Draft(ADAPTER, len),
    )
    taken = []
    for _ in range(TIMES):
        begun = time.perf_counter()
        due(outlook_of(standing), state.compaction, DEFAULT_CONFIG)
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken) * 1e3


def run() -> list[tuple[str, str]]:
    return [
        (f"{count:,} messages", f"{deciding_milliseconds(count):.4f} ms (bar: below {MILLISECONDS_MAX:g} ms)")
        for count in (101, 1001)
    ]
