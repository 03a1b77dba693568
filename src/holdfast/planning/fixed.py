"""Fixed policies for comparison: the same breakpoints and TTLs whatever the session does."""

from collections.abc import Callable, Iterable

from holdfast.canonical.prompt import Mark, Place, Ttl
from holdfast.canonical.scroll import Scroll
from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import CacheRules
from holdfast.planning.gaps import Awaited
from holdfast.planning.marks import last_markable
from holdfast.planning.policy import Moment, Ping, Pinged

UPGRADE_AFTER_SECONDS = 285.0
"""15 seconds before a 5-minute entry expires, the margin that our own pings keep."""

ANCHOR_EVERY_CALLS = 3
"""The spacing that docs/decisions/0017 compares with the adaptive policy."""

TEXT_STARTS = b'{"type":"text"'

Placed = Iterable[tuple[int | None, Ttl]]
"""Blocks to put a breakpoint on, most important first; None where there is no such block."""

Placing = Callable[[Moment, int], Placed]
"""Places the breakpoints of a request, given how many calls the session made before it."""

Pinging = Callable[[Moment, int], Ping | None]


class FixedPolicy:
    """Places breakpoints by a rule; the first candidates win if there are more than the provider allows."""

    def __init__(self, name: str, place: Placing, ping: Pinging | None = None) -> None:
        self.name = name
        self._placement_rule = place
        self._ping_rule = ping
        self._calls = 0

    def marks(self, moment: Moment) -> tuple[Mark, ...]:
        placed = self._placement_rule(moment, self._calls)
        self._calls += 1
        return legal(placed, moment.rules)

    def heard(self, moment: Moment, usage: Usage) -> None:
        """Reported usage does not change a fixed schedule."""

    def ping(self, moment: Moment, pings_so_far: int, waits_for: Awaited) -> Ping | None:
        return self._ping_rule(moment, pings_so_far) if self._ping_rule else None

    def pinged(self, ping: Pinged) -> None:
        """Neither does the result of a ping."""


def legal(candidates: Placed, rules: CacheRules) -> tuple[Mark, ...]:
    """At most as many breakpoints as the model allows, in wire order, and no TTL longer than one before it.

    Anthropic refuses a 1-hour breakpoint after a 5-minute one ("Prompt caching"), so a 1-hour breakpoint raises all
    those before it.
    """
    chosen: dict[int, Ttl] = {}
    for block, ttl in candidates:
        if block is not None and block not in chosen and len(chosen) < rules.marks_max:
            chosen[block] = ttl
    breakpoints: list[Mark] = []
    ttl_so_far: Ttl = "5m"
    for block in sorted(chosen, reverse=True):
        if chosen[block] == "1h":
            ttl_so_far = "1h"
        breakpoints.append(Mark(block, ttl_so_far))
    return tuple(reversed(breakpoints))


def last_of(buffer: Scroll, place: Place) -> int | None:
    """The last block of the stable tools or system prompt that can carry a breakpoint."""
    return last_markable(buffer.pieces, 0, buffer.stable_count, place=place)


def tail_of(buffer: Scroll) -> int | None:
    """The last block of the conversation that can carry a breakpoint."""
    return last_markable(buffer.pieces, 0, len(buffer.pieces), place="messages")


def head_and_tail(head: Ttl, tail: Ttl) -> Placing:
    def placing(moment: Moment, calls: int) -> Placed:
        buffer = moment.scroll
        return ((tail_of(buffer), tail), (last_of(buffer, "system"), head), (last_of(buffer, "tools"), head))

    return placing


def sparse_anchors(moment: Moment, calls: int) -> Placed:
    """One hour on the end of every third call, from the second call on: its prefix is what the first call wrote."""
    anchored = calls % ANCHOR_EVERY_CALLS == 1
    yield tail_of(moment.scroll), "1h" if anchored else "5m"
    if not anchored:
        yield last_of(moment.scroll, "system"), "5m"


def upgrade_once(moment: Moment, pings_so_far: int) -> Ping | None:
    if pings_so_far:
        return None
    return Ping(UPGRADE_AFTER_SECONDS, "1h", "idle for nearly five minutes")


def frozen_in_the_loop(moment: Moment, calls: int) -> Placed:
    """Breakpoints that stay on the last user message, however many tool calls have followed."""
    buffer = moment.scroll
    return ((last_said_by_person(buffer), "5m"), (last_of(buffer, "system"), "5m"), (last_of(buffer, "tools"), "5m"))


def last_said_by_person(buffer: Scroll) -> int | None:
    """The last text block that a person wrote; tool results, which also have the user role, do not count."""
    blocks = buffer.pieces
    for index in range(len(blocks) - 1, -1, -1):
        block = blocks[index]
        if block.place != "messages":
            return None
        if block.role == "user" and block.markable and block.data.startswith(TEXT_STARTS):
            return index
    return None


def fixed_schedules() -> tuple[FixedPolicy, ...]:
    """New instances, for one session."""
    return (
        FixedPolicy("tail-5m", head_and_tail("5m", "5m")),
        FixedPolicy("system-1h-tail-5m", head_and_tail("1h", "5m")),
        FixedPolicy("all-1h", head_and_tail("1h", "1h")),
        FixedPolicy("sparse-anchors", sparse_anchors),
        FixedPolicy("upgrade-ping", head_and_tail("5m", "5m"), upgrade_once),
        FixedPolicy("frozen", frozen_in_the_loop),
    )
