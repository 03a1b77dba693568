"""What prompts of long sessions cost with compaction as it is decided here, beside never, rolling and fixed ways.

Sessions of more than 60,000 tokens are played with their real gaps, by sizes: a call reads what the one before has sent
too, if that is still kept, and writes the rest. What a compaction loses is fetched again, which is charged to us and to
the best schedule in hindsight, and not to the others. No constant was fitted: a prompt is made shorter once carrying
what could go has cost as much as removing it.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import pairwise

import msgspec

from benchmarks._traces import LEFT_OUT, WITH_PAUSES, sessions_of, traces_folder
from holdfast.canonical.blocks import ToolResult
from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import find_model
from holdfast.catalog.rows import Model
from holdfast.compaction.decide import REFETCH_TOKENS, Outlook, after_tokens, due
from holdfast.compaction.values import CompactionConfig
from holdfast.compaction.watch import Watch, after_call
from holdfast.economics.compacting import Rates
from holdfast.planning.memory import CALLS_EXPECTED
from holdfast.providers.registry import adapter_for
from holdfast.replay.play import newest_price
from holdfast.replay.recording import Recording
from holdfast.replay.unrolled import Unrolled

TOKENS_MIN = 60_000
REGRET_MAX = 1.15
CLEARED_TOKENS = 40
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
    prompt = Unrolled(recording, adapter_for(model.provider), model.tokens_factor)
    calls = tuple(Sized(call.at, len(prompt.passages)) for call in prompt.calls(recording))
    pieces = [prompt.prefixes[start - 1].tokens for start in prompt.starts] + [prompt.prefixes[-1].tokens]
    return Session(
        pieces[0],
        tuple(after - before for before, after in pairwise(pieces)),
        tuple(any(isinstance(block, ToolResult) for block in one.content) for one in prompt.passages),
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


def ours(session: Session, world: World) -> tuple[float, int]:
    """What the session's own decisions cost, and how often it was compacted."""
    cost, count = 0.0, 0
    view = before = 0
    watch, last = Watch(), None
    for number, (call, prompt) in enumerate(zip(session.calls, session.prompts, strict=True)):
        cold = last is None or call.at - last >= world.lifetime
        grown = max(0, prompt - before) if last is not None else prompt
        size = view + grown
        outlook = Outlook(
            prompt_tokens=size,
            head_tokens=session.head,
            window_tokens=1_000_000,
            output_tokens_max=32_000,
            calls_expected=max(CALLS_EXPECTED - number, number, 1.0),
            cold=cold,
            rates=Rates(Decimal(str(world.read)), Decimal(str(world.write))),
            calls=watch.calls,
            sent_tokens=watch.sent_tokens,
        )
        if last is not None and due(outlook, watch, CONFIG) is not None:
            size, paid = compacted(session, world, size, grown, cold=cold)
            watch, count = Watch(count=count + 1), count + 1
        else:
            paid = call_cost(world, view, size, cold=cold)
        cost += paid
        watch = after_call(watch, Usage(input=size))
        view, before, last = size, prompt, call.at
    return cost, count


def compacted(session: Session, world: World, size: int, grown: int, *, cold: bool) -> tuple[int, float]:
    """The prompt behind a compaction, with what is fetched again, and what this call costs."""
    zero = Rates(Decimal(0), Decimal(0))
    outlook = Outlook(size, session.head, 1_000_000, 0, calls_expected=1.0, cold=cold, rates=zero)
    after = session.head + max(grown, after_tokens(outlook, CONFIG)) + REFETCH_TOKENS
    return after, call_cost(world, session.head, after, cold=cold)


def hindsight(session: Session, world: World) -> float:
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
                size, paid = compacted(session, world, view + grown, grown, cold=cold)
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
    for name, ttl in WORLDS:
        rows += _compared(name, ttl, sessions)
    return rows


def _compared(name: str, ttl: str, sessions: Sequence[Session]) -> list[tuple[str, str]]:
    model = find_model(name)
    price = newest_price(model, 100_000)
    written = price.cache_write_1h if ttl == "1h" else price.cache_write_5m
    world = World(
        float(price.cache_read / price.input), float(written / price.input), float(model.cache.ttls_seconds[ttl])
    )
    plain = sum(never(one, world) for one in sessions)
    made = [ours(one, world) for one in sessions]
    cost, times = sum(cost for cost, _ in made), sum(count for _, count in made)
    best = sum(hindsight(one, world) for one in sessions)
    rivals = {
        "rolling, the last 10 outputs": rolling(10),
        "60k to 30k": watermarks(60_000, 30_000),
        "100k to 60k": watermarks(100_000, 60_000),
    }
    told = {label: sum(play(one, world) for one in sessions) / plain for label, play in rivals.items()}
    where = f"{name}, {ttl}"
    rows = [(f"{where}: holdfast over never", f"{cost / plain:.3f} with {times} compactions (bar: below all others)")]
    rows += [(f"{where}: {label} over never", f"{share:.3f}") for label, share in told.items()]
    rows.append((f"{where}: holdfast over the best in hindsight", f"{cost / best:.3f} (bar: {REGRET_MAX})"))
    return rows
