"""What the prompts of long sessions cost with our compaction, without any, and with other ways of clearing.

Sessions of more than 60,000 tokens are replayed with their real idle times, by sizes: a call reads what it shares with
the previous one, if that is still cached, and writes the rest. What a compaction removes may be fetched again. How much
that is is not known, so our schedule and the optimal one are charged for it twice, with 0 and with 4,000 tokens; the
others never are. The expected amount is the only number that the rule does not derive itself: it is chosen on one half
of the sessions, and the comparison with the optimum is made on the other half, both ways.
"""

import hashlib
import statistics
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import pairwise

import msgspec

from benchmarks._traces import SKIPPED, WITH_PAUSES, sessions_of, traces_folder
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
RATIO_MAX = 1.15
CLEARED_TOKENS = 40
REFETCHED_TOKENS = (0, 4_000)
EXPECTED_TOKENS = (0, 1_000, 2_000, 3_000, 4_000, 6_000)
CONFIG = CompactionConfig(mode="economical")
SETTINGS = (
    ("anthropic:claude-sonnet-4-6", "1h"),
    ("anthropic:claude-sonnet-4-6", "5m"),
    ("anthropic:claude-sonnet-5-5", "5m"),
)


class SizedCall(msgspec.Struct, frozen=True):
    """A call: its time, and the number of history entries in its prompt."""

    at: float
    entries: int


class Session(msgspec.Struct, frozen=True):
    """Tokens of the stable prefix and of each history entry, and which entries are tool outputs."""

    id: str
    prefix_tokens: int
    tokens: tuple[int, ...]
    outputs: tuple[bool, ...]
    calls: tuple[SizedCall, ...]

    @property
    def prompts(self) -> list[int]:
        sums = [0]
        for tokens in self.tokens:
            sums.append(sums[-1] + tokens)
        return [self.prefix_tokens + sums[call.entries] for call in self.calls]


class CacheSetting(msgspec.Struct, frozen=True):
    read: float
    write: float
    ttl_seconds: float


def measure_session(recording: Recording, model: Model) -> Session:
    prompt = ReplayPrompt(recording, get_adapter(model.provider), model.tokens_factor)
    calls = tuple(SizedCall(call.at, len(prompt.entries)) for call in prompt.iterate_calls(recording))
    sums = [prompt.prefixes[start - 1].tokens for start in prompt.entry_starts] + [prompt.prefixes[-1].tokens]
    return Session(
        recording.id,
        sums[0],
        tuple(after - before for before, after in pairwise(sums)),
        tuple(any(isinstance(block, ToolResult) for block in entry.content) for entry in prompt.entries),
        calls,
    )


def call_cost(setting: CacheSetting, shared: int, prompt: int, *, cold: bool) -> float:
    return setting.write * prompt if cold else setting.read * shared + setting.write * (prompt - shared)


def cost_uncompacted(session: Session, setting: CacheSetting) -> float:
    return _replay(session, setting, lambda entries, cleared: cleared)


def clear_rolling(outputs_retained: int) -> Callable[[Session, CacheSetting], float]:
    """All but the last outputs are cleared, one by one as new ones come."""

    def play(session: Session, setting: CacheSetting) -> float:
        places = [at for at, output in enumerate(session.outputs) if output]

        def clear(entries: int, cleared: frozenset[int]) -> frozenset[int]:
            return frozenset([at for at in places if at < entries][:-outputs_retained])

        return _replay(session, setting, clear)

    return play


def clear_above(high: int, low: int) -> Callable[[Session, CacheSetting], float]:
    """Above the upper limit the oldest outputs are cleared down to the lower one."""

    def play(session: Session, setting: CacheSetting) -> float:
        def clear(entries: int, cleared: frozenset[int]) -> frozenset[int]:
            size = session.prefix_tokens + sum(_size(session, at, cleared) for at in range(entries))
            if size <= high:
                return cleared
            more = set(cleared)
            for at in range(entries - 1):
                if size > low and session.outputs[at] and at not in more:
                    size -= session.tokens[at] - CLEARED_TOKENS
                    more.add(at)
            return frozenset(more)

        return _replay(session, setting, clear)

    return play


