"""How long a turn with a compaction takes beside a turn without, and a decision whether to compact.

The session reads a module of ours in each turn, with a simulated provider in the same process and events on disk, until
it was compacted a few times at 100,000 tokens. Milliseconds are wall-clock time.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.request_bytes import ADAPTER, MODEL, history, view
from holdfast.compaction.decision import find_compaction_trigger
from holdfast.compaction.models import DEFAULT_CONFIG
from holdfast.engine.compaction.compact import CompactionSnapshot, compaction_outlook
from holdfast.engine.compaction.history import LoggedMessages
from holdfast.engine.request_draft import RequestDraft
from holdfast.engine.state import SessionState
from holdfast.events.log import Event
from holdfast.events.payloads.compaction import ContextCompacted
from holdfast.layers.assemble import assemble_prompt
from holdfast.planning.learned import NOTHING_LEARNED
from holdfast.replay.playback import find_newest_price

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.long_conversations import LongConversation

TIMES = 2_000
MILLISECONDS_MAX = 2.0
TURN_MILLISECONDS_MAX = 60
COMPACTIONS = 5
SOURCES = Path(__file__).parent.parent / "src" / "holdfast"
LINES_READ = 200


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


def run() -> Iterator[tuple[str, str]]:
    plain, compacted = asyncio.run(turn_milliseconds())
    yield f"median of {len(plain)} turns without a compaction", f"{statistics.median(plain):.1f} ms"
    listed = ", ".join(f"{milliseconds:.0f}" for milliseconds in compacted)
    worst = f"{max(compacted):.0f} ms (bar: below {TURN_MILLISECONDS_MAX} ms), all: {listed}"
    yield f"the longest of {len(compacted)} turns with a compaction", worst
    for count in (101, 1001):
        decision = f"{decision_milliseconds(count):.4f} ms (bar: below {MILLISECONDS_MAX:g} ms)"
        yield f"a decision, {count:,} messages", decision


async def turn_milliseconds() -> tuple[list[float], list[float]]:
    """The durations of turns without and with a compaction."""
    modules = sorted(path for path in SOURCES.rglob("*.py") if path.stat().st_size > 4_000)
    texts = iter(modules)

    def read_file(path: str) -> str:
        """Reads a file."""
        return f"# {path}\n" + "\n".join(next(texts).read_text().splitlines()[:LINES_READ])

    plain: list[float] = []
    compacted: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "s.db"
        conversation = LongConversation(compaction="threshold", tools=(read_file,), store=store)
        async with conversation.create() as session:
            compactions: list[Event] = []
            session.subscribe(
                lambda event: compactions.append(event) if isinstance(event.payload, ContextCompacted) else None
            )
            while len(compacted) < COMPACTIONS:
                count = len(compactions)
                conversation.clock.advance(10)
                start = time.perf_counter()
                await session.send(f"Go on with part {session.turn_count}.")
                (plain if len(compactions) == count else compacted).append((time.perf_counter() - start) * 1_000)
    return plain, compacted
