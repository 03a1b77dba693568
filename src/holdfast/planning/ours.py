"""Our plan: marks where they are read again, for as long as the session's own rhythm makes that pay."""

import math
from collections.abc import Sequence

import msgspec

from holdfast.canonical.prompt import Mark, Plan, Ttl
from holdfast.canonical.usage import Usage
from holdfast.economics.cost import multipliers
from holdfast.planning.gaps import Gaps, expected
from holdfast.planning.lifetimes import Choice, Odds, Stakes, choose
from holdfast.planning.marks import last_markable, takes_mark
from holdfast.planning.pings import LIFETIMES_SECONDS, Idle, plan_ping
from holdfast.planning.policy import Moment, Ping
from holdfast.planning.truths import Belief

CALLS_EXPECTED = 20.0
LEARNED_GAPS_MAX = 2_000.0
"""How many gaps of earlier sessions are remembered; older ones fade."""

READ_SHARE_MIN = 0.9
"""How much of an anchor a call must read for the anchor to have held; estimates are never exact."""

FLOOR_SHARE = 0.8
"""A mark that is surely below the floor is left out; one that may be above costs nothing where it is not."""


class Learned(msgspec.Struct, frozen=True):
    """What earlier sessions have taught: their gaps, their length, and what the provider was seen to do."""

    gaps: Gaps = Gaps()
    sessions: float = 0.0
    calls: float = 0.0
    belief: Belief = Belief()

    @property
    def calls_expected(self) -> float:
        """How many calls a session has, on the average; a guess counts for two sessions."""
        return (self.calls + 2 * CALLS_EXPECTED) / (self.sessions + 2)


NOTHING_LEARNED = Learned()


class Anchor(msgspec.Struct, frozen=True):
    """The newest entry with the long lifetime: up to which piece it reaches, how many tokens that is, and when it was
    last used. It is `sound` if it was written for long from its first token on."""

    piece: int
    tokens: int
    used_at: float
    sound: bool


class Memory(msgspec.Struct, frozen=True):
    """What a session knows of itself: everything here follows from its calls so far."""

    calls: int = 0
    gaps: Gaps = Gaps()
    last_at: float | None = None
    tail_piece: int | None = None
    tail_tokens: int = 0
    pieces: int = 0
    anchor: Anchor | None = None
    belief: Belief = Belief()


def moved(memory: Memory) -> Memory:
    """What is left to know of a session whose prefix has moved: its rhythm, and nothing of what is cached."""
    return Memory(calls=memory.calls, gaps=memory.gaps, last_at=memory.last_at, belief=memory.belief)


class Planned(msgspec.Struct, frozen=True):
    plan: Plan
    choice: Choice
    stakes: Stakes


def plan_call(
    moment: Moment,
    memory: Memory,
    learned: Learned = NOTHING_LEARNED,
    *,
    keep_small: bool = False,
) -> Planned:
    """The marks of the next call. Looks at the head, at the end, and at what it remembers; not at the history.

    With `keep_small` marks below the floor stay: they cost nothing, and a floor may be lower than anyone knows.
    """
    scroll, rules = moment.scroll, moment.rules
    alive = _living(memory, moment.at)
    stakes = _stakes(moment, memory, alive)
    choice = choose(
        stakes,
        _odds(memory, learned),
        multipliers(moment.price),
        hour_chain=alive is not None and alive.sound and alive.tokens >= memory.tail_tokens,
    )
    ttl: Ttl = "5m" if choice.reach == "short" else "1h"
    places = _places(moment, memory, alive)
    first = 0 if keep_small else _first_above(scroll.tokens, rules.tokens_min * FLOOR_SHARE)
    marks = tuple(
        Mark(piece, ttl, f"{reason}; {choice.reason}" if piece == places[-1][0] else reason)
        for piece, reason in places
        if piece >= first
    )
    return Planned(Plan(marks), choice, stakes)


def _living(memory: Memory, at: float) -> Anchor | None:
    """The anchor, if it has been used within its lifetime."""
    anchor = memory.anchor
    return anchor if anchor is not None and at - anchor.used_at < LIFETIMES_SECONDS["1h"] else None


def _stakes(moment: Moment, memory: Memory, anchor: Anchor | None) -> Stakes:
    scroll = moment.scroll
    new = sum(scroll.tokens[memory.pieces :]) if memory.pieces <= len(scroll.tokens) else scroll.tokens_total
    prompt = memory.tail_tokens + new if memory.pieces else scroll.tokens_total
    warm = moment.idle_seconds is not None and moment.idle_seconds < LIFETIMES_SECONDS["5m"]
    held = anchor.tokens if anchor is not None and (anchor.sound or memory.belief.chance > 0.5) else 0
    hit = memory.tail_tokens if warm else held
    # Where anchors hold at all, the last one does: another is worth only what has come since.
    anchored = anchor.tokens if anchor is not None else 0
    return Stakes(prompt=prompt, written=max(0, prompt - hit), unanchored=max(0, prompt - anchored))


