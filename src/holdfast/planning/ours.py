"""Our plan: marks where they are read again, for as long as the session's own rhythm makes that pay."""

from collections.abc import Sequence

import msgspec

from holdfast.canonical.prompt import Mark, Odds, Plan, Ttl
from holdfast.canonical.usage import Usage
from holdfast.economics.cost import multipliers
from holdfast.planning.gaps import Awaited, Gaps, expected
from holdfast.planning.lifetimes import Choice, Stakes, choose
from holdfast.planning.marks import last_markable, takes_mark
from holdfast.planning.memory import (
    NOTHING_LEARNED,
    Anchor,
    Learned,
    Memory,
    Sent,
    after_call,
    after_ping,
    living,
    moved,
    taught,
)
from holdfast.planning.pings import LIFETIMES_SECONDS, Idle, plan_ping
from holdfast.planning.policy import Moment, Ping, Pinged

FLOOR_SHARE = 0.8
"""A mark that is surely below the floor is left out; one that may be above costs nothing where it is not."""


class Planned(msgspec.Struct, frozen=True):
    plan: Plan
    choice: Choice
    stakes: Stakes


def plan_call(
    moment: Moment, memory: Memory, learned: Learned = NOTHING_LEARNED, *, keep_small: bool = False
) -> Planned:
    """The marks of the next call. Looks at the head, at the end, and at what it remembers; not at the history.

    What each saves is told by `plan`. With `keep_small` marks below the floor stay: for sizes that nobody has confirmed
    yet. They cost nothing, and one that is missing for a wrong estimate costs a whole prompt.
    """
    scroll, rules = moment.scroll, moment.rules
    alive = living(memory, moment.at)
    gaps = expected(memory.gaps.all, learned.gaps.all)
    odds = _odds(gaps, memory, learned)
    stakes = _stakes(moment, memory, alive, upgrades=odds.upgrade > 0.5)
    choice = choose(
        stakes,
        odds,
        multipliers(moment.price),
        hour_chain=alive is not None and alive.sound and alive.tokens >= memory.tail_tokens,
    )
    ttl: Ttl = "5m" if choice.reach == "short" else "1h"
    places = _places(moment, memory, alive)
    floor = (learned.floor + memory.floor).corrected(rules.tokens_min)
    size = stakes.prompt / scroll.tokens_total if scroll.tokens_total and stakes.prompt else 1.0
    first = 0 if keep_small else first_above(scroll.tokens, floor * FLOOR_SHARE / size)
    marks = tuple(
        Mark(piece, ttl, f"{reason}; {choice.reason}" if piece == places[-1][0] else reason)
        for piece, reason in places
        if piece >= first
    )
    return Planned(Plan(marks, odds, _notes(marks, floor, rules.tokens_min), floor), choice, stakes)


def _notes(marks: tuple[Mark, ...], floor: int, table_tokens: int) -> tuple[str, ...]:
    notes = []
    if floor != table_tokens:
        notes.append(f"prompts were seen to be cached from {floor} tokens on, not from {table_tokens}")
    if not marks:
        notes.append(f"nothing is marked: the prompt is below the {floor} tokens from which on it would be kept")
    return tuple(notes)


def _stakes(moment: Moment, memory: Memory, anchor: Anchor | None, *, upgrades: bool) -> Stakes:
    scroll = moment.scroll
    new = sum(scroll.tokens[memory.pieces :]) if memory.pieces <= len(scroll.tokens) else scroll.tokens_total
    prompt = memory.tail_tokens + new if memory.pieces else scroll.tokens_total
    warm = memory.used_at is not None and moment.at - memory.used_at < LIFETIMES_SECONDS["5m"]
    held = anchor.tokens if anchor is not None and (anchor.sound or upgrades) else 0
    hit = memory.tail_tokens if warm else held
    # Where anchors hold at all, the last one does: another is worth only what has come since.
    anchored = anchor.tokens if anchor is not None else 0
    return Stakes(prompt=prompt, written=max(0, prompt - hit), unanchored=max(0, prompt - anchored))


def _odds(gaps: Gaps, memory: Memory, learned: Learned) -> Odds:
    pause = gaps.chance(LIFETIMES_SECONDS["5m"], LIFETIMES_SECONDS["1h"])
    left = max(learned.calls_expected - memory.calls, memory.calls, 1)
    return Odds(pause=pause, pauses_left=pause * left, upgrade=(learned.belief + memory.belief).chance)


