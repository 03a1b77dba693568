"""The bound and the optimum: against brute force through the cache model, and in their order."""

import itertools
import math
from collections.abc import Iterator

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.cachemodel.machine import run_call
from holdfast.cachemodel.values import CacheCall, CacheEntries, CacheScope, PromptPrefix
from holdfast.catalog.lookup import find_model
from holdfast.catalog.schema import CacheRules
from holdfast.planning.optimum import CallStep, TokenRates, one_ttl_bound, optimal_cost
from holdfast.types.prompt import Breakpoint, Ttl
from holdfast.types.usage import Usage

RULES = msgspec.structs.replace(find_model("anthropic:claude-opus-5-5").cache, tokens_min=0)
SCOPE = CacheScope("w", "m")
RATES = [TokenRates(plain=1, read=read, short=1.25, long=2) for read in (0.1, 0.05, 0.025)]
EARLY_SECONDS = 0.001

TAILS: tuple[Ttl | None, ...] = (None, "5m", "1h")
PAUSES = ("nothing", "short", "long", "upgrade")


@st.composite
def sessions(draw: st.DrawFn, *, calls_max: int = 12) -> list[CallStep]:
    """Append-only; gaps that end on no lifetime's edge."""
    sizes = st.integers(1, 5_000)
    gaps = st.sampled_from([20.0, 200.0, 400.0, 1_000.0, 3_000.0, 3_700.0, 4_000.0, 9_000.0])
    prompt = draw(sizes)
    steps = [CallStep(prompt, 0, None)]
    for gap in draw(st.lists(gaps, max_size=calls_max - 1)):
        reply, asked = draw(sizes), draw(sizes)
        steps.append(CallStep(prompt + reply + asked, prompt, gap, reply))
        prompt += reply + asked
    return steps


class Trial:
    """One sequence of choices, played through the cache model. Pieces: each prompt ends with one, each reply is one."""

    def __init__(self, steps: list[CallStep], rates: TokenRates, rules: CacheRules) -> None:
        ends = itertools.chain.from_iterable((one.shared_tokens + one.reply_tokens, one.prompt_tokens) for one in steps)
        self.prefixes = tuple(PromptPrefix("messages", str(end), tokens) for end, tokens in enumerate(ends))
        self.steps, self.rates, self.rules = steps, rates, rules
        self.entries, self.cost = CacheEntries(), 0.0

    def send(self, end: int, marks: dict[int, Ttl], at: float) -> None:
        placed = tuple(Breakpoint(piece, marks[piece]) for piece in sorted(marks))
        outcome, self.entries = run_call(
            self.rules, self.entries, CacheCall(SCOPE, self.prefixes[: end + 1], placed, at)
        )
        self.cost += paid(outcome.usage, self.rates)

    def kept(self, at: float, ttl: Ttl | None = None) -> int | None:
        """The longest prefix that can be read, or that can be and was written for so long."""
        found = [entry for entry in self.entries.live_entries(at=at) if ttl is None or entry.ttl == ttl]
        return max((int(entry.digest) for entry in found), default=None)

    def run(self, choices: tuple[tuple[str, Ttl | None], ...]) -> float:
        at = 0.0
        for index, (pause, tail) in enumerate(choices):
            gap = self.steps[index].idle_seconds
            if gap is not None:
                self.wait(pause, 2 * index, at, gap)
                at += gap
            marks: dict[int, Ttl] = {} if tail is None else {2 * index + 1: tail}
            read, anchor = self.kept(at), self.kept(at, "1h")
            if read is not None and tail != "1h":
                marks.setdefault(read, "5m")
            if anchor is not None:
                marks[anchor] = "1h"
            self.send(2 * index + 1, marks, at)
        return self.cost

    def wait(self, pause: str, reply: int, at: float, gap: float) -> None:
        match pause:
            case "nothing":
                return
            case "short":
                self.repeat(self.kept(at), at, gap, 300.0)
            case "long":
                self.repeat(self.kept(at, "1h"), at, gap, 3_600.0)
            case _:
                hourly = math.floor(max(0.0, gap - 300) / 3_600)
                first = self.repeat(self.kept(at), at, max(0.0, gap - (hourly + 1) * 3_600), 300.0)
                first = min(first + 300 - EARLY_SECONDS, at + gap - 1)
                self.send(reply, {reply: "1h"}, first)
                self.repeat(reply, first, at + gap - first, 3_600.0)

    def repeat(self, end: int | None, at: float, gap: float, seconds: float) -> float:
        if end is None:
            return at
        entry = next(entry for entry in self.entries.live_entries(at=at) if entry.digest == str(end))
        ttl: Ttl = "1h" if entry.ttl == "1h" else "5m"
        for _ in range(math.floor(gap / seconds)):
            at += seconds - EARLY_SECONDS
            self.send(end, {end: ttl}, at)
        return at


