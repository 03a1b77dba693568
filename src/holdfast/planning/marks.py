"""Which pieces carry a cache mark: the tools, the stable system prompt, and the newest message."""

from collections.abc import Sequence
from typing import Literal

from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Mark, Place, Plan, Stability
from holdfast.canonical.scroll import Scroll
from holdfast.catalog.rows import CacheRules

Profile = Literal["default", "seed"]
"""`seed` marks only the tools and the stable system prompt, and leaves the history unmarked."""


def plan_marks(scroll: Scroll, rules: CacheRules, *, profile: Profile = "default") -> Plan:
    """At most as many marks as the model takes; never on thinking, empty, volatile or ephemeral blocks.

    Looks at the stable head and at the end of the prompt, not at the history between.
    """
    if rules.kind != "marks":
        return Plan()
    pieces, stable = scroll.pieces, scroll.stable_count
    wanted = [
        (_last(pieces, 0, stable, place="tools"), "end of the tools"),
        (_last(pieces, 0, stable, place="system"), "end of the stable system prompt"),
    ]
    if profile == "default":
        if scroll.first_ephemeral is not None:
            in_front = _last(pieces, stable, scroll.first_ephemeral, place="messages")
            wanted.append((in_front, "in front of ephemeral text"))
        wanted.append((_last(pieces, stable, len(pieces), place="messages"), "end of the conversation so far"))
    marks: dict[int, Mark] = {}
    for piece, reason in wanted:
        if piece is not None and piece not in marks:
            marks[piece] = Mark(piece, "5m", reason)
    chosen = sorted(marks.values(), key=lambda mark: mark.piece)
    return Plan(tuple(chosen[-rules.marks_max :]))


def _last(pieces: Sequence[Piece], start: int, stop: int, *, place: Place) -> int | None:
    """The last piece in [start, stop) of that place that may carry a mark."""
    for index in range(stop - 1, start - 1, -1):
        piece = pieces[index]
        if piece.place == place and piece.markable and piece.stability < Stability.VOLATILE and not piece.ephemeral:
            return index
    return None
