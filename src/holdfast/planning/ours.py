"""The adaptive policy: breakpoints where they will be read again, with the TTL that the idle times justify."""

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
"""Breakpoints below this share of the floor are left out. Token counts are estimates, and a breakpoint below the floor
is ignored by the provider at no cost, while a missing one above it costs a whole prompt."""


class Planned(msgspec.Struct, frozen=True):
    plan: Plan
    choice: Choice
    stakes: Stakes


def plan_call(
    moment: Moment, memory: Memory, learned: Learned = NOTHING_LEARNED, *, keep_small: bool = False
) -> Planned:
    """The breakpoints of the next call. Looks at the stable prefix, the prompt's end and the memory, not the history.

    `plan.plan` adds the expected savings. `keep_small` keeps breakpoints below the floor, for prompts whose size no
    provider has confirmed yet: they cost nothing, and one left out because of a wrong estimate costs a whole prompt.
    """
    buffer, rules = moment.scroll, moment.rules
    anchor = living(memory, moment.at)
    idle_times = expected(memory.gaps.all, learned.gaps.all)
    probabilities = _probabilities(idle_times, memory, learned)
    stakes = _stakes(moment, memory, anchor, upgrades=probabilities.upgrade > 0.5)
    choice = choose(
        stakes,
        probabilities,
        multipliers(moment.price),
        hour_chain=anchor is not None and anchor.sound and anchor.tokens >= memory.tail_tokens,
    )
    ttl: Ttl = "5m" if choice.reach == "short" else "1h"
    blocks = _breakpoint_blocks(moment, memory, anchor)
    floor = (learned.floor + memory.floor).corrected(rules.tokens_min)
    # The floor counts the provider's tokens, the buffer our estimates; `scale` converts one into the other.
    scale = stakes.prompt / buffer.tokens_total if buffer.tokens_total and stakes.prompt else 1.0
    first_block = 0 if keep_small else first_above(buffer.tokens, floor * FLOOR_SHARE / scale)
    breakpoints = tuple(
        Mark(block, ttl, f"{reason}; {choice.reason}" if block == blocks[-1][0] else reason)
        for block, reason in blocks
        if block >= first_block
    )
    return Planned(
        Plan(breakpoints, probabilities, _notes(breakpoints, floor, rules.tokens_min), floor), choice, stakes
    )


def _notes(breakpoints: tuple[Mark, ...], floor: int, table_tokens: int) -> tuple[str, ...]:
    notes = []
    if floor != table_tokens:
        notes.append(f"observed cache floor: {floor} tokens (catalog: {table_tokens})")
    if not breakpoints:
        notes.append(f"no breakpoints: the prompt is below the cache floor of {floor} tokens")
    return tuple(notes)


def _stakes(moment: Moment, memory: Memory, anchor: Anchor | None, *, upgrades: bool) -> Stakes:
    buffer = moment.scroll
    new_tokens = sum(buffer.tokens[memory.pieces :]) if memory.pieces <= len(buffer.tokens) else buffer.tokens_total
    prompt_tokens = memory.tail_tokens + new_tokens if memory.pieces else buffer.tokens_total
    is_warm = memory.used_at is not None and moment.at - memory.used_at < LIFETIMES_SECONDS["5m"]
    anchored_hit = anchor.tokens if anchor is not None and (anchor.sound or upgrades) else 0
    hit_tokens = memory.tail_tokens if is_warm else anchored_hit
    # If anchors survive pauses at all, the last one does: a new one is worth only the tokens added since.
    anchored_tokens = anchor.tokens if anchor is not None else 0
    return Stakes(
        prompt=prompt_tokens,
        written=max(0, prompt_tokens - hit_tokens),
        unanchored=max(0, prompt_tokens - anchored_tokens),
    )


def _probabilities(idle_times: Gaps, memory: Memory, learned: Learned) -> Odds:
    # A pause is an idle time of 5 to 60 minutes: it loses a 5-minute entry and not a 1-hour one. Each remaining call is
    # followed by one with probability `pause`. A session that has outlived the average is taken to be half over.
    pause = idle_times.chance(LIFETIMES_SECONDS["5m"], LIFETIMES_SECONDS["1h"])
    calls_left = max(learned.calls_expected - memory.calls, memory.calls, 1)
    return Odds(pause=pause, pauses_left=pause * calls_left, upgrade=(learned.belief + memory.belief).chance)


