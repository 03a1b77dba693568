"""What a request consists of, where its marks are, and what a change of each part would cost."""

from collections.abc import Iterator
from decimal import Decimal

import msgspec

from holdfast.canonical.encoding import digest
from holdfast.canonical.prompt import Mark, Place, Ttl
from holdfast.catalog.rows import Price
from holdfast.ledger.requests import SentRequest, kept_by, read_saving_usd, readable_tokens, rewrite_usd
from holdfast.planning.marks import plan_marks

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


class ExplainedMark(msgspec.Struct, frozen=True):
    """`saving_usd` is what each later call saves that reads up to here instead of sending it uncached."""

    path: str
    ttl: Ttl
    reason: str
    prefix_tokens: int
    below_floor: bool
    saving_usd: Decimal | None


class Explanation(msgspec.Struct, frozen=True):
    """All token counts are estimates. Stabilities are what a part's place lets expect; a request does not say them."""

    model: str
    told_by: str
    cache: str
    tokens: int
    floor_tokens: int | None
    parts: tuple[Part, ...]
    marks: tuple[ExplainedMark, ...]
    planned: tuple[ExplainedMark, ...]
    notes: tuple[str, ...]


def explain(request: SentRequest, price: Price | None) -> Explanation:
    row = request.row
    planned = plan_marks(request.scroll, row.cache).marks if row else ()
    own = {mark.piece for mark in request.marks}
    return Explanation(
        model=request.model,
        told_by=request.told.because,
        cache=row.cache.kind if row else "unknown",
        tokens=request.scroll.tokens_total,
        floor_tokens=row.cache.tokens_min if row else None,
        parts=tuple(_parts(request, price)),
        marks=tuple(_mark(request, mark, f"yours{_why(mark)}", price) for mark in request.marks),
        planned=tuple(_mark(request, mark, mark.reason, price) for mark in planned if mark.piece not in own),
        notes=tuple(_notes(request)),
    )


def _why(mark: Mark) -> str:
    return f", {mark.reason}" if mark.reason else ""


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


def _mark(request: SentRequest, mark: Mark, reason: str, price: Price | None) -> ExplainedMark:
    tokens = request.tokens_before(mark.piece + 1)
    below = request.row is not None and tokens < request.row.cache.tokens_min
    saving = None if price is None else Decimal(0) if below else read_saving_usd(tokens, price)
    return ExplainedMark(request.paths[mark.piece], mark.ttl, reason, tokens, below, saving)


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
