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
    has_file_tools,
    heuristic_prefix_tokens,
    select_padding,
)
from holdfast.ledger.requests.parse import ParsedRequest
from holdfast.planning.learned import NOTHING_LEARNED, LearnedParameters, SessionLength
from holdfast.providers.adapter import Adapter, model_capabilities
from holdfast.providers.registry import get_adapter
from holdfast.sources.skills.index import PRELOADED_SUFFIX
from holdfast.types.prompt import LayerText, Stability, View
from holdfast.types.request_buffer import RequestBuffer

# The assumed lengths of a session before any was seen: from a single question to a long task, with the mean of 20 that
# `planning/learned.py` assumes. They weigh as much as two sessions, and fade with every session seen: costs grow with
# the square of the calls, so that the longest of them would outweigh many short sessions.
CALLS_ASSUMED = (1, 3, 6, 12, 25, 73)
ASSUMED_WEIGHT = 2.0

# How much cheaper the padded session must be. Within 1 % the choice hardly matters, and token counts are less exact.
MARGIN = 0.01

# With assumed lengths only, padding must save this many times as much in the sessions in which it saves as it costs in
# the others. The more sessions are seen, the closer this gets to 1.
ASSUMED_GAIN_RATIO = 3.0

# What a call may add to the conversation, with about the mean of recorded agents. It is cached with the prefix, so a
# natural prefix below the floor reaches the floor by itself after (floor - natural) / growth calls.
GROWTHS_ASSUMED = (100, 300, 1_100)

# The target is 10 % above the floor, because token counts are estimates: a padded prefix that ends up below the floor
# is not cached, and the padding is billed for nothing.
FLOOR_MARGIN = 1.1


class CallForecast(msgspec.Struct, frozen=True):
    """How long a session may become: possible lengths with their probabilities, in words, and the gain required.

    `gain_ratio` is how many times its losses the gains of padding must be.
    """

    lengths: tuple[tuple[float, PaddingOutlook], ...]
    description: str
    gain_ratio: float = 1.0


def forecast_calls(
    learned: LearnedParameters,
    *,
    calls: int | None = None,
    messages: int | None = None,
    has_tools: bool = True,
    grows: bool = True,
) -> CallForecast:
    """Forecast a session from what its caller knows (`calls`, or else `messages`) and the lengths of earlier ones."""
    seen = [(length, _growth_tokens(length)) for length in learned.lengths]
    if calls is None and messages is not None and not has_tools:
        calls = messages
    # Without evidence a message counts as one call: a script that asks one question must not pay for padding.
    assumed = (calls,) if calls else (messages,) if messages else CALLS_ASSUMED
    assumed_weight = ASSUMED_WEIGHT / (1 + len(seen))
    outlooks = [
        (assumed_weight / len(assumed) / len(GROWTHS_ASSUMED), PaddingOutlook(count, growth))
        for count in assumed
        for growth in GROWTHS_ASSUMED
    ]
    for length, growth in seen:
        per_message = (
            length.calls if messages is None else max(messages, round(messages * length.calls / length.messages))
        )
        outlooks.append((1.0, PaddingOutlook(calls or per_message, growth)))
    total = assumed_weight + len(seen)
    lengths = tuple((weight / total, PaddingOutlook(one.calls, one.growth_tokens * grows)) for weight, one in outlooks)
    if calls:
        return CallForecast(lengths, f"{calls} call{'s' * (calls != 1)}")
    mean = sum(probability * outlook.calls for probability, outlook in lengths)
    source = (
        f"by {len(seen)} earlier session{'s' * (len(seen) != 1)}" if seen else "assumed: no earlier session is known"
    )
    gain_ratio = 1 + (ASSUMED_GAIN_RATIO - 1) * ASSUMED_WEIGHT / (ASSUMED_WEIGHT + len(seen))
    return CallForecast(lengths, f"about {mean:.0f} calls ({source})", gain_ratio)


def _growth_tokens(length: SessionLength) -> int:
    """What each call added; the assumed mean where a single call or an old record does not show it."""
    if length.growth_tokens is None or length.calls < 2:
        return sum(GROWTHS_ASSUMED) // len(GROWTHS_ASSUMED)
    return round(length.growth_tokens / (length.calls - 1))


