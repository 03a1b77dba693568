"""How long a turn with a compaction takes beside a turn without, and a decision whether to compact.

The session reads modules of ours in each turn, over HTTP from a simulated provider in a process of its own, with
events on disk, until it was compacted a few times at 100,000 tokens, and then another at 400,000. Processor time is
that of the session's process with all threads. The time on the wall contains that of the simulated provider, which
counts the tokens of two long prompts in each turn, so a turn without a compaction is printed beside it.
"""

import asyncio
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.request_bytes import ADAPTER, MODEL, history, view
from holdfast.compaction.decision import find_compaction_trigger
from holdfast.compaction.models import DEFAULT_CONFIG, CompactionConfig
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
LINES_READ = 200
ROOT = Path(__file__).parent.parent
_PROVIDER = """
import asyncio, sys
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.server import serve_simulator

sys.path.insert(0, sys.argv[1])
from tests.support.long_conversations import read_one_file_a_turn

async def main():
    running = await serve_simulator(SimulatedProvider(script=read_one_file_a_turn))
    print(running.url, flush=True)
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


class Case(NamedTuple):
    """The limit at which a session is compacted, the files it reads at once, and how many compactions are timed."""

    tokens: int
    files: int
    compactions: int


CASES = (Case(100_000, 1, 5), Case(400_000, 4, 2))


class Turns(NamedTuple):
    """Milliseconds of each turn: of the clock on the wall, and of processor time."""

    wall: list[float]
    processor: list[float]


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
    for case in CASES:
        plain, compacted = asyncio.run(measure_turns(case))
        at = f"{case.tokens:,} tokens"
        yield (
            f"{at}: median of {len(plain.wall)} turns without a compaction",
            f"{statistics.median(plain.wall):.1f} ms, {statistics.median(plain.processor):.1f} ms of processor time "
            f"(mean {statistics.mean(plain.processor):.1f})",
        )
        yield (
            f"{at}: the longest of {len(compacted.wall)} turns with a compaction",
            f"{max(compacted.wall):.0f} ms, {max(compacted.processor):.0f} ms of processor time (bar: below "
            f"{TURN_MILLISECONDS_MAX} ms), all: {_list(compacted.wall)}; processor {_list(compacted.processor)}",
        )
    for count in (101, 1001):
        decision = f"{decision_milliseconds(count):.4f} ms (bar: below {MILLISECONDS_MAX:g} ms)"
        yield f"a decision, {count:,} messages", decision


def _list(milliseconds: list[float]) -> str:
    return ", ".join(f"{each:.0f}" for each in milliseconds)


@contextmanager
def serve_provider() -> Iterator[str]:
    """The address of a simulated provider in its own process."""
    command = [sys.executable, "-c", _PROVIDER, str(ROOT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


async def measure_turns(case: Case) -> tuple[Turns, Turns]:
    """The turns without and with a compaction."""
    folders = (ROOT / name for name in ("src", "tests", "benchmarks"))
    modules = sorted(path for folder in folders for path in folder.rglob("*.py") if path.stat().st_size > 4_000)
    texts = iter(modules)

    def read_file(path: str) -> str:
        """Reads a file."""
        read = itertools.islice(texts, case.files)
        return f"# {path}\n" + "\n".join("\n".join(file.read_text().splitlines()[:LINES_READ]) for file in read)

    plain, compacted = Turns([], []), Turns([], [])
    with tempfile.TemporaryDirectory() as folder, serve_provider() as url:
        config = CompactionConfig(auto_compaction_input_tokens_threshold=case.tokens)
        provider = {"transport": None, "base_url": url, "api_key": "any"}
        store = Path(folder) / "s.db"
        conversation = LongConversation(compaction=config, tools=(read_file,), store=store, **provider)
        async with conversation.create() as session:
            compactions: list[Event] = []
            session.subscribe(
                lambda event: compactions.append(event) if isinstance(event.payload, ContextCompacted) else None
            )
            while len(compacted.wall) < case.compactions:
                count = len(compactions)
                conversation.clock.advance(10)
                wall, processor = time.perf_counter(), time.process_time()
                await session.send(f"Go on with part {session.turn_count}.")
                turns = plain if len(compactions) == count else compacted
                turns.wall.append((time.perf_counter() - wall) * 1_000)
                turns.processor.append((time.process_time() - processor) * 1_000)
    return plain, compacted
