"""What prompts of long sessions cost with compaction as it is decided here, beside never, rolling and fixed ways.

Sessions of more than 60,000 tokens are played with their real gaps, by sizes: a call reads what the one before has sent
too, if that is still kept, and writes the rest. What a compaction loses is fetched again. Nobody knows how much that
is, so it is charged to us and to the best schedule in hindsight once as nothing and once as 4,000 tokens, and never to
the others. What is expected to be lost is the one number that the rule does not find by itself: it is chosen on one
half of the sessions, and what is told of the best in hindsight is told of the other half, both ways.
"""

import hashlib
import statistics
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import pairwise

import msgspec

from benchmarks._traces import LEFT_OUT, WITH_PAUSES, sessions_of, traces_folder
from holdfast.catalog.lookup import find_model
from holdfast.catalog.schema import Model
from holdfast.compaction.decision import (
    REFETCH_TOKENS,
    CompactionMonitor,
    CompactionOutlook,
    estimate_compacted_tokens,
    find_compaction_trigger,
    observe_call,
)
from holdfast.compaction.models import CompactionConfig
from holdfast.economics.breakeven import CacheRates
from holdfast.planning.learned import CALLS_EXPECTED
from holdfast.providers.registry import get_adapter
from holdfast.replay.playback import find_newest_price
from holdfast.replay.recording import Recording, ReplayPrompt
from holdfast.types.blocks import ToolResult
from holdfast.types.usage import Usage

TOKENS_MIN = 60_000
REGRET_MAX = 1.15
CLEARED_TOKENS = 40
LOST_TOKENS = (0, 4_000)
EXPECTED_TOKENS = (0, 1_000, 2_000, 3_000, 4_000, 6_000)
CONFIG = CompactionConfig()
WORLDS = (
    ("anthropic:claude-sonnet-4-6", "1h"),
    ("anthropic:claude-sonnet-4-6", "5m"),
    ("anthropic:claude-sonnet-5-5", "5m"),
)


class Sized(msgspec.Struct, frozen=True):
    """A call: when, and how many passages its prompt has."""

    at: float
    passages: int


class Session(msgspec.Struct, frozen=True):
    """Tokens of the head and of each passage, and which passages are outputs of tools."""

    id: str
    head: int
    tokens: tuple[int, ...]
    outputs: tuple[bool, ...]
    calls: tuple[Sized, ...]

    @property
    def prompts(self) -> list[int]:
        sums = [0]
        for one in self.tokens:
            sums.append(sums[-1] + one)
        return [self.head + sums[call.passages] for call in self.calls]


class World(msgspec.Struct, frozen=True):
    read: float
    write: float
    lifetime: float


def sized(recording: Recording, model: Model) -> Session:
    prompt = ReplayPrompt(recording, get_adapter(model.provider), model.tokens_factor)
    calls = tuple(Sized(call.at, len(prompt.entries)) for call in prompt.iterate_calls(recording))
    pieces = [prompt.prefixes[start - 1].tokens for start in prompt.entry_starts] + [prompt.prefixes[-1].tokens]
    return Session(
        recording.id,
        pieces[0],
        tuple(after - before for before, after in pairwise(pieces)),
        tuple(any(isinstance(block, ToolResult) for block in one.content) for one in prompt.entries),
        calls,
    )


def call_cost(world: World, shared: int, prompt: int, *, cold: bool) -> float:
    return world.write * prompt if cold else world.read * shared + world.write * (prompt - shared)


def never(session: Session, world: World) -> float:
    return _played(session, world, lambda passages, cleared: cleared)


def rolling(kept: int) -> Callable[[Session, World], float]:
    """All but the last outputs are cleared, one by one as new ones come."""

    def play(session: Session, world: World) -> float:
        places = [at for at, output in enumerate(session.outputs) if output]

        def clear(passages: int, cleared: frozenset[int]) -> frozenset[int]:
            return frozenset([at for at in places if at < passages][:-kept])

        return _played(session, world, clear)

    return play


