"""What a request in a file says: whose it is, its blocks, where each stands, and the marks that it came with."""

from decimal import Decimal
from itertools import accumulate

import msgspec

from holdfast.cachemodel.tiers import TierParameters
from holdfast.canonical.blocks import Block
from holdfast.canonical.prompt import Mark, Place
from holdfast.canonical.scroll import Scroll
from holdfast.canonical.tools import ToolSpec
from holdfast.catalog.lookup import Models, find_model
from holdfast.catalog.rows import Model, Price
from holdfast.catalog.tokens import count_block
from holdfast.errors import ProviderError, UserError
from holdfast.ledger.paths import paths_of, read_with
from holdfast.planning.marks import plan_marks
from holdfast.providers.adapter import WireRequest
from holdfast.providers.automatic import automatic_mark
from holdfast.providers.failures import readable
from holdfast.providers.reading import refuse_oversized
from holdfast.providers.recognition import Recognised, recognise
from holdfast.providers.registry import adapter_for
from holdfast.providers.tier_parameters import anthropic_parameters, gemini_parameters, openai_parameters

PLACES: tuple[Place, ...] = ("tools", "system", "messages")
_MILLION = 1_000_000
_IN_CAMEL_CASE = {
    "system_instruction": "systemInstruction",
    "generation_config": "generationConfig",
    "tool_config": "toolConfig",
    "cached_content": "cachedContent",
}


class SentRequest(msgspec.Struct, frozen=True):
    """`row` is None for a model that the catalog does not know. `marks` are the caller's own.

    `paths` say, for each piece of the scroll, where in the JSON it stood.
    """

    told: Recognised
    row: Model | None
    wire: WireRequest
    scroll: Scroll
    paths: tuple[str, ...]
    marks: tuple[Mark, ...]
    prefix_tokens: tuple[int, ...]

    @property
    def model(self) -> str:
        return f"{self.told.provider}:{self.told.model}"

    @property
    def blocks(self) -> tuple[Block | ToolSpec, ...]:
        prompt = self.wire.prompt
        system = (text for segment in prompt.segments for text in segment.system)
        said = (block for passage in prompt.passages for block in passage.content)
        return (*prompt.tools, *system, *said)

    @property
    def marks_in_force(self) -> tuple[Mark, ...]:
        """The caller's marks, or those that our plan would place where there are none."""
        return self.marks or (plan_marks(self.scroll, self.row.cache).marks if self.row else ())

    def tokens_before(self, piece: int) -> int:
        return self.prefix_tokens[piece - 1] if piece else 0


def read_sent(raw: bytes, *, model: str | None = None, models: Models | None = None) -> SentRequest:
    """Raises `UserError`, on one line that quotes nothing of the body, for what is no request that we can read.

    White space between the members of the JSON is nothing: no provider sees it.
    """
    try:
        return _read(raw, model, models)
    except ProviderError as error:
        raise UserError(str(error)) from None


def _read(raw: bytes, model: str | None, models: Models | None) -> SentRequest:
    refuse_oversized(raw)
    with readable("invalid_request", "the request"):
        body = msgspec.json.decode(raw, type=dict[str, object])
    told = recognise(body, model=model, models=models)
    if not told.model:
        raise UserError(f"it names no model; say it with --model {told.provider}:NAME")
    adapter = adapter_for(told.provider)
    if told.provider == "gemini":
        body = {_IN_CAMEL_CASE.get(name, name): value for name, value in body.items() if name != "model"}
    else:
        body["model"] = told.model
    if told.provider == "anthropic":
        # A body to count tokens with has none.
        body.setdefault("max_tokens", 1)
    with readable("invalid_request", "the request"):
        wire = read_with(adapter, body, model=told.model)
        row = _row(model or f"{told.provider}:{told.model}", models)
        factor = row.tokens_factor if row else 1.0
        scroll = Scroll(adapter, lambda spelled: count_block(spelled, factor))
        for segment in wire.prompt.segments:
            scroll.extend(adapter.spell(segment))
        paths = paths_of(adapter, body, scroll.pieces, model=told.model)
    marks = tuple(mark for mark in wire.plan.marks if mark.piece < len(scroll.pieces))
    if row is not None:
        marks += automatic_mark(wire.parameters, scroll.pieces, marks, row.cache)
    return SentRequest(told, row, wire, scroll, paths, marks, tuple(accumulate(scroll.tokens)))


def _row(id: str, models: Models | None) -> Model | None:
    try:
        return find_model(id, models)
    except UserError:
        return None


def tier_parameters_of(request: SentRequest) -> TierParameters:
    parameters = request.wire.parameters
    if request.told.provider == "gemini":
        return gemini_parameters(parameters, {})
    if request.told.provider == "anthropic" or (request.row and request.row.cache.kind == "marks"):
        return anthropic_parameters(request.blocks, parameters)
    return openai_parameters(parameters)


def readable_pieces(request: SentRequest, shared: int) -> int:
    """How many leading pieces a later request can read that has only the first `shared` in common with this one."""
    if request.row is None:
        return shared
    rules = request.row.cache
    match rules.kind:
        case "marks":
            ends = [mark.piece + 1 for mark in request.marks_in_force if mark.piece < shared]
        case "implicit" | "breakpoints":
            ends = [shared]
        case "none":
            ends = []
    return max((end for end in ends if request.tokens_before(end) >= rules.tokens_min), default=0)


def readable_tokens(request: SentRequest, shared: int) -> int:
    tokens = request.tokens_before(readable_pieces(request, shared))
    step = request.row.cache.rounds_reads_to if request.row else 1
    return tokens // step * step


def kept_by(request: SentRequest, piece: int) -> int:
    """How many leading pieces are unaffected by a change of this one: those before it, or fewer where the provider
    builds an earlier part of the prompt from it."""
    place = request.scroll.pieces[piece].place if piece < len(request.scroll.pieces) else "messages"
    first_lost = request.row.cache.invalidates.get(place, place) if request.row else place
    return min(piece, start_of(request, first_lost)) if first_lost != place else piece


def start_of(request: SentRequest, place: Place) -> int:
    """How many pieces stand in front of a place."""
    rank = PLACES.index(place)
    return sum(PLACES.index(piece.place) < rank for piece in request.scroll.pieces)


def rewrite_usd(request: SentRequest, tokens: int, price: Price) -> Decimal:
    """What it costs more to write so many tokens again than to read them."""
    marks = request.marks_in_force
    written = price.input
    if request.row is not None and request.row.cache.kind in ("marks", "breakpoints"):
        match marks[-1].ttl if marks else "5m":
            case "5m":
                written = price.cache_write_5m
            case "1h":
                written = price.cache_write_1h
            case "30m":
                written = price.cache_write_other
            case "12h":
                written = price.cache_write_12h or price.cache_write_other
    return tokens * max(Decimal(0), written - price.cache_read) / _MILLION


def read_saving_usd(tokens: int, price: Price) -> Decimal:
    """What a call saves that reads so many tokens instead of sending them uncached."""
    return tokens * (price.input - price.cache_read) / _MILLION
