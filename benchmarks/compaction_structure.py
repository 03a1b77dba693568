"""Whether compacted views are valid, bounded and faithful, for random conversations and many compactions of one."""

import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from holdfast.engine.compaction.compact import CompactionProposal, propose_compaction
from holdfast.types.blocks import join_text_blocks
from holdfast.types.transcript import merge_into_messages, validate_transcript

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.compaction_histories import SMALL, History, snapshot_of

HISTORIES = 5_000
CYCLES = 1_000
TURNS_PER_CYCLE = 4
CHUNK = 250
TOKENS_MAX = 8_000


class BrokenRuleError(Exception):
    """A rule that does not hold, and the seed that shows it."""


def compact_and_check(history: History, seed: int) -> int:
    """Compact once and check every rule; returns the tokens of the messages afterwards."""
    before = snapshot_of(history)
    proposal = propose_compaction(before, SMALL, "requested")
    if not isinstance(proposal, CompactionProposal):
        return sum(before.draft.entry_tokens())
    history.add(*proposal.payloads)
    after = snapshot_of(history)
    entries = after.state.entries
    seen = "\n".join(join_text_blocks(message.content) for message in merge_into_messages(entries))
    old = before.state.entries
    checks = {
        "legal": validate_transcript(merge_into_messages(entries)) == (),
        "kept untouched": entries[1:] == old[len(old) - len(entries) + 1 :],
        "goal": history.questions[0] in seen,
        "newest ask": history.questions[-1] in seen,
        "constraints": all(
            rule in seen for rule in {line for ask in history.questions for line in ask.split("\n")[1:]}
        ),
        "head": before.draft.buffer.digests[:1] == after.draft.buffer.digests[:1],
        "at once": not isinstance(propose_compaction(after, SMALL, "requested"), CompactionProposal),
    }
    if failed := [name for name, holds in checks.items() if not holds]:
        raise BrokenRuleError(f"{', '.join(failed)} (seed {seed})")
    return sum(after.draft.entry_tokens())


def histories(first: int, last: int) -> int:
    """How many of the conversations of these seeds were compacted."""
    done = 0
    for seed in range(first, last):
        history = History(seed)
        for _ in range(1 + seed % 25):
            history.turn(ends=seed % 3 != 0)
        compact_and_check(history, seed)
        done += any(entry.layer == "record" for entry in history.state().entries)
    return done


def cycles(count: int) -> tuple[int, float, float]:
    """The largest size of one conversation after so many compactions, and the seconds of early and of late ones."""
    history = History(0)
    sizes, seconds = [], []
    for _ in range(count):
        for _ in range(TURNS_PER_CYCLE):
            history.turn()
        started = time.perf_counter()
        sizes.append(compact_and_check(history, 0))
        seconds.append(time.perf_counter() - started)
        if len(sizes) % 100 == 0:
            print(f"{len(sizes)} cycles", file=sys.stderr, flush=True)
    return max(sizes), statistics.median(seconds[50:150] or seconds), statistics.median(seconds[-100:])


def run() -> list[tuple[str, str]]:
    started = time.perf_counter()
    done = 0
    with ProcessPoolExecutor(2) as pool:
        long = pool.submit(cycles, CYCLES)
        chunks = [pool.submit(histories, first, first + CHUNK) for first in range(0, HISTORIES, CHUNK)]
        for count, chunk in enumerate(chunks, start=1):
            done += chunk.result()
            print(f"{count * CHUNK} conversations", file=sys.stderr, flush=True)
        size, early, late = long.result()
    return [
        (f"{HISTORIES:,} conversations", f"all rules hold, {done:,} were compacted"),
        (f"{CYCLES:,} compactions of one", f"at most {size:,} tokens of messages (bar: {TOKENS_MAX:,})"),
        ("one of them, early and late", f"{early * 1e3:.0f} ms, {late * 1e3:.0f} ms, with all that is checked"),
        ("time", f"{time.perf_counter() - started:.0f} s"),
    ]