def watermarks(high: int, low: int) -> Callable[[Session, World], float]:
    """Above the high mark the oldest outputs are cleared down to the low one."""

    def play(session: Session, world: World) -> float:
        def clear(passages: int, cleared: frozenset[int]) -> frozenset[int]:
            size = session.head + sum(_size(session, at, cleared) for at in range(passages))
            if size <= high:
                return cleared
            more = set(cleared)
            for at in range(passages - 1):
                if size > low and session.outputs[at] and at not in more:
                    size -= session.tokens[at] - CLEARED_TOKENS
                    more.add(at)
            return frozenset(more)

        return _played(session, world, clear)

    return play


def _size(session: Session, at: int, cleared: frozenset[int]) -> int:
    return min(CLEARED_TOKENS, session.tokens[at]) if at in cleared else session.tokens[at]


def _played(session: Session, world: World, clear: Callable[[int, frozenset[int]], frozenset[int]]) -> float:
    cost, cleared, sent, last = 0.0, frozenset[int](), 0, None
    for call in session.calls:
        now = clear(call.passages, cleared)
        news = now - cleared
        sizes = [_size(session, at, now) for at in range(call.passages)]
        first = min((min(news), sent) if news else (sent,))
        shared = session.head + sum(sizes[:first]) if last is not None else 0
        cold = last is None or call.at - last >= world.lifetime
        cost += call_cost(world, shared, session.head + sum(sizes), cold=cold)
        cleared, sent, last = now, call.passages, call.at
    return cost


def ours(session: Session, world: World, *, lost: int, expected: int = REFETCH_TOKENS) -> tuple[float, int]:
    """What the session's own decisions cost, and how often it was compacted; each time so much was lost."""
    cost, count = 0.0, 0
    view = before = 0
    watch, last = CompactionMonitor(), None
    for number, (call, prompt) in enumerate(zip(session.calls, session.prompts, strict=True)):
        cold = last is None or call.at - last >= world.lifetime
        grown = max(0, prompt - before) if last is not None else prompt
        size = view + grown
        outlook = CompactionOutlook(
            prompt_tokens=size,
            stable_prefix_tokens=session.head,
            window_tokens=1_000_000,
            output_tokens_max=32_000,
            expected_calls=max(CALLS_EXPECTED - number, number, 1.0),
            is_cache_cold=cold,
            rates=CacheRates(Decimal(str(world.read)), Decimal(str(world.write))),
            calls=watch.calls,
            sent_tokens=watch.sent_tokens,
            base_tokens=watch.base_tokens,
            refetch_tokens=expected,
        )
        if last is not None and find_compaction_trigger(outlook, watch, CONFIG) is not None:
            size, paid = compacted(session, world, size, grown, cold=cold, lost=lost)
            watch, count = CompactionMonitor(count=count + 1, base_tokens=size), count + 1
        else:
            paid = call_cost(world, view, size, cold=cold)
        cost += paid
        watch = observe_call(watch, Usage(input=size))
        view, before, last = size, prompt, call.at
    return cost, count


def compacted(session: Session, world: World, size: int, grown: int, *, cold: bool, lost: int) -> tuple[int, float]:
    """The prompt behind a compaction, with what is fetched again, and what this call costs."""
    after = session.head + max(grown, estimate_compacted_tokens(size - session.head, CONFIG)) + lost
    return after, call_cost(world, session.head, after, cold=cold)


def hindsight(session: Session, world: World, *, lost: int) -> float:
    """The cheapest schedule of compactions, found by looking at the whole session."""
    best: list[tuple[float, int]] = [(0.0, 0)]
    before, last = 0, None
    for call, prompt in zip(session.calls, session.prompts, strict=True):
        cold = last is None or call.at - last >= world.lifetime
        grown = max(0, prompt - before) if last is not None else prompt
        ways = []
        for cost, view in best:
            ways.append((cost + call_cost(world, view, view + grown, cold=cold), view + grown))
            if last is not None:
                size, paid = compacted(session, world, view + grown, grown, cold=cold, lost=lost)
                ways.append((cost + paid, size))
        best, least = [], None
        for cost, view in sorted(ways):
            if least is None or view < least:
                best.append((cost, view))
                least = view
        before, last = prompt, call.at
    return min(cost for cost, _ in best)