def _places(moment: Moment, memory: Memory, anchor: Anchor | None) -> list[tuple[int, str]]:
    """Which pieces are marked, in wire order: the end always, then what makes sure that the last end is found."""
    scroll, rules = moment.scroll, moment.rules
    stable = scroll.stable_count
    end = last_markable(scroll.pieces, stable, len(scroll.pieces), place="messages")
    wished: list[tuple[int | None, str]] = [(end, "end of the conversation so far")]
    if scroll.first_ephemeral is not None:
        wished.append(
            (
                last_markable(scroll.pieces, stable, scroll.first_ephemeral, place="messages"),
                "in front of ephemeral text",
            )
        )
    if memory.tail_piece is not None and end is not None and end - memory.tail_piece >= rules.lookback_positions:
        wished.append((memory.tail_piece, "end of the call before, which is too far back to be found"))
    if anchor is not None:
        wished.append((anchor.piece, "the entry that outlives a pause"))
    wished.append((last_markable(scroll.pieces, 0, stable, place="system"), "end of the stable system prompt"))
    wished.append((last_markable(scroll.pieces, 0, stable, place="tools"), "end of the tools"))
    chosen: dict[int, str] = {}
    for piece, reason in wished:
        if piece is not None and len(chosen) < rules.marks_max and takes_mark(scroll.pieces, piece):
            chosen.setdefault(piece, reason)
    return sorted(chosen.items())


def first_above(tokens: Sequence[int], floor: float) -> int:
    """The first piece up to which the prompt has so many tokens; looks no further than that."""
    total = 0
    for piece, count in enumerate(tokens):
        total += count
        if total >= floor:
            return piece
    return len(tokens)


def ping_of(memory: Memory, learned: Learned, moment: Moment, waits_for: Awaited) -> Ping | None:
    """The ping that keeps warm what the last call or ping has left, where one is worth it."""
    gaps = expected(memory.gaps.of(waits_for), learned.gaps.of(waits_for))
    return plan_ping(_idle(memory, learned), gaps, multipliers(moment.price))


def _idle(memory: Memory, learned: Learned) -> Idle:
    """The session as it waits after its last call or ping."""
    anchor, upgrade = memory.anchor, (learned.belief + memory.belief).chance
    trusted = anchor is not None and (anchor.sound or upgrade >= 0.5)
    held = anchor.tokens if anchor is not None and trusted else 0
    used = 0.0 if memory.used_at is None or memory.last_at is None else memory.used_at - memory.last_at
    lifetime: Ttl = "1h" if trusted and held >= memory.tail_tokens else "5m"
    return Idle(memory.tail_tokens, held, lifetime, used, upgrade, memory.reply_tokens)


class OurPolicy:
    """The plan behind the interface that its rivals have; one a session."""

    name = "holdfast"

    def __init__(self, learned: Learned = NOTHING_LEARNED, *, keep_alive: bool = False) -> None:
        self._learned = learned
        self._keep_alive = keep_alive
        self._memory = Memory()
        self._planned: Planned | None = None

    def marks(self, moment: Moment) -> tuple[Mark, ...]:
        self._planned = plan_call(moment, self._memory, self._learned)
        return self._planned.plan.marks

    def heard(self, moment: Moment, usage: Usage) -> None:
        marks = self._planned.plan.marks if self._planned else ()
        floor = self._planned.plan.floor_tokens if self._planned else None
        sent = Sent(moment.at, marks, len(moment.scroll.pieces), moment.waited_for, floor)
        self._memory = after_call(self._memory, sent, usage)

    def forget_prefix(self) -> None:
        """The next prompt does not begin with the last one: nothing that was cached is of use to it."""
        self._memory = moved(self._memory)

    def ping(self, moment: Moment, pings_so_far: int, waits_for: Awaited) -> Ping | None:
        return ping_of(self._memory, self._learned, moment, waits_for) if self._keep_alive else None

    def pinged(self, ping: Pinged) -> None:
        self._memory = after_ping(self._memory, ping)

    def learned(self) -> Learned:
        """What the next session starts with, once this one is over."""
        return taught(self._learned, self._memory)
