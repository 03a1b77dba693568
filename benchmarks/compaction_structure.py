"""Whether compacted views are legal, bounded and true, over random conversations and many compactions of one."""

import sys
import time
from pathlib import Path

from holdfast.canonical.blocks import text_of
from holdfast.canonical.transcript import messages_of, validate
from holdfast.engine.compacting import Proposal, propose

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from compaction_histories import SMALL, History, standing_of

HISTORIES = 5_000
CYCLES = 1_000
TURNS_PER_CYCLE = 4
TOKENS_MAX = 8_000


class Broken(Exception):
    """A law that does not hold, and the seed it was found with."""


def compacted(history: History, seed: int) -> int:
    """Compact once and look at everything that must hold; how many tokens the messages have then."""
    before = standing_of(history)
    found = propose(before, SMALL, "asked")
    if not isinstance(found, Proposal):
        return sum(before.draft.passage_tokens())
    history.add(*found.payloads)
    after = standing_of(history)
    passages = after.state.passages
    seen = "\n".join(text_of(message.content) for message in messages_of(passages))
    old = before.state.passages
    checks = {
        "legal": validate(messages_of(passages)) == (),
        "kept untouched": passages[1:] == old[len(old) - len(passages) + 1 :],
        "goal": history.asks[0] in seen,
        "newest ask": history.asks[-1] in seen,
        "constraints": all(rule in seen for ask in history.asks for rule in ask.split("\n")[1:]),
        "head": before.draft.scroll.links[:1] == after.draft.scroll.links[:1],
        "at once": not isinstance(propose(after, SMALL, "asked"), Proposal),
    }
    if failed := [name for name, holds in checks.items() if not holds]:
        raise Broken(f"{', '.join(failed)} (seed {seed})")
    return sum(after.draft.passage_tokens())


def run() -> list[tuple[str, str]]:
    begun = time.perf_counter()
    done = 0
    for seed in range(HISTORIES):
        history = History(seed)
        for _ in range(1 + seed % 25):
            history.turn(ends=seed % 3 != 0)
        compacted(history, seed)
        done += any(passage.layer == "record" for passage in history.state().passages)
    one = History(0)
    sizes = []
    for _ in range(CYCLES):
        for _ in range(TURNS_PER_CYCLE):
            one.turn()
        sizes.append(compacted(one, 0))
    return [
        (f"{HISTORIES:,} conversations", f"all laws hold, {done:,} were compacted"),
        (f"{CYCLES:,} compactions of one", f"at most {max(sizes):,} tokens of messages (bar: {TOKENS_MAX:,})"),
        ("time", f"{time.perf_counter() - begun:.0f} s"),
    ]
