"""Schedules that never look at the session: the same marks and lifetimes whatever happens."""

from collections.abc import Callable, Iterable

from holdfast.canonical.prompt import Mark, Place, Ttl
from holdfast.canonical.scroll import Scroll
from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import CacheRules
from holdfast.planning.gaps import Awaited
from holdfast.planning.marks import last_markable
from holdfast.planning.policy import Moment, Ping, Pinged

UPGRADE_AFTER_SECONDS = 285.0
ANCHOR_EVERY_CALLS = 3
TEXT_STARTS = b'{"type":"text"'

Placed = Iterable[tuple[int | None, Ttl]]
"""Pieces wanted, the most wanted first; None where there is no such piece."""

Placing = Callable[[Moment, int], Placed]
"""Where the marks go in a request, given how many calls the session made before it."""

Pinging = Callable[[Moment, int], Ping | None]


class FixedPolicy:
    """Places by a rule; the first of the pieces wanted win, as far as there are marks."""

    def __init__(self, name: str, placing: Placing, pinging: Pinging | None = None) -> None:
        self.name = name
        self._placing = placing
        self._pinging = pinging
        self._calls = 0

    def marks(self, moment: Moment) -> tuple[Mark, ...]:
        placed = self._placing(moment, self._calls)
        self._calls += 1
        return legal(placed, moment.rules)

    def heard(self, moment: Moment, usage: Usage) -> None:
        """Nothing that is heard changes a fixed schedule."""

    def ping(self, moment: Moment, pings_so_far: int, waits_for: Awaited) -> Ping | None:
        return self._pinging(moment, pings_so_far) if self._pinging else None

    def pinged(self, ping: Pinged) -> None:
        """Nor does what came of a ping."""


def legal(placed: Placed, rules: CacheRules) -> tuple[Mark, ...]:
    """At most as many marks as the model takes, in wire order, no lifetime longer than one in front of it."""
    chosen: dict[int, Ttl] = {}
    for piece, ttl in placed:
        if piece is not None and piece not in chosen and len(chosen) < rules.marks_max:
            chosen[piece] = ttl
    marks: list[Mark] = []
    longest: Ttl = "5m"
    for piece in sorted(chosen, reverse=True):
        if chosen[piece] == "1h":
            longest = "1h"
        marks.append(Mark(piece, longest))
    return tuple(reversed(marks))


def last_of(scroll: Scroll, place: Place) -> int | None:
    """The last piece of the stable tools or system prompt that takes a mark."""
    return last_markable(scroll.pieces, 0, scroll.stable_count, place=place)


def tail_of(scroll: Scroll) -> int | None:
    """The last block of the conversation that takes a mark."""
    return last_markable(scroll.pieces, 0, len(scroll.pieces), place="messages")


def head_and_tail(head: Ttl, tail: Ttl) -> Placing:
    def placing(moment: Moment, calls: int) -> Placed:
        scroll = moment.scroll
        return ((tail_of(scroll), tail), (last_of(scroll, "system"), head), (last_of(scroll, "tools"), head))

    return placing


def sparse_anchors(moment: Moment, calls: int) -> Placed:
    """Every third call's tail for an hour, the second call's first: in front of it stands what the first call wrote."""
    anchored = calls % ANCHOR_EVERY_CALLS == 1
    yield tail_of(moment.scroll), "1h" if anchored else "5m"
    if not anchored:
        yield last_of(moment.scroll, "system"), "5m"


def upgrade_once(moment: Moment, pings_so_far: int) -> Ping | None:
    if pings_so_far:
        return None
    return Ping(UPGRADE_AFTER_SECONDS, "1h", "idle for nearly five minutes")


def frozen_in_the_loop(moment: Moment, calls: int) -> Placed:
    """Marks that stay on what the person said last, however far the tools have gone since."""
    scroll = moment.scroll
    return ((last_said_by_person(scroll), "5m"), (last_of(scroll, "system"), "5m"), (last_of(scroll, "tools"), "5m"))


def last_said_by_person(scroll: Scroll) -> int | None:
    """The last text of the newest message that a person wrote; results of tools are nobody's words."""
    pieces = scroll.pieces
    for index in range(len(pieces) - 1, -1, -1):
        piece = pieces[index]
        if piece.place != "messages":
            return None
        if piece.role == "user" and piece.markable and piece.data.startswith(TEXT_STARTS):
            return index
    return None


def fixed_schedules() -> tuple[FixedPolicy, ...]:
    """Fresh ones, for one session."""
    return (
        FixedPolicy("tail-5m", head_and_tail("5m", "5m")),
        FixedPolicy("system-1h-tail-5m", head_and_tail("1h", "5m")),
        FixedPolicy("all-1h", head_and_tail("1h", "1h")),
        FixedPolicy("sparse-anchors", sparse_anchors),
        FixedPolicy("upgrade-ping", head_and_tail("5m", "5m"), upgrade_once),
        FixedPolicy("frozen", frozen_in_the_loop),
    )