def _odds(memory: Memory, learned: Learned) -> Odds:
    gaps = expected(memory.gaps, learned.gaps)
    pause = gaps.chance(LIFETIMES_SECONDS["5m"], LIFETIMES_SECONDS["1h"])
    left = max(learned.calls_expected - memory.calls, memory.calls, 1)
    return Odds(pause=pause, pauses_left=pause * left, upgrade=memory.belief.chance)


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


def _first_above(tokens: Sequence[int], floor: float) -> int:
    """The first piece up to which the prompt has so many tokens; looks no further than that."""
    total = 0
    for piece, count in enumerate(tokens):
        total += count
        if total >= floor:
            return piece
    return len(tokens)


class Sent(msgspec.Struct, frozen=True):
    """A request as it went out: when, with which marks, and how many pieces it had."""

    at: float
    marks: tuple[Mark, ...]
    pieces: int


def after_call(memory: Memory, sent: Sent, usage: Usage) -> Memory:
    """What the session knows once the provider has reported."""
    idle = None if memory.last_at is None else sent.at - memory.last_at
    anchor, belief = _living(memory, sent.at), memory.belief
    if anchor is not None and idle is not None and idle >= LIFETIMES_SECONDS["5m"]:
        held = usage.cache_read >= anchor.tokens * READ_SHARE_MIN
        belief = belief if anchor.sound else belief.seen(read=held)
        anchor = anchor if held else None
    if anchor is not None:
        anchor = msgspec.structs.replace(anchor, used_at=sent.at)
    tail = sent.marks[-1] if sent.marks else None
    if tail is not None and tail.ttl == "1h":
        within = anchor is not None and anchor.sound and usage.cache_read <= anchor.tokens / READ_SHARE_MIN
        anchor = Anchor(tail.piece, usage.tokens_sent, sent.at, sound=usage.cache_read == 0 or within)
    return Memory(
        calls=memory.calls + 1,
        gaps=memory.gaps.add(idle) if idle is not None else memory.gaps,
        last_at=sent.at,
        tail_piece=tail.piece if tail else None,
        tail_tokens=usage.tokens_sent,
        pieces=sent.pieces,
        anchor=anchor,
        belief=belief,
    )


def _idle(memory: Memory) -> Idle:
    """The session as it waits after its last call."""
    anchor = memory.anchor
    trusted = anchor is not None and (anchor.sound or memory.belief.chance > 0.5)
    held = anchor.tokens if anchor is not None and trusted else 0
    long = trusted and held >= memory.tail_tokens
    return Idle(memory.tail_tokens, held, "1h" if long else "5m", 0.0, memory.belief.chance)


class OurPolicy:
    """The plan behind the interface that its rivals have; one a session."""

    name = "holdfast"

    def __init__(self, learned: Learned = NOTHING_LEARNED, *, keep_alive: bool = False) -> None:
        self._learned = learned
        self._keep_alive = keep_alive
        self._memory = Memory(belief=learned.belief)
        self._planned: Planned | None = None
        self._idle = _idle(self._memory)

    def marks(self, moment: Moment) -> tuple[Mark, ...]:
        self._planned = plan_call(moment, self._memory, self._learned)
        return self._planned.plan.marks

    def heard(self, moment: Moment, usage: Usage) -> None:
        marks = self._planned.plan.marks if self._planned else ()
        self._memory = after_call(self._memory, Sent(moment.at, marks, len(moment.scroll.pieces)), usage)

    def ping(self, moment: Moment, pings_so_far: int) -> Ping | None:
        if not self._keep_alive:
            return None
        if not pings_so_far:
            self._idle = _idle(self._memory)
        found = plan_ping(self._idle, expected(self._memory.gaps, self._learned.gaps), multipliers(moment.price))
        if found is not None:
            passed = self._idle.idle_seconds + found.after_seconds
            self._idle = msgspec.structs.replace(self._idle, lifetime=found.ttl, idle_seconds=passed)
        return found

    def learned(self) -> Learned:
        """What the next session starts with, once this one is over."""
        if not self._memory.calls:
            return self._learned
        return Learned(
            # The last gap has no end: whoever pings waits for people who never come back, too.
            gaps=(self._learned.gaps + self._memory.gaps.add(math.inf)).scaled(LEARNED_GAPS_MAX),
            sessions=self._learned.sessions + 1,
            calls=self._learned.calls + self._memory.calls,
            belief=self._memory.belief,
        )
