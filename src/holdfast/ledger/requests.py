"""Parses a request body from a file: provider and model, blocks with their JSON paths, and its cache breakpoints."""

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
_MILLION = 1_000_000  # Prices are US dollars per million tokens.
# Gemini accepts these members in snake_case too; the adapter decodes camelCase only.
_IN_CAMEL_CASE = {
    "system_instruction": "systemInstruction",
    "generation_config": "generationConfig",
    "tool_config": "toolConfig",
    "cached_content": "cachedContent",
}


class SentRequest(msgspec.Struct, frozen=True):
    """`row` is None for a model that the catalog does not know. `breakpoints` are the caller's own breakpoints.

    `paths` gives the JSON path of each block of the buffer.
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
        messages = (block for entry in prompt.passages for block in entry.content)
        return (*prompt.tools, *system, *messages)

    @property
    def marks_in_force(self) -> tuple[Mark, ...]:
        """The caller's breakpoints, or those that our planner would place if there are none."""
        return self.marks or (plan_marks(self.scroll, self.row.cache).marks if self.row else ())

    def tokens_before(self, block: int) -> int:
        return self.prefix_tokens[block - 1] if block else 0


def read_sent(raw: bytes, *, model: str | None = None, models: Models | None = None) -> SentRequest:
    """Raises a one-line `UserError` that quotes nothing of the body if the request cannot be parsed.

    Whitespace between JSON members is ignored: no provider sees it.
    """
    try:
        return _parse(raw, model, models)
    except ProviderError as error:
        raise UserError(str(error)) from None


def _parse(raw: bytes, model: str | None, models: Models | None) -> SentRequest:
    refuse_oversized(raw)
    with readable("invalid_request", "the request"):
        body = msgspec.json.decode(raw, type=dict[str, object])
    recognised = recognise(body, model=model, models=models)
    if not recognised.model:
        raise UserError(f"the request names no model; pass --model {recognised.provider}:NAME")
    adapter = adapter_for(recognised.provider)
    if recognised.provider == "gemini":
        body = {_IN_CAMEL_CASE.get(name, name): value for name, value in body.items() if name != "model"}
    else:
        body["model"] = recognised.model
    if recognised.provider == "anthropic":
        # Bodies for the token counting endpoint have no max_tokens, which the adapter requires.
        body.setdefault("max_tokens", 1)
    with readable("invalid_request", "the request"):
        wire = read_with(adapter, body, model=recognised.model)
        row = _find_row(model or f"{recognised.provider}:{recognised.model}", models)
        factor = row.tokens_factor if row else 1.0
        buffer = Scroll(adapter, lambda encoded: count_block(encoded, factor))
        for segment in wire.prompt.segments:
            buffer.extend(adapter.spell(segment))
        paths = paths_of(adapter, body, buffer.pieces, model=recognised.model)
    breakpoints = tuple(breakpoint_ for breakpoint_ in wire.plan.marks if breakpoint_.piece < len(buffer.pieces))
    if row is not None:
        breakpoints += automatic_mark(wire.parameters, buffer.pieces, breakpoints, row.cache)
    return SentRequest(recognised, row, wire, buffer, paths, breakpoints, tuple(accumulate(buffer.tokens)))


def _find_row(id: str, models: Models | None) -> Model | None:
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
    """How many leading blocks a later request can read if it shares only the first `shared` blocks with this one."""
    if request.row is None:
        return shared
    rules = request.row.cache
    match rules.kind:
        case "marks":
            # Entries end at breakpoints only.
            ends = [breakpoint_.piece + 1 for breakpoint_ in request.marks_in_force if breakpoint_.piece < shared]
        case "implicit" | "breakpoints":
            # The provider finds the longest common prefix by itself.
            ends = [shared]
        case "none":
            ends = []
    return max((end for end in ends if request.tokens_before(end) >= rules.tokens_min), default=0)


def readable_tokens(request: SentRequest, shared: int) -> int:
    tokens = request.tokens_before(readable_pieces(request, shared))
    step = request.row.cache.rounds_reads_to if request.row else 1
    return tokens // step * step  # OpenAI reports reads in multiples of 128 tokens.


def kept_by(request: SentRequest, block: int) -> int:
    """How many leading blocks are unaffected by a change of this one.

    Usually those before it; fewer where the provider renders an earlier section from it.
    """
    section = request.scroll.pieces[block].place if block < len(request.scroll.pieces) else "messages"
    first_lost = request.row.cache.invalidates.get(section, section) if request.row else section
    return min(block, start_of(request, first_lost)) if first_lost != section else block


def start_of(request: SentRequest, section: Place) -> int:
    """The number of blocks before a section."""
    rank = PLACES.index(section)
    return sum(PLACES.index(block.place) < rank for block in request.scroll.pieces)


def rewrite_usd(request: SentRequest, tokens: int, price: Price) -> Decimal:
    """What rewriting these tokens costs above reading them."""
    breakpoints = request.marks_in_force
    write_price = price.input
    if request.row is not None and request.row.cache.kind in ("marks", "breakpoints"):
        match breakpoints[-1].ttl if breakpoints else "5m":
            case "5m":
                write_price = price.cache_write_5m
            case "1h":
                write_price = price.cache_write_1h
            case "30m":
                write_price = price.cache_write_other
            case "12h":
                write_price = price.cache_write_12h or price.cache_write_other
    # rewrite = tokens * max(0, write_price - read_price) / 10**6, where write_price is that of the last breakpoint's
    # TTL, or the input price where the provider charges nothing extra for writing.
    return tokens * max(Decimal(0), write_price - price.cache_read) / _MILLION


def read_saving_usd(tokens: int, price: Price) -> Decimal:
    """What a call saves by reading these tokens instead of sending them uncached."""
    # Each token costs the read price instead of the input price.
    return tokens * (price.input - price.cache_read) / _MILLION
