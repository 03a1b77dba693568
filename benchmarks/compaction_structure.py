"""Whether compacted views are legal, bounded and true, over random conversations and many compactions of one."""

import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from holdfast.engine.compaction.compact import CompactionProposal, propose_compaction
from holdfast.types.blocks import join_text_blocks
from holdfast.types.transcript import merge_into_messages, validate_transcript

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.compaction_histories import SMALL, History, standing_of

HISTORIES = 5_000
CYCLES = 1_000
TURNS_PER_CYCLE = 4
CHUNK = 250
TOKENS_MAX = 8_000


class Broken(Exception):
    """A law that does not hold, and the seed it was found with."""


def compacted(history: History, seed: int) -> int:
    """Compact once and look at everything that must hold; how many tokens the messages have then."""
    before = standing_of(history)
    found = propose_compaction(before, SMALL, "requested")
    if not isinstance(found, CompactionProposal):
        return sum(before.draft.entry_tokens())
    history.add(*found.payloads)
    after = standing_of(history)
    passages = after.state.entries
    seen = "\n".join(join_text_blocks(message.content) for message in merge_into_messages(passages))
    old = before.state.entries
    checks = {
        "legal": validate_transcript(merge_into_messages(passages)) == (),
        "kept untouched": passages[1:] == old[len(old) - len(passages) + 1 :],
        "goal": history.asks[0] in seen,
        "newest ask": history.asks[-1] in seen,
        "constraints": all(rule in seen for rule in {line for ask in history.asks for line in ask.split("\n")[1:]}),
        "head": before.draft.buffer.digests[:1] == after.draft.buffer.digests[:1],
        "at once": not isinstance(propose_compaction(after, SMALL, "requested"), CompactionProposal),
    }
    if failed := [name for name, holds in checks.items() if not holds]:
        raise Broken(f"{', '.join(failed)} (seed {seed})")
    return sum(after.draft.entry_tokens())


def histories(first: int, last: int) -> int:
    """How many of the conversations of these seeds were compacted."""
    done = 0
    for seed in range(first, last):
        history = History(seed)
        for _ in range(1 + seed % 25):
            history.turn(ends=seed % 3 != 0)
        compacted(history, seed)
        done += any(passage.layer == "record" for passage in history.state().entries)
    return done


def cycles(count: int) -> tuple[int, float, float]:
    """The largest size of one conversation behind so many compactions, and the seconds of early and of late ones."""
    one = History(0)
    sizes, taken = [], []
    for _ in range(count):
        for _ in range(TURNS_PER_CYCLE):
            one.turn()
        begun = time.perf_counter()
        sizes.append(compacted(one, 0))
        taken.append(time.perf_counter() - begun)
        if len(sizes) % 100 == 0:
            print(f"{len(sizes)} cycles", file=sys.stderr, flush=True)
    return max(sizes), statistics.median(taken[50:150] or taken), statistics.median(taken[-100:])


def run() -> list[tuple[str, str]]:
    begun = time.perf_counter()
    done = 0
    with ProcessPoolExecutor(2) as pool:
        long = pool.submit(cycles, CYCLES)
        parts = [pool.submit(histories, first, first + CHUNK) for first in range(0, HISTORIES, CHUNK)]
        for count, part in enumerate(parts, start=1):
            done += part.result()
            print(f"{count * CHUNK} conversations", file=sys.stderr, flush=True)
        size, early, late = long.result()
    return [
        (f"{HISTORIES:,} conversations", f"all laws hold, {done:,} were compacted"),
        (f"{CYCLES:,} compactions of one", f"at most {size:,} tokens of messages (bar: {TOKENS_MAX:,})"),
        ("one of them, early and late", f"{early * 1e3:.0f} ms, {late * 1e3:.0f} ms, with all that is checked"),
        ("time", f"{time.perf_counter() - begun:.0f} s"),
    ]
