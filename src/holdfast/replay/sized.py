"""What a plan would have cost, by nothing but the sizes of prompts and the times between them.

A provider's own count of a prompt is exact, so that no text has to be spelled or counted. What usage cannot tell is
held against every plan: where less was read than a lapsed lifetime explains, the prompt is taken for another one, and a
plan finds there what the recorded client found.
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal

import msgspec

from holdfast.cachemodel.machine import step
from holdfast.cachemodel.values import Call, Entries, Entry, Prefix, Scope
from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Stability, Ttl
from holdfast.canonical.scroll import Scroll
from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.rows import CacheRules, Model, Price
from holdfast.economics.cost import cost_usd
from holdfast.planning.memory import READ_SHARE_MIN
from holdfast.planning.optimum import SHORT, Step, optimum, rates_of
from holdfast.planning.ours import OurPolicy
from holdfast.planning.policy import Moment, WaitedFor
from holdfast.providers.registry import adapter_for
from holdfast.replay.recording import RecordedCall


class SizedCall(msgspec.Struct, frozen=True):
    """`found_tokens` were in the cache whatever had been planned; None where the prompt grew out of the one before.

    `ttl` is the lifetime that the recorded client used, and so what is taken to be that of what was found.
    """

    at: float
    tokens: int
    price: Price
    waited_for: WaitedFor = "start"
    found_tokens: int | None = None
    ttl: Ttl = SHORT


class Paid(msgspec.Struct, frozen=True):
    """A call with the price of its day, and the lifetime that it had its prefix kept for."""

    call: RecordedCall
    price: Price
    ttl: Ttl


def sized(calls: Iterable[Paid], rules: CacheRules) -> tuple[SizedCall, ...]:
    """Calls to one model, by their sizes."""
    found: list[SizedCall] = []
    before: Paid | None = None
    for paid in calls:
        call, usage = paid.call, paid.call.usage or Usage()
        grew = before is not None and _grew(before.call, call, rules.ttls_seconds[before.ttl])
        given = None if grew else usage.cache_read
        found.append(SizedCall(call.at, usage.tokens_sent, paid.price, call.waited_for, given, paid.ttl))
        before = paid
    return tuple(found)


def _grew(before: RecordedCall, call: RecordedCall, lifetime_seconds: float) -> bool:
    """Whether the prompt began with the one before, as far as anyone can tell."""
    if call.kept is not None or call.system_tail != before.system_tail or call.usage is None or before.usage is None:
        return False
    sent = before.usage.tokens_sent
    read = call.usage.cache_read >= sent * READ_SHARE_MIN
    # Where nothing was kept, or not for long enough, that nothing was read says nothing of the prompt.
    untold = not before.usage.cache_read + before.usage.cache_write or call.at - before.at >= lifetime_seconds
    return call.usage.tokens_sent >= sent and (read or untold)


class _Prompt:
    """The prompt of the call that was last entered: one piece for what was found, one for what each call added."""

    def __init__(self, model: Model) -> None:
        self.scroll = Scroll(adapter_for(model.provider), lambda data: self._added)
        self.prefixes: list[Prefix] = []
        self._added = 0
        self._pieces = 0

    def enter(self, call: SizedCall) -> None:
        if call.found_tokens is None:
            self._add(call.tokens - self.prefixes[-1].tokens)
            return
        self.scroll.cut(0)
        self.prefixes.clear()
        if call.found_tokens:
            self._add(call.found_tokens, head=True)
        self._add(call.tokens - call.found_tokens)

    def _add(self, tokens: int, *, head: bool = False) -> None:
        self._added = tokens
        self._pieces += 1
        data = b'{"piece":%d}' % self._pieces
        if head:
            piece = Piece("role", "system", Stability.FROZEN, data, markable=True)
        else:
            piece = Piece("history", "messages", Stability.GROWING, data, markable=True, role="user")
        self.scroll.extend((piece,))
        self.prefixes.append(Prefix(piece.place, self.scroll.links[-1].digest, self.scroll.tokens_total))


class _Track:
    """What our plan made of the cache so far, if the provider keeps to these rules."""

    def __init__(self, truth: CacheRules, policy: OurPolicy) -> None:
        self._truth, self._policy = truth, policy
        self._entries = Entries()
        self.cost_usd = Decimal(0)

    def start_anew(self, scope: Scope, head: Prefix, call: SizedCall) -> None:
        """Nothing of ours is of use to this prompt; what others left is."""
        self._policy.forget_prefix()
        entry = Entry(scope, head.digest, head.tokens, call.ttl, expires_at=call.at + 1)
        self._entries = Entries({(scope, head.digest): entry} if call.found_tokens else {})

    def send(self, moment: Moment, scope: Scope, prefixes: tuple[Prefix, ...]) -> None:
        call = Call(scope, prefixes, self._policy.marks(moment), moment.at)
        outcome, self._entries = step(self._truth, self._entries, call)
        self._policy.heard(moment, outcome.usage)
        self.cost_usd += cost_usd(outcome.usage, moment.price)


def planned_usd(
    calls: Sequence[SizedCall], model: Model, plans: Iterable[tuple[CacheRules, OurPolicy]]
) -> tuple[Decimal, ...]:
    """What the prompts cost under our plan, for each set of rules; the policies learn by it."""
    prompt, scope = _Prompt(model), Scope("", model.name)
    tracks = [_Track(truth, policy) for truth, policy in plans]
    before: SizedCall | None = None
    for call in calls:
        prompt.enter(call)
        prefixes = tuple(prompt.prefixes)
        idle = call.at - before.at if before else None
        moment = Moment(prompt.scroll, model.cache, call.price, call.at, idle, call.waited_for)
        for track in tracks:
            if call.found_tokens is not None:
                track.start_anew(scope, prefixes[0], call)
            track.send(moment, scope, prefixes)
        before = call
    return tuple(track.cost_usd for track in tracks)


def optimum_usd(calls: Sequence[SizedCall], model: Model, truth: CacheRules) -> float:
    """The least that the prompts cost; each stretch at the price of its first day and its longest prompt."""
    total = 0.0
    for stretch in _stretches(calls):
        first = stretch[0]
        price = price_at(model, utc_date(first.at), max(call.tokens for call in stretch))
        rates = rates_of(price, truth)
        found = first.found_tokens or 0
        # What was found is there for nothing: as if it had been written just before, at no cost.
        steps = [Step(found, 0, None)] if found else []
        size, at = found, first.at
        for call in stretch:
            steps.append(Step(call.tokens, size, call.at - at if steps else None))
            size, at = call.tokens, call.at
        total += optimum(steps, rates, upgrades=truth.ttl_upgrade) - rates.short * found
    return total


def _stretches(calls: Sequence[SizedCall]) -> list[list[SizedCall]]:
    found: list[list[SizedCall]] = []
    for call in calls:
        if call.found_tokens is not None or not found:
            found.append([])
        found[-1].append(call)
    return found