def run() -> list[tuple[str, str]]:
    folder = traces_folder()
    if folder is None:
        return [LEFT_OUT]
    recordings = sessions_of(folder, WITH_PAUSES, compactions=False)
    base = find_model(WORLDS[0][0])
    sessions = [one for one in (sized(each, base) for each in recordings) if one.prompts[-1] > TOKENS_MIN]
    rows = [
        ("sessions", f"{len(sessions)} over {TOKENS_MIN:,} tokens, {sum(len(one.calls) for one in sessions)} calls")
    ]
    worlds = {f"{name}, {ttl}": world_of(name, ttl) for name, ttl in WORLDS}
    for where, world in worlds.items():
        rows += _compared(where, world, sessions)
    halves = [[one for one in sessions if _half(one) == half] for half in (0, 1)]
    for chooses, told in (halves, halves[::-1]):
        best = _Hindsight(worlds)
        means = {expected: _mean(best.regrets(chooses, expected)) for expected in EXPECTED_TOKENS}
        chosen = min(means, key=lambda expected: means[expected])
        rows.append((f"expected to be lost, chosen on {len(chooses)} sessions", f"{chosen:,} tokens"))
        for expected in dict.fromkeys((chosen, REFETCH_TOKENS)):
            for (where, lost), regret in best.regrets(told, expected).items():
                label = f"  {where}: over the best in hindsight, {lost:,} lost, {expected:,} expected"
                rows.append((label, f"{regret:.3f} on the other {len(told)} (bar: {REGRET_MAX})"))
    return rows


def _half(session: Session) -> int:
    return hashlib.sha256(session.id.encode()).digest()[0] % 2


def _mean(regrets: dict[tuple[str, int], float]) -> float:
    return statistics.mean(regrets.values())


class _Hindsight:
    """How much dearer than the best schedule ours is, by world and by what is lost."""

    def __init__(self, worlds: dict[str, World]) -> None:
        self._worlds = worlds
        self._best: dict[tuple[int, str, int], float] = {}

    def regrets(self, sessions: Sequence[Session], expected: int) -> dict[tuple[str, int], float]:
        found = {}
        for where, world in self._worlds.items():
            for lost in LOST_TOKENS:
                key = id(sessions), where, lost
                if key not in self._best:
                    self._best[key] = sum(hindsight(one, world, lost=lost) for one in sessions)
                cost = sum(ours(one, world, lost=lost, expected=expected)[0] for one in sessions)
                found[where, lost] = cost / self._best[key]
        return found


def world_of(name: str, ttl: str) -> World:
    model = find_model(name)
    price = find_newest_price(model, 100_000)
    written = price.cache_write_1h if ttl == "1h" else price.cache_write_5m
    return World(
        float(price.cache_read / price.input), float(written / price.input), float(model.cache.ttls_seconds[ttl])
    )


def _compared(where: str, world: World, sessions: Sequence[Session]) -> list[tuple[str, str]]:
    plain = sum(never(one, world) for one in sessions)
    rivals = {
        "rolling, the last 10 outputs": rolling(10),
        "60k to 30k": watermarks(60_000, 30_000),
        "100k to 60k": watermarks(100_000, 60_000),
    }
    told = {label: sum(play(one, world) for one in sessions) / plain for label, play in rivals.items()}
    rows = []
    for lost in LOST_TOKENS:
        made = [ours(one, world, lost=lost) for one in sessions]
        cost, times = sum(cost for cost, _ in made), sum(count for _, count in made)
        label = f"{where}: holdfast over never, {lost:,} lost by each"
        rows.append((label, f"{cost / plain:.3f} with {times} compactions (bar: below all others)"))
    rows += [(f"{where}: {label} over never", f"{share:.3f}") for label, share in told.items()]
    return rows
