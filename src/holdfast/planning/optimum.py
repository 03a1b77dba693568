"""The minimum that a session could have cost, had the times of its calls been known in advance.

Both figures assume one prompt that grows from call to call. A call reads what is still cached of the previous prompt
and pays for the rest; extra breakpoints cost nothing. With `r` the price of reading a token, `w5` and `w1` of writing
it for five minutes and for an hour, and 1 of sending it uncached:

- a call whose prompt of `P` tokens shares `S` with the previous one costs `r*S + w*(P - S)` while that is cached, and
  `w*P` once it has expired;
- an idle time of `g` seconds is bridged by `floor(g / TTL)` pings, each just before expiry, at `r` per cached token.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from holdfast.catalog.schema import CacheRules, Price

SHORT_TTL_NAME: Final = "5m"
LONG_TTL_NAME: Final = "1h"


class CallStep(msgspec.Struct, frozen=True):
    """One call: its prompt's size, how much of it the previous call sent too, and the size of the reply before it.

    `idle_seconds` is the time between the starts of the two requests; None for the first call.
    """

    prompt_tokens: int
    shared_tokens: int
    idle_seconds: float | None
    reply_tokens: int = 0


class TokenRates(msgspec.Struct, frozen=True):
    """The price of a token in each bucket, and the two TTLs."""

    plain: float
    read: float
    short: float
    long: float
    short_seconds: float = 300.0
    long_seconds: float = 3600.0


def token_rates(price: Price, rules: CacheRules) -> TokenRates:
    """In dollars per token."""
    return TokenRates(
        plain=float(price.input) / 1e6,
        read=float(price.cache_read) / 1e6,
        short=float(price.cache_write_5m) / 1e6,
        long=float(price.cache_write_1h) / 1e6,
        short_seconds=float(rules.ttls_seconds[SHORT_TTL_NAME]),
        long_seconds=float(rules.ttls_seconds[LONG_TTL_NAME]),
    )


def one_ttl_bound(steps: Sequence[CallStep], rates: TokenRates) -> float:
    """The cheaper of two schedules made with hindsight: every entry for five minutes, or every entry for an hour.

    In either, every idle time that outlasts the TTL is bridged by plain pings or followed by a rewrite, whichever is
    cheaper: with `n` pings, `n*r*S' + r*S + w*(P - S)` against `w*P`, where `S'` is the prompt that the pings repeat.
    No plan with one TTL and no upgrades can be cheaper; a plan that mixes TTLs can.
    """
    return min(
        _one_ttl_cost(steps, rates.read, rates.short, rates.short_seconds),
        _one_ttl_cost(steps, rates.read, rates.long, rates.long_seconds),
    )


def _one_ttl_cost(steps: Sequence[CallStep], read: float, write: float, seconds: float) -> float:
    total = 0.0
    previous_tokens = 0
    for step in steps:
        rewrite_cost = write * step.prompt_tokens
        if step.idle_seconds is None:
            total += rewrite_cost
        else:
            pings = math.floor(step.idle_seconds / seconds)
            warm_cost = read * step.shared_tokens + write * (step.prompt_tokens - step.shared_tokens)
            total += warm_cost if not pings else min(rewrite_cost, pings * read * previous_tokens + warm_cost)
        previous_tokens = step.prompt_tokens
    return total


class _State(msgspec.Struct, frozen=True):
    """The cache after a call: tokens cached with the short TTL, and how many of them with the long one."""

    cost: float
    short: int
    long: int


def optimal_cost(steps: Sequence[CallStep], rates: TokenRates, *, upgrades: bool) -> float:
    """The minimum cost of these calls over all sequences of TTLs, plain pings and upgrade pings.

    A dynamic programme over what is cached with which TTL. After each call `short` tokens are cached for five minutes
    and `long <= short` of them for an hour. During the next idle time a plan may ping either as often as needed, or
    send one upgrade ping: it reads `short`, writes the reply for an hour, and then all of it is cached for an hour. The
    call then reads what is left and sends the rest uncached, with five minutes or with an hour. Costs are linear in the
    position where a written range is split between TTLs, so splitting it is never better than both extremes.

    `upgrades`: whether writing for an hour after a range cached for five minutes extends that range too. If not, an
    hour can only follow what is itself cached for an hour, or nothing.

    A state that costs no less and caches no more than another is dropped. Sending uncached is tried only where the next
    call could not read the tokens anyway, or where `short + read > 2 * plain`: otherwise writing them and reading them
    once costs less than sending them twice.
    """
    states = [_State(0.0, 0, 0)]
    for index, step in enumerate(steps):
        next_step = steps[index + 1] if index + 1 < len(steps) else None
        uncached_allowed = _may_send_uncached(step, next_step, rates)
        candidates = [
            after
            for state in states
            for state_at_call in _after_gap(state, step, rates, upgrades=upgrades)
            for after in _after_call(state_at_call, step, rates, upgrades=upgrades, uncached_allowed=uncached_allowed)
        ]
        states = _undominated(candidates)
    return min(state.cost for state in states)


def _may_send_uncached(step: CallStep, next_step: CallStep | None, rates: TokenRates) -> bool:
    if next_step is None or next_step.idle_seconds is None:
        return True
    is_read_next = next_step.idle_seconds < rates.short_seconds and next_step.shared_tokens >= step.prompt_tokens
    return not is_read_next or rates.short + rates.read > 2 * rates.plain


def _after_gap(state: _State, step: CallStep, rates: TokenRates, *, upgrades: bool) -> Iterator[_State]:
    """The possible cache states when the call begins, with the pings paid for; letting everything expire is one."""
    gap = step.idle_seconds
    if gap is None:
        yield _State(state.cost, 0, 0)
        return
    hourly_pings = math.floor(gap / rates.long_seconds)
    hour_only = _State(state.cost + hourly_pings * rates.read * state.long, state.long, state.long)
    short_pings = math.floor(gap / rates.short_seconds)
    if hourly_pings == 0:
        yield hour_only if short_pings else state
    else:
        yield _State(state.cost, 0, 0)
        if state.long:
            yield hour_only
    if short_pings and state.short:
        # Pinging the longer prefix also refreshes the 1-hour prefix inside it.
        yield _State(state.cost + short_pings * rates.read * state.short, state.short, state.long)
        if upgrades:
            yield from _after_upgrade_ping(state, step, gap, rates)


def _after_upgrade_ping(state: _State, step: CallStep, gap: float, rates: TokenRates) -> Iterator[_State]:
    """Plain pings, the upgrade ping, then hourly pings.

    Minutes left over are bridged by plain pings at the start, where there is no reply to read yet.
    """
    held_tokens = state.short + step.reply_tokens
    hourly_max = math.floor(max(0.0, gap - rates.short_seconds) / rates.long_seconds)
    for hourly_pings in {hourly_max, max(0, hourly_max - 1)}:
        remaining_seconds = gap - (hourly_pings + 1) * rates.long_seconds
        plain_pings = max(0, math.floor(remaining_seconds / rates.short_seconds))
        ping_cost = (plain_pings + 1) * rates.read * state.short + hourly_pings * rates.read * held_tokens
        yield _State(state.cost + ping_cost + rates.long * step.reply_tokens, held_tokens, held_tokens)


def _after_call(
    state: _State, step: CallStep, rates: TokenRates, *, upgrades: bool, uncached_allowed: bool
) -> Iterator[_State]:
    readable = step.shared_tokens + step.reply_tokens
    read, long = min(state.short, readable), min(state.long, readable)
    rest_tokens, prompt_tokens = step.prompt_tokens - read, step.prompt_tokens
    cost = state.cost + rates.read * read
    yield _State(cost + rates.short * rest_tokens, prompt_tokens, long)
    if upgrades or read <= long:
        yield _State(cost + rates.long * rest_tokens, prompt_tokens, prompt_tokens)
    if uncached_allowed:
        yield _State(cost + rates.plain * rest_tokens, read, long)


def _undominated(states: Iterable[_State]) -> list[_State]:
    undominated: list[_State] = []
    frontier: list[_State] = []
    for state in sorted(states, key=lambda state: (state.cost, -state.short, -state.long)):
        # Only states on the frontier can dominate another; even in long sessions these are a handful.
        if not any(other.short >= state.short and other.long >= state.long for other in frontier):
            undominated.append(state)
            frontier = [other for other in frontier if other.short > state.short or other.long > state.long]
            frontier.append(state)
    return undominated
