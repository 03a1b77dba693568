"""Decides whether the prefix of a new session is padded, and with what. The decision is made once per session."""

import math
from collections.abc import Sequence
from decimal import Decimal

import msgspec

from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.schema import Model
from holdfast.catalog.token_count import count_block_tokens, count_tokens
from holdfast.economics.breakeven import PaddingOutlook, padding_pays
from holdfast.economics.cost import CostComparison
from holdfast.engine.model_switch import first_send_rate
from holdfast.layers.assemble import stable_segments
from holdfast.layers.padding import (
    HEURISTIC_BOUNDS,
    MAX_CACHEABLE_PREFIX_TOKENS,
    MIN_CACHEABLE_PREFIX_TOKENS,
    PADDING_LAYER,
    Padding,
    PaddingBounds,
    PaddingText,
    detect_padding,
    heuristic_prefix_tokens,
    select_padding,
)
from holdfast.ledger.requests.parse import ParsedRequest
from holdfast.providers.adapter import Adapter, model_capabilities
from holdfast.providers.registry import get_adapter
from holdfast.sources.skills.index import PRELOADED_SUFFIX
from holdfast.types.prompt import LayerText, Stability, View
from holdfast.types.request_buffer import RequestBuffer

CALLS_EXPECTED = 20

# What a call adds to the conversation, about the mean of recorded agents. It is cached with the prefix, so a natural
# prefix below the floor reaches the floor by itself after (floor - natural) / 500 calls.
GROWTH_TOKENS_EXPECTED = 500

# The target is 10 % above the floor, because token counts are estimates: a padded prefix that ends up below the floor
# is not cached, and the padding is billed for nothing.
FLOOR_MARGIN = 1.1


class PaddingInputs(msgspec.Struct, frozen=True):
    """The models that a session may use, its own first; its expected calls and growth; and its start time."""

    models: tuple[Model, ...]
    outlook: PaddingOutlook
    at: float


class PaddingDecision(msgspec.Struct, frozen=True):
    """The added padding layer, the skills in it by name, and the reason for the decision."""

    reason: str
    layers: tuple[LayerText, ...] = ()
    skill_names: tuple[str, ...] = ()


def decide_padding(
    mode: Padding, prefix: View, inputs: PaddingInputs, *, adapter: Adapter, bodies: Sequence[tuple[str, str]] = ()
) -> PaddingDecision:
    """Decide on the padding of a new session's stable prefix."""
    match mode:
        case "never":
            return PaddingDecision("not padded: padding is turned off")
        case "always":
            return _pad_always(prefix, bodies)
        case "auto":
            return _pad_if_worthwhile(prefix, inputs, adapter, bodies)


def _pad_always(prefix: View, bodies: Sequence[tuple[str, str]]) -> PaddingDecision:
    natural = heuristic_prefix_tokens(prefix.tools, prefix.pinned)
    if natural >= MIN_CACHEABLE_PREFIX_TOKENS:
        reached = f"{natural} tokens (characters / 4) reach {MIN_CACHEABLE_PREFIX_TOKENS}"
        return PaddingDecision(f"not padded: {reached} already")
    filler = select_padding(natural, HEURISTIC_BOUNDS, bodies, index_note=PRELOADED_SUFFIX)
    growth = f"from {natural} to {filler.prefix_tokens} tokens (characters / 4)"
    return _padded(filler, f"padded {growth}, as always up to {MIN_CACHEABLE_PREFIX_TOKENS}")


def _pad_if_worthwhile(
    prefix: View, inputs: PaddingInputs, adapter: Adapter, bodies: Sequence[tuple[str, str]]
) -> PaddingDecision:
    caching = [model for model in inputs.models if model_capabilities(model).supports_prompt_caching]
    if not caching:
        return PaddingDecision("not padded: no model of this session caches prompts")
    # The highest floor among the models: a prefix that reaches it is cached by all of them.
    highest = max(caching, key=_target)
    natural, target = count_prefix_tokens(prefix, adapter), _target(highest)
    floor = f"the floor of {highest.cache.tokens_min} tokens of {highest.id}"
    if natural >= target:
        return PaddingDecision(f"not padded: about {_model_tokens(highest, natural)} tokens reach {floor}")
    calls = f"{inputs.outlook.calls} calls"
    # First for the shortest padding that would do: if that does not pay, no real text will.
    cost = _compare_cost(natural, target, caching, inputs)
    if not cost:
        return PaddingDecision(f"not padded: to reach {floor} does not pay in {calls}: {_describe_cost(cost)}")
    # The same proportion of maximum to minimum as the seed's bounds.
    maximum = target * MAX_CACHEABLE_PREFIX_TOKENS // MIN_CACHEABLE_PREFIX_TOKENS
    bounds = PaddingBounds(target, maximum)
    filler = select_padding(natural, bounds, bodies, count=count_tokens, index_note=PRELOADED_SUFFIX)
    if filler.prefix_tokens < target:
        return PaddingDecision(f"not padded: there is not enough padding text to reach {floor}")
    # Whole skill bodies may overshoot the target, so the decision is made again with the real length.
    cost = _compare_cost(natural, filler.prefix_tokens, caching, inputs)
    if not cost:
        reason = f"the available padding text does not pay in {calls}: {_describe_cost(cost)}"
        return PaddingDecision(f"not padded: {reason}")
    growth = f"from about {_model_tokens(highest, natural)} to {_model_tokens(highest, filler.prefix_tokens)} tokens"
    return _padded(filler, f"padded {growth}, past {floor}: it pays in {calls}: {_describe_cost(cost)}")


