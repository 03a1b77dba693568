"""Which pieces carry a cache mark: the tools, the stable system prompt, and the newest message."""

from collections.abc import Sequence
from typing import Literal

from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Mark, Place, Plan, Stability, Ttl
from holdfast.canonical.scroll import Scroll
from holdfast.catalog.rows import CacheRules

Profile = Literal["default", "seed"]
"""`seed` marks only the tools and the stable system prompt, and leaves the history unmarked."""


def plan_marks(scroll: Scroll, rules: CacheRules, *, profile: Profile = "default") -> Plan:
    """At most as many marks as the model takes; never on thinking, empty, volatile or ephemeral blocks.

    Looks at the stable head and at the end of the prompt, not at the history between.
    """
    match rules.kind:
        case "marks":
            return _chosen(_wanted(scroll, profile, rolling=True), rules, ttl="5m")
        case "breakpoints":
            # The provider itself keeps the end of each message that it answers, and looks back from there.
            return _chosen(_wanted(scroll, profile, rolling=False), rules, ttl="30m")
        case "implicit" | "none":
            return Plan()


def _wanted(scroll: Scroll, profile: Profile, *, rolling: bool) -> list[tuple[int | None, str]]:
    pieces, stable = scroll.pieces, scroll.stable_count
    wanted: list[tuple[int | None, str]] = [
        (last_markable(pieces, 0, stable, place="tools"), "end of the tools"),
        (last_markable(pieces, 0, stable, place="system"), "end of the stable system prompt"),
    ]
    if profile == "default":
        if scroll.first_ephemeral is not None:
            in_front = last_markable(pieces, stable, scroll.first_ephemeral, place="messages")
            wanted.append((in_front, "in front of ephemeral text"))
        if rolling:
            wanted.append(
                (last_markable(pieces, stable, len(pieces), place="messages"), "end of the conversation so far")
            )
    return wanted


def _chosen(wanted: Sequence[tuple[int | None, str]], rules: CacheRules, *, ttl: Ttl) -> Plan:
    marks: dict[int, Mark] = {}
    for piece, reason in wanted:
        if piece is not None and piece not in marks:
            marks[piece] = Mark(piece, ttl, reason)
    chosen = sorted(marks.values(), key=lambda mark: mark.piece)
    return Plan(tuple(chosen[-rules.marks_max :]))


def last_markable(pieces: Sequence[Piece], start: int, stop: int, *, place: Place) -> int | None:
    """The last piece in [start, stop) of that place that may carry a mark."""
    for index in range(stop - 1, start - 1, -1):
        if pieces[index].place == place and takes_mark(pieces, index):
            return index
    return None


def takes_mark(pieces: Sequence[Piece], index: int) -> bool:
    """Whether there is such a piece, the provider takes a mark on it, and it will still be there in the next call."""
    if not 0 <= index < len(pieces):
        return False
    piece = pieces[index]
    return piece.markable and piece.stability < Stability.VOLATILE and not piece.ephemeral
