"""What a forwarded session would have cost: improved, under the plans of others, and at the least.

The log has no text of it, but of every block a digest, its size, and what kind it is. Prompts only, by the model of the
cache, and tokens as the provider counted them: figures to be compared with one another.
"""

from collections.abc import Iterable, Iterator
from decimal import Decimal

import msgspec

from holdfast.cachemodel.machine import step
from holdfast.cachemodel.values import BlockKind, Call, Entries, Prefix, Scope
from holdfast.canonical.blocks import Role
from holdfast.canonical.pieces import Link, Piece
from holdfast.canonical.prompt import Place, Stability
from holdfast.canonical.scroll import Scroll
from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import Models, find_model, price_at, utc_date
from holdfast.catalog.rows import Model, Price
from holdfast.economics.cost import cost_usd
from holdfast.errors import UserError
from holdfast.events.envelope import Event
from holdfast.events.payloads import LlmCallCompleted, LlmCallFailed, LlmCallStarted, RequestPrepared
from holdfast.events.payloads_gateway import GatewayForwarded
from holdfast.ledger.calls import pinging_cost_usd
from holdfast.planning.fixed import TEXT_STARTS
from holdfast.planning.memory import Learned
from holdfast.planning.optimum import Step, optimum, rates_of
from holdfast.planning.ours import OurPolicy
from holdfast.planning.policy import Moment, Policy
from holdfast.planning.rivals import compared
from holdfast.providers.registry import adapter_for
from holdfast.replay.layouts import LAYOUTS

_PLACES: dict[str, Place] = {"t": "tools", "s": "system"}


class HabitPrice(msgspec.Struct, frozen=True):
    """What leaving one habit as it is costs, where all others are mended; in how many calls it was met."""

    habit: str
    calls: int
    mended: bool
    usd: float


class PolicyPrice(msgspec.Struct, frozen=True):
    policy: str
    usd: float


class Counterfactual(msgspec.Struct, frozen=True):
    """`cost_usd` is what was paid, replies and pings included. All others are of prompts alone, by the model.

    `optimum_usd` is the least that the prompts cost as they were sent, whoever had placed the marks; that of improved
    ones is `improved_optimum_usd`. Where nothing can be planned there are no policies, and no optimum.
    """

    calls: int
    cost_usd: float
    as_sent_usd: float
    improved_usd: float
    optimum_usd: float | None
    improved_optimum_usd: float | None
    habits: tuple[HabitPrice, ...]
    policies: tuple[PolicyPrice, ...]


class _Asked(msgspec.Struct):
    """A request as the log tells it; `tokens` is the provider's count, once it is known.

    One that came to nothing was not paid for, and has left nothing in a cache.
    """

    at: float
    model: str
    forwarded: GatewayForwarded
    kept: int
    links: tuple[Link, ...]
    tokens: int
    cost_usd: Decimal = Decimal(0)
    came_to_nothing: bool = False


def paid_for(events: Iterable[Event]) -> tuple[GatewayForwarded, ...]:
    """What is known of each forwarded call that was answered, or is under way."""
    return tuple(one.forwarded for one in _asked(events) if not one.came_to_nothing)


def counterfactual(events: Iterable[Event], models: Models) -> Counterfactual | None:
    """None where no call of the session went through a gateway, was answered and was priced."""
    known = list(events)
    asked = [one for one in _asked(known) if one.forwarded.priced is not None]
    answered = [one for one in asked if not one.came_to_nothing]
    if not answered:
        return None
    spent = sum((one.cost_usd for one in answered), pinging_cost_usd(known))
    least, least_improved, policies = _planned(asked, models)
    priced = [one.forwarded.priced for one in answered if one.forwarded.priced is not None]
    as_sent = sum(one.as_sent_usd for one in priced)
    improved = sum(one.improved_usd for one in priced)
    paid = (as_sent, *(row.usd for row in policies))
    return Counterfactual(
        calls=len(answered),
        cost_usd=float(spent),
        as_sent_usd=as_sent,
        improved_usd=improved,
        # Counts are rounded a little differently; what somebody reached is never below the least.
        optimum_usd=None if least is None else min(least, *paid),
        improved_optimum_usd=None if least_improved is None else min(least_improved, improved),
        habits=_habits(answered),
        policies=policies,
    )


def _asked(events: Iterable[Event]) -> Iterator[_Asked]:
    forwarded: GatewayForwarded | None = None
    prepared: RequestPrepared | None = None
    under_way: dict[str, _Asked] = {}
    begun: list[_Asked] = []
    for event in events:
        match event.payload:
            case GatewayForwarded() as it:
                forwarded = it
            case RequestPrepared() as it:
                prepared = it
            case LlmCallStarted() as it:
                if forwarded is not None and prepared is not None:
                    size = forwarded.priced.tokens if forwarded.priced else 0
                    kept, links = prepared.shared_blocks, prepared.links
                    one = _Asked(event.at, it.model, forwarded, kept, links, size)
                    under_way[it.request_id] = one
                    begun.append(one)
            case LlmCallCompleted() | LlmCallFailed() as it:
                ended = under_way.pop(it.request_id, None)
                if ended is not None:
                    ended.tokens = it.usage.tokens_sent or ended.tokens
                    ended.cost_usd = it.cost_usd
                    ended.came_to_nothing = isinstance(it, LlmCallFailed) and it.usage == Usage()
            case _:
                pass
    return iter(begun)