def _breakpoint_blocks(moment: Moment, memory: Memory, anchor: Anchor | None) -> list[tuple[int, str]]:
    """The blocks that get a breakpoint, in wire order.

    Candidates by importance: the end of the conversation, then what makes sure that the previous end is found.
    """
    buffer, rules = moment.scroll, moment.rules
    stable = buffer.stable_count
    end = last_markable(buffer.pieces, stable, len(buffer.pieces), place="messages")
    candidates: list[tuple[int | None, str]] = [(end, "end of the conversation so far")]
    if buffer.first_ephemeral is not None:
        candidates.append(
            (
                last_markable(buffer.pieces, stable, buffer.first_ephemeral, place="messages"),
                "before ephemeral text",
            )
        )
    if memory.tail_piece is not None and end is not None and end - memory.tail_piece >= rules.lookback_positions:
        candidates.append((memory.tail_piece, "end of the previous call, beyond the lookback"))
    if anchor is not None:
        candidates.append((anchor.piece, "the entry that survives a pause"))
    candidates.append((last_markable(buffer.pieces, 0, stable, place="system"), "end of the stable system prompt"))
    candidates.append((last_markable(buffer.pieces, 0, stable, place="tools"), "end of the tools"))
    chosen: dict[int, str] = {}
    for block, reason in candidates:
        if block is not None and len(chosen) < rules.marks_max and takes_mark(buffer.pieces, block):
            chosen.setdefault(block, reason)
    return sorted(chosen.items())


def first_above(tokens: Sequence[int], floor: float) -> int:
    """The first block at which the prompt reaches `floor` tokens; does not scan beyond it."""
    total = 0
    for block, count in enumerate(tokens):
        total += count
        if total >= floor:
            return block
    return len(tokens)


def ping_of(memory: Memory, learned: Learned, moment: Moment, waits_for: Awaited) -> Ping | None:
    """The ping that keeps the newest cache entry warm, if one is worth it."""
    idle_times = expected(memory.gaps.of(waits_for), learned.gaps.of(waits_for))
    return plan_ping(_idle(memory, learned), idle_times, multipliers(moment.price))


def _idle(memory: Memory, learned: Learned) -> Idle:
    """The idle session after its last call or ping."""
    anchor, upgrade = memory.anchor, (learned.belief + memory.belief).chance
    is_trusted = anchor is not None and (anchor.sound or upgrade >= 0.5)
    held_tokens = anchor.tokens if anchor is not None and is_trusted else 0
    idle_before_use = 0.0 if memory.used_at is None or memory.last_at is None else memory.used_at - memory.last_at
    ttl: Ttl = "1h" if is_trusted and held_tokens >= memory.tail_tokens else "5m"
    return Idle(memory.tail_tokens, held_tokens, ttl, idle_before_use, upgrade, memory.reply_tokens)


class OurPolicy:
    """The adaptive planner behind the `Policy` interface; one instance per session."""

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
        breakpoints = self._planned.plan.marks if self._planned else ()
        floor = self._planned.plan.floor_tokens if self._planned else None
        sent = Sent(moment.at, breakpoints, len(moment.scroll.pieces), moment.waited_for, floor)
        self._memory = after_call(self._memory, sent, usage)

    def forget_prefix(self) -> None:
        """The next prompt does not extend the last one, so nothing cached can be read."""
        self._memory = moved(self._memory)

    def ping(self, moment: Moment, pings_so_far: int, waits_for: Awaited) -> Ping | None:
        return ping_of(self._memory, self._learned, moment, waits_for) if self._keep_alive else None

    def pinged(self, ping: Pinged) -> None:
        self._memory = after_ping(self._memory, ping)

    def learned(self) -> Learned:
        """The parameters that the next session starts with, once this one has ended."""
        return taught(self._learned, self._memory)