def _size(session: Session, at: int, cleared: frozenset[int]) -> int:
    return min(CLEARED_TOKENS, session.tokens[at]) if at in cleared else session.tokens[at]


def _replay(session: Session, setting: CacheSetting, clear: Callable[[int, frozenset[int]], frozenset[int]]) -> float:
    cost, cleared, sent, last = 0.0, frozenset[int](), 0, None
    for call in session.calls:
        now = clear(call.entries, cleared)
        newly_cleared = now - cleared
        sizes = [_size(session, at, now) for at in range(call.entries)]
        first = min((min(newly_cleared), sent) if newly_cleared else (sent,))
        shared = session.prefix_tokens + sum(sizes[:first]) if last is not None else 0
        cold = last is None or call.at - last >= setting.ttl_seconds
        cost += call_cost(setting, shared, session.prefix_tokens + sum(sizes), cold=cold)
        cleared, sent, last = now, call.entries, call.at
    return cost


def cost_compacted(
    session: Session, setting: CacheSetting, *, refetched: int, expected_refetch: int = REFETCH_TOKENS
) -> tuple[float, int]:
    """The cost of the session's own decisions, and how often it was compacted; each time `refetched` tokens return."""
    cost, count = 0.0, 0
    view = before = 0
    watch, last = CompactionMonitor(), None
    for number, (call, prompt) in enumerate(zip(session.calls, session.prompts, strict=True)):
        cold = last is None or call.at - last >= setting.ttl_seconds
        growth = max(0, prompt - before) if last is not None else prompt
        size = view + growth
        outlook = CompactionOutlook(
            prompt_tokens=size,
            stable_prefix_tokens=session.prefix_tokens,
            window_tokens=1_000_000,
            output_tokens_max=32_000,
            expected_calls=max(CALLS_EXPECTED - number, number, 1.0),
            is_cache_cold=cold,
            rates=CacheRates(Decimal(str(setting.read)), Decimal(str(setting.write))),
            calls=watch.calls,
            sent_tokens=watch.sent_tokens,
            base_tokens=watch.base_tokens,
            refetch_tokens=expected_refetch,
        )
        if last is not None and find_compaction_trigger(outlook, watch, CONFIG) is not None:
            size, paid = compact_prompt(session, setting, size, growth, cold=cold, refetched=refetched)
            watch, count = CompactionMonitor(count=count + 1, base_tokens=size), count + 1
        else:
            paid = call_cost(setting, view, size, cold=cold)
        cost += paid
        watch = observe_call(watch, Usage(input=size))
        view, before, last = size, prompt, call.at
    return cost, count


def compact_prompt(
    session: Session, setting: CacheSetting, size: int, growth: int, *, cold: bool, refetched: int
) -> tuple[int, float]:
    """The prompt after a compaction, with what is fetched again, and what this call costs."""
    after = (
        session.prefix_tokens + max(growth, estimate_compacted_tokens(size - session.prefix_tokens, CONFIG)) + refetched
    )
    return after, call_cost(setting, session.prefix_tokens, after, cold=cold)


def cost_optimal(session: Session, setting: CacheSetting, *, refetched: int) -> float:
    """The cheapest schedule of compactions, found by looking at the whole session."""
    best: list[tuple[float, int]] = [(0.0, 0)]
    before, last = 0, None
    for call, prompt in zip(session.calls, session.prompts, strict=True):
        cold = last is None or call.at - last >= setting.ttl_seconds
        growth = max(0, prompt - before) if last is not None else prompt
        options = []
        for cost, view in best:
            options.append((cost + call_cost(setting, view, view + growth, cold=cold), view + growth))
            if last is not None:
                size, paid = compact_prompt(session, setting, view + growth, growth, cold=cold, refetched=refetched)
                options.append((cost + paid, size))
        best, smallest = [], None
        for cost, view in sorted(options):
            if smallest is None or view < smallest:
                best.append((cost, view))
                smallest = view
        before, last = prompt, call.at
    return min(cost for cost, _ in best)


