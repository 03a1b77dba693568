"""What a request consists of, where its marks are, and what a change of each part would cost."""

from collections.abc import Iterator
from decimal import Decimal

import msgspec

from holdfast.canonical.encoding import digest
from holdfast.canonical.prompt import Mark, Place, Plan, Ttl
from holdfast.catalog.rows import Price
from holdfast.ledger.requests import SentRequest, kept_by, read_saving_usd, readable_tokens, rewrite_usd
from holdfast.planning.gaps import expected
from holdfast.planning.marks import plan_marks
from holdfast.planning.memory import NOTHING_LEARNED, Memory
from holdfast.planning.plan import plan
from holdfast.planning.policy import Moment
from holdfast.planning.savings import Warmth, with_savings

DIGEST_CHARS = 12


class Part(msgspec.Struct, frozen=True):
    """One block. If it changes, the next call writes `rewritten_tokens` again that it could have read."""

    path: str
    place: Place
    layer: str
    stability: str
    tokens: int
    digest: str
    rewritten_tokens: int
    rewritten_usd: Decimal | None


class Layer(msgspec.Struct, frozen=True):
    """What changes together, and what the next call writes again if its first block does."""

    name: str
    stability: str
    blocks: int
    tokens: int
    rewritten_tokens: int
    rewritten_usd: Decimal | None


class ExplainedMark(msgspec.Struct, frozen=True):
    """`saving_usd` is what each later call saves that reads up to here instead of sending it uncached.

    `expected_usd` is what the mark is expected to save by the next call, beside those in front of it and less what it
    costs to write: nobody knows yet whether and when that call comes.
    """

    piece: int
    path: str
    ttl: Ttl
    reason: str
    prefix_tokens: int
    below_floor: bool
    saving_usd: Decimal | None
    expected_usd: Decimal | None


class Explanation(msgspec.Struct, frozen=True):
    """All token counts are estimates. Stabilities are what a part's place lets expect; a request does not say them.

    `padding` says whether the stable head was made longer, or would be, and why.
    """

    model: str
    told_by: str
    cache: str
    tokens: int
    floor_tokens: int | None
    layers: tuple[Layer, ...]
    parts: tuple[Part, ...]
    marks: tuple[ExplainedMark, ...]
    planned: tuple[ExplainedMark, ...]
    padding: str | None
    notes: tuple[str, ...]


def explain(request: SentRequest, price: Price | None, *, padding: str | None = None) -> Explanation:
    row = request.row
    planned = _planned(request, price)
    own = {mark.piece for mark in request.marks}
    parts = tuple(_parts(request, price))
    return Explanation(
        model=request.model,
        told_by=request.told.because,
        cache=row.cache.kind if row else "unknown",
        tokens=request.scroll.tokens_total,
        floor_tokens=row.cache.tokens_min if row else None,
        layers=tuple(_layers(parts)),
        parts=parts,
        marks=tuple(_marks(request, tuple(map(_yours, request.marks)), price)),
        planned=tuple(one for one in _marks(request, planned.marks, price) if one.piece not in own),
        padding=padding,
        notes=(*_notes(request), *planned.notes),
    )


def _planned(request: SentRequest, price: Price | None) -> Plan:
    """What we would do with the first call of a session, of which nothing is known yet."""
    if request.row is None:
        return Plan()
    if price is None:
        return plan_marks(request.scroll, request.row.cache)
    return plan(Moment(request.scroll, request.row.cache, price, at=0.0), Memory(), keep_small=True)


def _yours(mark: Mark) -> Mark:
    return msgspec.structs.replace(mark, reason=f"yours, {mark.reason}" if mark.reason else "yours")


def _layers(parts: tuple[Part, ...]) -> Iterator[Layer]:
    for name in dict.fromkeys(part.layer for part in parts):
        own = [part for part in parts if part.layer == name]
        yield Layer(
            name=name,
            stability=own[0].stability,
            blocks=len(own),
            tokens=sum(part.tokens for part in own),
            rewritten_tokens=own[0].rewritten_tokens,
            rewritten_usd=own[0].rewritten_usd,
        )


def _parts(request: SentRequest, price: Price | None) -> Iterator[Part]:
    scroll = request.scroll
    whole = readable_tokens(request, len(scroll.pieces))
    for index, piece in enumerate(scroll.pieces):
        lost = whole - readable_tokens(request, kept_by(request, index))
        yield Part(
            path=request.paths[index],
            place=piece.place,
            layer=piece.layer,
            stability=piece.stability.name.lower(),
            tokens=scroll.tokens[index],
            digest=digest(piece.opens + piece.data)[:DIGEST_CHARS],
            rewritten_tokens=lost,
            rewritten_usd=None if price is None else rewrite_usd(request, lost, price),
        )


def _marks(request: SentRequest, marks: tuple[Mark, ...], price: Price | None) -> Iterator[ExplainedMark]:
    floor = request.row.cache.tokens_min if request.row else 0
    tokens = {mark.piece: request.tokens_before(mark.piece + 1) for mark in marks}
    kept = _with_savings(request, tuple(mark for mark in marks if tokens[mark.piece] >= floor), price)
    told = {mark.piece: mark.saving_usd for mark in kept}
    for mark in marks:
        upto, below = tokens[mark.piece], tokens[mark.piece] < floor
        yield ExplainedMark(
            piece=mark.piece,
            path=request.paths[mark.piece],
            ttl=mark.ttl,
            reason=mark.reason,
            prefix_tokens=upto,
            below_floor=below,
            saving_usd=None if price is None else Decimal(0) if below else read_saving_usd(upto, price),
            expected_usd=None if price is None or request.row is None else told.get(mark.piece, Decimal(0)),
        )


def _with_savings(request: SentRequest, marks: tuple[Mark, ...], price: Price | None) -> tuple[Mark, ...]:
    """The marks with what each is expected to save if nothing of the request is cached yet."""
    if price is None or request.row is None:
        return ()
    gaps = expected(Memory().gaps.all, NOTHING_LEARNED.gaps.all)
    warmth = Warmth(request.scroll.tokens_total, 0)
    return with_savings(marks, request.scroll, warmth, gaps, rules=request.row.cache, price=price)


def _notes(request: SentRequest) -> Iterator[str]:
    row, tokens = request.row, request.scroll.tokens_total
    if row is None:
        yield f"the catalog does not know {request.model[:120]}: no prices, no floor, no marks of ours"
        return
    rules = row.cache
    if rules.kind == "none":
        yield "this model keeps no cache"
    elif not row.supports_prompt_caching:
        yield f'caching is turned off for {row.id}: [models."{row.id}"] supports_prompt_caching = true turns it on'
    elif tokens < rules.tokens_min:
        yield f"{tokens} tokens are below the floor of {rules.tokens_min}: the provider keeps nothing of this request"
    if rules.kind == "implicit":
        yield "the provider takes no marks: it reads of itself whatever begins as a request before did"
    if len(request.marks) > rules.marks_max > 0:
        yield f"{len(request.marks)} marks are too many: the provider takes {rules.marks_max}"