def _padded(filler: PaddingText, reason: str) -> PaddingDecision:
    return PaddingDecision(reason, (LayerText(PADDING_LAYER, filler.text),), filler.skill_names)


def count_prefix_tokens(prefix: View, adapter: Adapter) -> int:
    """Tokens of the encoded stable prefix, before a model's `tokens_factor` is applied."""
    buffer = RequestBuffer(adapter, count_block_tokens)
    for segment in stable_segments(prefix):
        buffer.extend(adapter.encode_segment(segment))
    return buffer.tokens_total


def _target(model: Model) -> int:
    # model tokens = neutral tokens * tokens_factor, so the floor in neutral tokens is tokens_min / tokens_factor.
    return math.ceil(model.cache.tokens_min * FLOOR_MARGIN / model.tokens_factor)


def _model_tokens(model: Model, tokens: int) -> int:
    return math.ceil(tokens * model.tokens_factor)


def _compare_cost(natural: int, padded: int, models: Sequence[Model], inputs: PaddingInputs) -> CostComparison:
    """Compare the padded prefix with the natural one, in millionths of a US dollar.

    Which of the models will be used is unknown, so each is assumed to be used equally often: their costs are summed.
    """
    first = second = Decimal(0)
    for model in models:
        price = price_at(model, utc_date(inputs.at), _model_tokens(model, padded))
        # Padding a free model costs and saves nothing.
        if not price.input:
            continue
        comparison = padding_pays(
            _model_tokens(model, natural),
            _model_tokens(model, padded),
            floor_tokens=model.cache.tokens_min,
            ahead=inputs.outlook,
            read=price.cache_read / price.input,
            write=first_send_rate(model, price) / price.input,
        )
        # padding_pays counts in units of one uncached input token; times price.input gives millionths of a dollar.
        first += comparison.first_units * price.input
        second += comparison.second_units * price.input
    return CostComparison(first, second)


def _describe_cost(dollars: CostComparison) -> str:
    padded, natural = (amount / 1_000_000 for amount in (dollars.first_units, dollars.second_units))
    return f"${padded:.6f} against ${natural:.6f} as it is"


def explain_padding(request: ParsedRequest, *, at: float) -> str | None:
    """Assumes a session that starts with this prefix and makes the default number of calls; None without a price."""
    row = request.row
    if row is None or not row.prices:
        return None
    stable = (segment for segment in request.wire.prompt.segments if segment.stability <= Stability.EPOCH)
    texts = tuple(text.text for segment in stable for text in segment.system)
    padding = detect_padding("\n\n".join(texts))
    adapter = get_adapter(request.recognised.provider)
    natural_texts = (padding.before,) if padding else texts
    pinned = tuple(LayerText("preset", text) for text in natural_texts if text.strip())
    natural = View(tools=request.wire.prompt.tools, pinned=pinned)
    inputs = PaddingInputs((row,), PaddingOutlook(CALLS_EXPECTED, GROWTH_TOKENS_EXPECTED), at)
    reason = decide_padding("auto", natural, inputs, adapter=adapter).reason
    tokens, floor = request.tokens_before(request.buffer.stable_count), row.cache.tokens_min
    relation = f"{'below' if tokens < floor else 'not below'} the floor of {floor}"
    text = f"tools and stable system prompt have about {tokens} tokens, {relation}"
    if padding is not None:
        natural_tokens = math.ceil(count_prefix_tokens(natural, adapter) * row.tokens_factor)
        text += f"; {padding.description} is padding, without it they have about {natural_tokens}"
    return f'{text}; padding="auto" decides: {reason}'