class PaddingInputs(msgspec.Struct, frozen=True):
    """The models that a session may use, its own first; how long it may become; and its start time."""

    models: tuple[Model, ...]
    forecast: CallForecast
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
    calls = inputs.forecast.description
    # First for the shortest padding that would do: if that does not pay, no real text will.
    cost = _compare_costs(natural, target, caching, inputs)
    if not _pays(cost):
        return PaddingDecision(f"not padded: to reach {floor} does not pay in {calls}: {_describe_cost(cost)}")
    with_guide = has_file_tools(prefix.tools)
    if not bodies and not with_guide:
        guide = "the operating guide is for tools that work on files or run commands"
        return PaddingDecision(f"not padded: no text fits this agent: it has no skills, and {guide}")
    # The same proportion of maximum to minimum as the seed's bounds.
    maximum = target * MAX_CACHEABLE_PREFIX_TOKENS // MIN_CACHEABLE_PREFIX_TOKENS
    bounds = PaddingBounds(target, maximum)
    filler = select_padding(
        natural, bounds, bodies, count=count_tokens, index_note=PRELOADED_SUFFIX, with_guide=with_guide
    )
    if filler.prefix_tokens < target:
        return PaddingDecision(f"not padded: there is not enough text that fits this agent to reach {floor}")
    # Whole skill bodies may overshoot the target, so the decision is made again with the real length.
    cost = _compare_costs(natural, filler.prefix_tokens, caching, inputs)
    if not _pays(cost):
        reason = f"the available padding text does not pay in {calls}: {_describe_cost(cost)}"
        return PaddingDecision(f"not padded: {reason}")
    growth = f"from about {_model_tokens(highest, natural)} to {_model_tokens(highest, filler.prefix_tokens)} tokens"
    detected = detect_padding(filler.text)
    content = f" with {detected.description}" if detected else ""
    return _padded(filler, f"padded {growth}{content}, past {floor}: it pays in {calls}: {_describe_cost(cost)}")


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


class ExpectedCosts(msgspec.Struct, frozen=True):
    """The padded and the natural prefix compared at each possible length, weighted by its probability.

    In millionths of a US dollar.
    """

    by_length: tuple[CostComparison, ...]
    gain_ratio: float

    @property
    def padded(self) -> Decimal:
        return sum((costs.first_units for costs in self.by_length), Decimal(0))

    @property
    def natural(self) -> Decimal:
        return sum((costs.second_units for costs in self.by_length), Decimal(0))


def _compare_costs(natural: int, padded: int, models: Sequence[Model], inputs: PaddingInputs) -> ExpectedCosts:
    """Compare the expected cost of the padded prefix with that of the natural one.

    Which of the models will be used is unknown, so each is assumed to be used equally often: their costs are summed.
    """
    by_length = []
    prices = [(model, price_at(model, utc_date(inputs.at), _model_tokens(model, padded))) for model in models]
    for probability, outlook in inputs.forecast.lengths:
        first = second = Decimal(0)
        for model, price in prices:
            # Padding a free model costs and saves nothing.
            if not price.input:
                continue
            comparison = padding_pays(
                # The first call has a message, too, which is cached with the prefix: about what each call adds.
                _model_tokens(model, natural) + outlook.growth_tokens,
                _model_tokens(model, padded) + outlook.growth_tokens,
                floor_tokens=model.cache.tokens_min,
                ahead=outlook,
                read=price.cache_read / price.input,
                write=first_send_rate(model, price) / price.input,
            )
            # padding_pays counts in uncached input tokens; times price.input gives millionths of a dollar.
            first += comparison.first_units * price.input
            second += comparison.second_units * price.input
        by_length.append(CostComparison(Decimal(probability) * first, Decimal(probability) * second))
    return ExpectedCosts(tuple(by_length), inputs.forecast.gain_ratio)


def _pays(cost: ExpectedCosts) -> bool:
    savings = [costs.second_units - costs.first_units for costs in cost.by_length]
    gains, losses = sum(saving for saving in savings if saving > 0), -sum(saving for saving in savings if saving < 0)
    return gains > losses * Decimal(cost.gain_ratio) and cost.padded * Decimal(1 + MARGIN) < cost.natural


def _describe_cost(cost: ExpectedCosts) -> str:
    return f"${cost.padded / 1_000_000:.6f} against ${cost.natural / 1_000_000:.6f} as it is"


def explain_padding(request: ParsedRequest, *, at: float) -> str | None:
    """Assumes a session that starts with this prefix, of unknown length; None without a price."""
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
    inputs = PaddingInputs((row,), forecast_calls(NOTHING_LEARNED), at)
    reason = decide_padding("auto", natural, inputs, adapter=adapter).reason
    tokens, floor = request.tokens_before(request.buffer.stable_count), row.cache.tokens_min
    relation = f"{'below' if tokens < floor else 'not below'} the floor of {floor}"
    text = f"tools and stable system prompt have about {tokens} tokens, {relation}"
    if padding is not None:
        natural_tokens = math.ceil(count_prefix_tokens(natural, adapter) * row.tokens_factor)
        text += f"; {padding.description} is padding, without it they have about {natural_tokens}"
    return f'{text}; padding="auto" decides: {reason}'