def _habits(asked: Iterable[_Asked]) -> tuple[HabitPrice, ...]:
    found: dict[tuple[str, bool], tuple[int, float]] = {}
    for one in asked:
        for change in one.forwarded.changes:
            calls, usd = found.get((change.habit, change.done), (0, 0.0))
            found[change.habit, change.done] = calls + 1, usd + (change.usd or 0.0)
    rows = (HabitPrice(habit, calls, done, usd) for (habit, done), (calls, usd) in found.items())
    return tuple(sorted(rows, key=lambda row: (-row.usd, row.habit)))


def _planned(asked: list[_Asked], models: Models) -> tuple[float | None, float | None, tuple[PolicyPrice, ...]]:
    """The least the prompts cost as sent and improved, and what each policy makes of them."""
    try:
        row = find_model(asked[-1].model, models)
    except UserError:
        return None, None, ()
    if row.cache.kind != "marks" or not {"5m", "1h"} <= row.cache.ttls_seconds.keys() or not row.prices:
        return None, None, ()
    # What lays prompts out anew needs their text.
    rivals = [policy for name, policy in compared().items() if name not in LAYOUTS]
    tracks = [_Track(policy, row) for policy in (OurPolicy(Learned()), *rivals)]
    prompt, as_sent, improved = _Prompt(row), list[Step](), list[Step]()
    before: _Asked | None = None
    held: int | None = None
    for one in asked:
        shared = prompt.enter(one)
        # What a request shares with the last one that was answered, it shares with all that came to nothing between.
        shared = shared if held is None else min(held, shared)
        held = shared if one.came_to_nothing else None
        if one.came_to_nothing:
            continue
        gap = one.at - before.at if before else None
        price = price_at(row, utc_date(one.at), one.tokens)
        moment = Moment(prompt.scroll, row.cache, price, one.at, gap, "person" if before else "start")
        for track in tracks:
            track.send(moment, tuple(prompt.prefixes))
        as_sent.append(Step(prompt.prefixes[-1].tokens if prompt.prefixes else 0, shared, gap))
        if one.forwarded.priced is not None:
            size = one.forwarded.priced
            improved.append(Step(size.improved_tokens, size.improved_shared_tokens, gap))
        before = one
    newest = price_at(row, utc_date(asked[-1].at), max(step.prompt_tokens for step in as_sent))
    rows = (PolicyPrice(track.policy.name, float(track.cost_usd)) for track in tracks)
    return (
        _least(as_sent, newest, row),
        _least(improved, newest, row),
        tuple(sorted(rows, key=lambda row: (row.usd, row.policy))),
    )


def _least(steps: list[Step], price: Price, row: Model) -> float:
    """What no later call begins with is never read again, and sent plainly; the rest as a plan with hindsight would."""
    rates = rates_of(price, row.cache)
    plain_tokens, held = 0, list[Step]()
    for one, following in zip(steps, (*steps[1:], None), strict=True):
        again = max(one.shared_tokens, following.shared_tokens if following else 0)
        plain_tokens += one.prompt_tokens - again
        held.append(Step(again, one.shared_tokens, one.gap_seconds))
    return optimum(held, rates, upgrades=row.cache.ttl_upgrade) + rates.plain * plain_tokens


class _Track:
    """What one policy has made of the cache so far."""

    def __init__(self, policy: Policy, row: Model) -> None:
        self.policy = policy
        self.cost_usd = Decimal(0)
        self._row = row
        self._entries = Entries()

    def send(self, moment: Moment, prefixes: tuple[Prefix, ...]) -> None:
        call = Call(Scope("", self._row.name), prefixes, self.policy.marks(moment), moment.at)
        outcome, self._entries = step(self._row.cache, self._entries, call)
        self.policy.heard(moment, outcome.usage)
        self.cost_usd += cost_usd(outcome.usage, moment.price)


class _Prompt:
    """The prompt of the call that was last entered, one piece for each block, with its digest for its text."""

    def __init__(self, row: Model) -> None:
        self._sizes: list[int] = []
        self.scroll = Scroll(adapter_for(row.provider), lambda data: self._sizes[-1])
        self.prefixes: list[Prefix] = []
        self._bytes = 0

    def enter(self, asked: _Asked) -> int:
        """How many tokens it begins with that the one before began with too."""
        kept = min(asked.kept, len(self.prefixes))
        self.scroll.cut(kept)
        del self.prefixes[kept:]
        ends = asked.links[-1].end if asked.links else 0
        tokens_a_byte = asked.tokens / ends if ends else 0.0
        for link, letter in zip(asked.links, asked.forwarded.shape, strict=False):
            self._sizes.append(round((link.end - link.start) * tokens_a_byte))
            self.scroll.extend((_piece(link, letter),))
            total = (self.prefixes[-1].tokens if self.prefixes else 0) + self._sizes[-1]
            place = self.scroll.pieces[-1].place
            self.prefixes.append(Prefix(place, self.scroll.links[-1].digest, total, _kind(letter)))
        return self.prefixes[kept - 1].tokens if kept else 0


def _piece(link: Link, letter: str) -> Piece:
    place = _PLACES.get(letter.lower(), "messages")
    role: Role | None = None if place != "messages" else "assistant" if letter.lower() in "ab" else "user"
    said = TEXT_STARTS if letter.lower() in "ua" else b'{"type":"other"'
    stability = Stability.GROWING if place == "messages" else Stability.FROZEN
    data = said + b',"digest":"%s"}' % link.digest.encode()
    return Piece(place, place, stability, data, markable=letter.isupper(), role=role)


def _kind(letter: str) -> BlockKind:
    match letter.lower():
        case "b":
            return "tool_use"
        case "r":
            return "tool_result"
        case _:
            return "plain"