def run() -> list[tuple[str, str]]:
    folder = traces_folder()
    if folder is None:
        return [SKIPPED]
    recordings = sessions_of(folder, WITH_PAUSES, compactions=False)
    base = find_model(SETTINGS[0][0])
    sessions = [
        session for session in (measure_session(each, base) for each in recordings) if session.prompts[-1] > TOKENS_MIN
    ]
    rows = [
        (
            "sessions",
            f"{len(sessions)} over {TOKENS_MIN:,} tokens, {sum(len(session.calls) for session in sessions)} calls",
        )
    ]
    settings = {f"{name}, {ttl}": make_setting(name, ttl) for name, ttl in SETTINGS}
    for setting_name, setting in settings.items():
        rows += _compare(setting_name, setting, sessions)
    halves = [[session for session in sessions if _half(session) == half] for half in (0, 1)]
    for chooses, shares in (halves, halves[::-1]):
        best = _OptimalCosts(settings)
        means = {
            expected_refetch: _mean(best.cost_ratios(chooses, expected_refetch)) for expected_refetch in EXPECTED_TOKENS
        }
        chosen = min(means, key=lambda expected_refetch: means[expected_refetch])
        rows.append((f"expected to be fetched again, chosen on {len(chooses)} sessions", f"{chosen:,} tokens"))
        for expected_refetch in dict.fromkeys((chosen, REFETCH_TOKENS)):
            for (setting_name, refetched), ratio in best.cost_ratios(shares, expected_refetch).items():
                label = (
                    f"  {setting_name}: over the optimum, {refetched:,} fetched again, {expected_refetch:,} expected"
                )
                rows.append((label, f"{ratio:.3f} on the other {len(shares)} (bar: {RATIO_MAX})"))
    return rows


def _half(session: Session) -> int:
    return hashlib.sha256(session.id.encode()).digest()[0] % 2


def _mean(cost_ratios: dict[tuple[str, int], float]) -> float:
    return statistics.mean(cost_ratios.values())


class _OptimalCosts:
    """What our schedule costs relative to the optimal one, by setting and by the tokens fetched again."""

    def __init__(self, settings: dict[str, CacheSetting]) -> None:
        self._worlds = settings
        self._best: dict[tuple[int, str, int], float] = {}

    def cost_ratios(self, sessions: Sequence[Session], expected_refetch: int) -> dict[tuple[str, int], float]:
        found = {}
        for setting_name, setting in self._worlds.items():
            for refetched in REFETCHED_TOKENS:
                key = id(sessions), setting_name, refetched
                if key not in self._best:
                    self._best[key] = sum(cost_optimal(session, setting, refetched=refetched) for session in sessions)
                cost = sum(
                    cost_compacted(session, setting, refetched=refetched, expected_refetch=expected_refetch)[0]
                    for session in sessions
                )
                found[setting_name, refetched] = cost / self._best[key]
        return found


def make_setting(name: str, ttl: str) -> CacheSetting:
    model = find_model(name)
    price = find_newest_price(model, 100_000)
    written = price.cache_write_1h if ttl == "1h" else price.cache_write_5m
    return CacheSetting(
        float(price.cache_read / price.input), float(written / price.input), float(model.cache.ttls_seconds[ttl])
    )


def _compare(setting_name: str, setting: CacheSetting, sessions: Sequence[Session]) -> list[tuple[str, str]]:
    plain = sum(cost_uncompacted(session, setting) for session in sessions)
    rivals = {
        "rolling, the last 10 outputs": clear_rolling(10),
        "60k to 30k": clear_above(60_000, 30_000),
        "100k to 60k": clear_above(100_000, 60_000),
    }
    shares = {label: sum(play(session, setting) for session in sessions) / plain for label, play in rivals.items()}
    rows = []
    for refetched in REFETCHED_TOKENS:
        results = [cost_compacted(session, setting, refetched=refetched) for session in sessions]
        cost, times = sum(cost for cost, _ in results), sum(count for _, count in results)
        label = f"{setting_name}: holdfast over no compaction, {refetched:,} fetched again by each"
        rows.append((label, f"{cost / plain:.3f} with {times} compactions (bar: below all others)"))
    rows += [(f"{setting_name}: {label} over no compaction", f"{share:.3f}") for label, share in shares.items()]
    return rows
