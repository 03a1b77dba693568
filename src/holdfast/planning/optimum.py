"""What a session could have cost at the least, had everyone known when its calls would come.

Both figures are of one prompt that grows from call to call. A call reads what is still kept of the prompt before it and
pays for the rest; extra marks cost nothing. With `r` the price of reading a token, `w5` and `w1` of writing it for five
minutes and for an hour, and 1 of sending it plainly:

- a call whose prompt of `P` tokens shares `S` with the one before costs `r*S + w*(P - S)` while that is kept, and
  `w*P` once it is not;
- a pause of `g` seconds is bridged by `floor(g / lifetime)` pings, each just before the end and for `r` a token kept.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from holdfast.catalog.rows import CacheRules, Price

SHORT: Final = "5m"
LONG: Final = "1h"


class Step(msgspec.Struct, frozen=True):
    """One call: how long its prompt is, how much of that the call before sent too, and how much it was answered.

    `gap_seconds` is the time between the starts of the two requests; None for the first.
    """

    prompt_tokens: int
    shared_tokens: int
    gap_seconds: float | None
    replied_tokens: int = 0


class Rates(msgspec.Struct, frozen=True):
    """What a token costs in each bucket, and for how long each lifetime keeps it."""

    plain: float
    read: float
    short: float
    long: float
    short_seconds: float = 300.0
    long_seconds: float = 3600.0


def rates_of(price: Price, rules: CacheRules) -> Rates:
    """In dollars a token."""
    return Rates(
        plain=float(price.input) / 1e6,
        read=float(price.cache_read) / 1e6,
        short=float(price.cache_write_5m) / 1e6,
        long=float(price.cache_write_1h) / 1e6,
        short_seconds=float(rules.ttls_seconds[SHORT]),
        long_seconds=float(rules.ttls_seconds[LONG]),
    )


def bound(steps: Sequence[Step], rates: Rates) -> float:
    """The better of two schedules made with hindsight: all entries for five minutes, or all for an hour.

    In either, every pause that outlasts the lifetime is bridged by plain pings or followed by a rewrite, whichever is
    cheaper: with `n` pings, `n*r*S' + r*S + w*(P - S)` against `w*P`, where `S'` is the prompt that the pings repeat.
    No plan of one lifetime without upgrades can be cheaper; a plan that mixes lifetimes can.
    """
    return min(
        _one_lifetime(steps, rates.read, rates.short, rates.short_seconds),
        _one_lifetime(steps, rates.read, rates.long, rates.long_seconds),
    )


def _one_lifetime(steps: Sequence[Step], read: float, write: float, seconds: float) -> float:
    total = 0.0
    before = 0
    for step in steps:
        rewritten = write * step.prompt_tokens
        if step.gap_seconds is None:
            total += rewritten
        else:
            pings = math.floor(step.gap_seconds / seconds)
            warm = read * step.shared_tokens + write * (step.prompt_tokens - step.shared_tokens)
            total += warm if not pings else min(rewritten, pings * read * before + warm)
        before = step.prompt_tokens
    return total


class _State(msgspec.Struct, frozen=True):
    """What a call has left: so many tokens kept for the short time, so many of them for the long one."""

    cost: float
    short: int
    long: int


def optimum(steps: Sequence[Step], rates: Rates, *, upgrades: bool) -> float:
    """The least that any sequence of lifetimes, plain pings and upgrade pings costs for these calls.

    A dynamic programme over what is kept for how long. After each call some tokens `short` are kept for five minutes
    and some `long <= short` of them for an hour. Over the next gap a plan may ping either of them as often as it takes,
    or send one upgrade ping: it reads `short`, writes the reply for an hour, and then all of it lives for an hour. The
    call then reads what is left and sends the rest plainly, for five minutes or for an hour. Costs are linear in where
    a written stretch is split between lifetimes, so that splitting it is never better than either whole.

    `upgrades`: whether a stretch written for an hour behind one that is kept for five minutes makes all of it last. If
    not, only what was read for an hour, or nothing, can carry more that lasts.

    A state that costs no less and keeps no more than another is dropped. Sending plainly is tried only where the next
    call could not read it anyway, or where `short + read > 2 * plain`: else, writing `x` tokens and reading them once
    costs less than sending them twice.
    """
    states = [_State(0.0, 0, 0)]
    for index, step in enumerate(steps):
        following = steps[index + 1] if index + 1 < len(steps) else None
        plainly = _may_send_plainly(step, following, rates)
        reached = [
            after
            for state in states
            for bridged in _bridged(state, step, rates, upgrades=upgrades)
            for after in _written(bridged, step, rates, upgrades=upgrades, plainly=plainly)
        ]
        states = _undominated(reached)
    return min(state.cost for state in states)


def _may_send_plainly(step: Step, following: Step | None, rates: Rates) -> bool:
    if following is None or following.gap_seconds is None:
        return True
    read_next = following.gap_seconds < rates.short_seconds and following.shared_tokens >= step.prompt_tokens
    return not read_next or rates.short + rates.read > 2 * rates.plain


def _bridged(state: _State, step: Step, rates: Rates, *, upgrades: bool) -> Iterator[_State]:
    """What may be kept when the call begins, and what keeping it has cost. Nothing has to be kept."""
    gap = step.gap_seconds
    if gap is None:
        yield _State(state.cost, 0, 0)
        return
    hours = math.floor(gap / rates.long_seconds)
    long = _State(state.cost + hours * rates.read * state.long, state.long, state.long)
    short_pings = math.floor(gap / rates.short_seconds)
    if hours == 0:
        yield long if short_pings else state
    else:
        yield _State(state.cost, 0, 0)
        if state.long:
            yield long
    if short_pings and state.short:
        # Whoever keeps the longer prefix by pings keeps what is inside it by the same ones.
        yield _State(state.cost + short_pings * rates.read * state.short, state.short, state.long)
        if upgrades:
            yield from _upgraded(state, step, gap, rates)


def _upgraded(state: _State, step: Step, gap: float, rates: Rates) -> Iterator[_State]:
    """`before` plain pings, the upgrade, then hourly ones: the last minutes are cheaper bridged at the start."""
    kept = state.short + step.replied_tokens
    hourly_max = math.floor(max(0.0, gap - rates.short_seconds) / rates.long_seconds)
    for hourly in {hourly_max, max(0, hourly_max - 1)}:
        rest = gap - (hourly + 1) * rates.long_seconds
        before = max(0, math.floor(rest / rates.short_seconds))
        pings = (before + 1) * rates.read * state.short + hourly * rates.read * kept
        yield _State(state.cost + pings + rates.long * step.replied_tokens, kept, kept)


def _written(state: _State, step: Step, rates: Rates, *, upgrades: bool, plainly: bool) -> Iterator[_State]:
    reachable = step.shared_tokens + step.replied_tokens
    read, long = min(state.short, reachable), min(state.long, reachable)
    rest, prompt = step.prompt_tokens - read, step.prompt_tokens
    cost = state.cost + rates.read * read
    yield _State(cost + rates.short * rest, prompt, long)
    if upgrades or read <= long:
        yield _State(cost + rates.long * rest, prompt, prompt)
    if plainly:
        yield _State(cost + rates.plain * rest, read, long)


def _undominated(states: Iterable[_State]) -> list[_State]:
    kept: list[_State] = []
    widest: list[_State] = []
    for state in sorted(states, key=lambda state: (state.cost, -state.short, -state.long)):
        # Only what keeps the most of either can stand above another; of long sessions that is a handful.
        if not any(other.short >= state.short and other.long >= state.long for other in widest):
            kept.append(state)
            widest = [other for other in widest if other.short > state.short or other.long > state.long]
            widest.append(state)
    return kept