def paid(usage: Usage, rates: TokenRates) -> float:
    written = rates.short * usage.cache_write_5m + rates.long * usage.cache_write_1h
    return rates.plain * usage.input + rates.read * usage.cache_read + written


def trials(steps: list[CallStep], rates: TokenRates, *, upgrades: bool) -> Iterator[float]:
    rules = msgspec.structs.replace(RULES, ttl_upgrade=upgrades)
    for choices in itertools.product(itertools.product(PAUSES, TAILS), repeat=len(steps)):
        if choices[0][0] == "nothing":
            yield Trial(steps, rates, rules).run(choices)


@settings(max_examples=12, deadline=None)
@given(sessions(calls_max=3), st.sampled_from(RATES), st.booleans())
@example([CallStep(1000, 0, None), CallStep(1200, 1000, 400.0, 100), CallStep(1500, 1200, 400.0, 100)], RATES[0], True)
def test_no_plan_that_was_tried_is_cheaper_than_the_optimum_and_one_is_as_cheap(
    steps: list[CallStep], rates: TokenRates, upgrades: bool
) -> None:
    cheapest = min(trials(steps, rates, upgrades=upgrades))
    best = optimal_cost(steps, rates, upgrades=upgrades)
    assert best <= cheapest * (1 + 1e-9)
    # Where a few plain pings in front of an upgrade save one of the hourly ones, the trials do not try it.
    assert cheapest <= best * 1.02


@given(sessions(), st.sampled_from(RATES))
def test_the_optimum_is_below_the_bound_and_never_dearer_where_lifetimes_upgrade(
    steps: list[CallStep], rates: TokenRates
) -> None:
    upgraded, plain = optimal_cost(steps, rates, upgrades=True), optimal_cost(steps, rates, upgrades=False)
    assert upgraded <= plain * (1 + 1e-9)
    assert plain <= one_ttl_bound(steps, rates) * (1 + 1e-9)


@given(sessions(), st.sampled_from(RATES), st.floats(1, 5_000), st.data())
def test_a_longer_pause_never_makes_a_session_cheaper(
    steps: list[CallStep], rates: TokenRates, more: float, draw: st.DataObject
) -> None:
    index = draw.draw(st.integers(0, len(steps) - 1))
    gap = steps[index].idle_seconds
    longer = [*steps]
    longer[index] = msgspec.structs.replace(steps[index], idle_seconds=None if gap is None else gap + more)
    assert one_ttl_bound(steps, rates) <= one_ttl_bound(longer, rates) * (1 + 1e-9)
    for upgrades in (True, False):
        before = optimal_cost(steps, rates, upgrades=upgrades)
        assert before <= optimal_cost(longer, rates, upgrades=upgrades) * (1 + 1e-9)


@given(sessions(), st.sampled_from(RATES))
def test_the_least_is_more_than_reading_everything_and_no_more_than_never_marking(
    steps: list[CallStep], rates: TokenRates
) -> None:
    tokens = sum(one.prompt_tokens for one in steps)
    for upgrades in (True, False):
        best = optimal_cost(steps, rates, upgrades=upgrades)
        assert rates.read * tokens < best <= rates.plain * tokens * (1 + 1e-9)


def test_a_pause_that_pings_bridge_is_paid_in_pings() -> None:
    """Worked by hand: 1.25 * 1000, one ping of 100, then 100 read and 1.25 * 200 written."""
    steps = [CallStep(1000, 0, None), CallStep(1200, 1000, 400.0)]
    assert one_ttl_bound(steps, RATES[0]) == 1250 + 100 + 100 + 250
