"""Where the second of two requests leaves the first, and what that costs."""

import difflib
from decimal import Decimal
from itertools import islice
from typing import Literal

import msgspec

from holdfast.cachemodel.tiers import TierParameters
from holdfast.canonical.pieces import Piece, common_length, shared_links
from holdfast.canonical.prompt import Place
from holdfast.catalog.rows import CacheRules, Price
from holdfast.errors import UserError
from holdfast.ledger.requests import (
    PLACES,
    SentRequest,
    kept_by,
    readable_tokens,
    rewrite_usd,
    start_of,
    tier_parameters_of,
)

DIFF_LINES_MAX = 16
CHARS_BEFORE = 100
CHARS_AFTER = 300
LINE_CHARS_MAX = 160


class Moved(msgspec.Struct, frozen=True):
    """The first cacheable byte that differs, and the block it is in; `diff` shows the two blocks around it.

    `change` is "added" where a block of the second request stands between two layers of the first, such as a tool
    behind the tools, and "removed" where a layer, or the request, ends before this block.
    """

    path: str
    path_after: str | None
    place: Place
    block: int
    byte: int
    diff: tuple[str, ...]
    change: Literal["changed", "added", "removed"] = "changed"


class ChangedParameter(msgspec.Struct, frozen=True):
    """`first_lost` is the first part of the prompt that can no longer be read."""

    name: str
    first_lost: Place


class Tier(msgspec.Struct, frozen=True):
    place: Place
    blocks: int
    blocks_kept: int

    @property
    def survives(self) -> bool:
        return self.blocks_kept == self.blocks


class Comparison(msgspec.Struct, frozen=True):
    """Of `tokens_before`, those the first request left to be read, the second reads `tokens_read`; all estimated.

    `lost_usd` is None where no price is known.
    """

    model: str
    held: bool
    moved: Moved | None
    parameters: tuple[ChangedParameter, ...]
    tiers: tuple[Tier, ...]
    tokens_before: int
    tokens_read: int
    lost_usd: Decimal | None
    notes: tuple[str, ...]

    @property
    def tokens_lost(self) -> int:
        return self.tokens_before - self.tokens_read


def compare(before: SentRequest, after: SentRequest, price: Price | None) -> Comparison:
    """Marks do not count: they are in neither's cacheable bytes."""
    if before.told.provider != after.told.provider:
        raise UserError(
            f"the first is a request to {before.told.provider}, the second to {after.told.provider}; "
            "no cache is shared between providers"
        )
    same = shared_links(before.scroll.links, after.scroll.links)
    moved = _moved(before, after, same) if same < len(before.scroll.links) else None
    parameters = _changed(before, after)
    kept = kept_by(before, same) if moved else same
    kept = min([kept, *(start_of(before, changed.first_lost) for changed in parameters)])
    was, now = readable_tokens(before, len(before.scroll.pieces)), readable_tokens(before, kept)
    return Comparison(
        model=before.model,
        held=moved is None and not parameters,
        moved=moved,
        parameters=parameters,
        tiers=tuple(_tiers(before, kept)),
        tokens_before=was,
        tokens_read=now,
        lost_usd=None if price is None else rewrite_usd(before, was - now, price),
        notes=tuple(_notes(before, was)),
    )


def _tiers(request: SentRequest, kept: int) -> list[Tier]:
    found = []
    for place in PLACES:
        first = start_of(request, place)
        blocks = sum(piece.place == place for piece in request.scroll.pieces)
        if blocks:
            found.append(Tier(place, blocks, min(max(kept - first, 0), blocks)))
    return found


def _notes(request: SentRequest, readable: int) -> list[str]:
    if request.row is None:
        return [f"the catalog does not know {request.model[:120]}: no price, and every token counts as cached"]
    rules = request.row.cache
    if rules.kind == "none" or not request.row.supports_prompt_caching:
        return ["no cache of this model's is known to us: nothing is lost, because nothing is kept"]
    if not readable:
        total = request.scroll.tokens_total
        return [f"{total} tokens (estimated) are below the floor of {rules.tokens_min}: nothing of it is kept"]
    if rules.kind == "marks" and not request.marks:
        return ["the first request carries no mark, so nothing of it is kept as it is; the figures are for our marks"]
    return []


def _changed(before: SentRequest, after: SentRequest) -> tuple[ChangedParameter, ...]:
    rules = before.row.cache if before.row else None
    old, new = _values(tier_parameters_of(before)), _values(tier_parameters_of(after))
    found = (
        ChangedParameter(name, lost)
        for name in old
        if old[name] != new.get(name) and (lost := _first_lost(name, rules)) is not None
    )
    return tuple(sorted(found, key=lambda changed: (PLACES.index(changed.first_lost), changed.name)))


def _first_lost(name: str, rules: CacheRules | None) -> Place | None:
    if rules is None:
        return "tools" if name == "model" else None
    if name == "effort":
        return "messages" if rules.effort_breaks_messages else None
    return rules.invalidates.get(name)


def _values(parameters: TierParameters) -> dict[str, object]:
    named: dict[str, object] = msgspec.structs.asdict(parameters)
    del named["others"]
    return {**named, **parameters.others}


def _moved(before: SentRequest, after: SentRequest, block: int) -> Moved:
    old, new = before.scroll.cacheable_bytes(), after.scroll.cacheable_bytes()
    is_there = block < len(after.scroll.links)
    byte = common_length(old, new, before.scroll.links[block].start)
    piece = before.scroll.pieces[block]
    other = after.scroll.pieces[block] if is_there else None
    change = _change(piece, other)
    return Moved(
        path=before.paths[block],
        path_after=after.paths[block] if is_there else None,
        place=other.place if other and change == "added" else piece.place,
        block=block,
        byte=byte,
        diff=tuple(
            readable_diff(
                "" if change == "added" else said_in(piece), said_in(other) if other and change != "removed" else ""
            )
        ),
        change=change,
    )


def _change(old: Piece, new: Piece | None) -> Literal["changed", "added", "removed"]:
    if new is None or PLACES.index(new.place) > PLACES.index(old.place):
        return "removed"
    return "added" if new.place != old.place else "changed"


def said_in(piece: Piece) -> str:
    """A block for a reader: who says it, then its text, or its JSON on lines of its own."""
    who = f"[{piece.role}]\n" if piece.role else ""
    try:
        value = msgspec.json.decode(piece.data)
        if isinstance(value, dict) and isinstance(value.get("text"), str) and value.keys() <= {"type", "text"}:
            return who + str(value["text"])
        return who + msgspec.json.format(piece.data).decode()
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return who + (piece.opens + piece.data).decode(errors="replace")


def readable_diff(old: str, new: str) -> list[str]:
    """A few lines of a unified diff around the first difference; what is long is cut there."""
    at = common_length(old.encode("utf-32-le", "replace"), new.encode("utf-32-le", "replace")) // 4
    start = max(0, at - CHARS_BEFORE)
    shown = [_window(text, start, at + CHARS_AFTER) for text in (old, new)]
    lines = difflib.unified_diff(shown[0].splitlines(), shown[1].splitlines(), lineterm="", n=1)
    # The first three lines name files and line numbers that there are none of.
    return [_cut(line) for line in islice(lines, 3, 3 + DIFF_LINES_MAX)]


def _window(text: str, start: int, end: int) -> str:
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def _cut(line: str) -> str:
    return line if len(line) <= LINE_CHARS_MAX else line[: LINE_CHARS_MAX - 1] + "…"
