"""How long it takes to decide, before a call, whether to compact a session of 1,000 messages."""

import statistics
import time

from benchmarks.request_bytes import ADAPTER, MODEL, history, view
from holdfast.compaction.decision import find_compaction_trigger
from holdfast.compaction.models import DEFAULT_CONFIG
from holdfast.engine.compaction.compact import CompactionSnapshot, compaction_outlook
from holdfast.engine.compaction.history import LoggedMessages
from holdfast.engine.request_draft import RequestDraft
from holdfast.engine.state import SessionState
from holdfast.layers.assemble import assemble_prompt
from holdfast.planning.learned import NOTHING_LEARNED
from holdfast.replay.playback import find_newest_price

TIMES = 2_000
MILLISECONDS_MAX = 2.0


def decision_milliseconds(messages: int) -> float:
    entries = history(messages)
    draft = RequestDraft(ADAPTER, len)
    draft.update(assemble_prompt(view(entries)))
    state = SessionState("s1", entries=entries, sent_count=len(entries))
    snapshot = CompactionSnapshot(
        state=state,
        draft=draft,
        model=MODEL,
        price=find_newest_price(MODEL, draft.buffer.tokens_total),
        at=0.0,
        learned=NOTHING_LEARNED,
        output_tokens_max=4_096,
        logged=LoggedMessages(lambda _: ()),
        new_draft=lambda: RequestDraft(ADAPTER, len),
    )
    seconds = []
    for _ in range(TIMES):
        started = time.perf_counter()
        find_compaction_trigger(compaction_outlook(snapshot), state.compaction_watch, DEFAULT_CONFIG)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1e3


def run() -> list[tuple[str, str]]:
    return [
        (f"{count:,} messages", f"{decision_milliseconds(count):.4f} ms (bar: below {MILLISECONDS_MAX:g} ms)")
        for count in (101, 1001)
    ]
