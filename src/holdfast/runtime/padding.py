"""Whether a new session's prefix is padded, with what, and why: decided once, the same for every turn."""

import math
from collections.abc import Sequence
from decimal import Decimal

import msgspec

from holdfast.canonical.scroll import Scroll
from holdfast.canonical.view import LayerText, View
from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.rows import Model
from holdfast.catalog.tokens import count_block, count_tokens
from holdfast.economics.comparison import Comparison
from holdfast.economics.padding import Outlook, padding_pays
from holdfast.engine.switch import first_rate
from holdfast.layers.assemble import head_of
from holdfast.layers.padding import (
    HEURISTIC_BOUNDS,
    LAYER,
    MAX_CACHEABLE_PREFIX_TOKENS,
    MIN_CACHEABLE_PREFIX_TOKENS,
    Bounds,
    Filling,
    Padding,
    fill,
    heuristic_prefix_tokens,
)
from holdfast.providers.adapter import Adapter
from holdfast.providers.capabilities import capabilities_of
from holdfast.sources.skills.index import PRELOADED

CALLS_EXPECTED = 20

GROWTH_TOKENS_EXPECTED = 500
"""What a call adds to a conversation, which is cached with the prefix: about the mean over recorded agents."""

FLOOR_MARGIN = 1.1
"""How far above a floor to aim: tokens are estimated, and below the floor the padding would be paid for in vain."""


class Occasion(msgspec.Struct, frozen=True):
    """The models that a session may use, its own first, what is expected of it, and when it begins."""

    models: tuple[Model, ...]
    ahead: Outlook
    at: float


class Decision(msgspec.Struct, frozen=True):
    """What was added, if anything, and the reason why it was or was not."""

    reason: str
    added: tuple[LayerText, ...] = ()
    names: tuple[str, ...] = ()


def decide_padding(
    mode: Padding, head: View, occasion: Occasion, *, adapter: Adapter, bodies: Sequence[tuple[str, str]] = ()
) -> Decision:
    """What to add to the stable prefix of a new session."""
    match mode:
        case "never":
            return Decision("not padded: padding is turned off")
        case "always":
            return _always(head, bodies)
        case "auto":
            return _where_it_pays(head, occasion, adapter, bodies)


def _always(head: View, bodies: Sequence[tuple[str, str]]) -> Decision:
    natural = heuristic_prefix_tokens(head.tools, head.pinned)
    if natural >= MIN_CACHEABLE_PREFIX_TOKENS:
        return Decision(f"not padded: {natural} tokens (characters / 4) reach {MIN_CACHEABLE_PREFIX_TOKENS} already")
    filling = fill(natural, HEURISTIC_BOUNDS, bodies, mark=PRELOADED)
    grown = f"from {natural} to {filling.prefix_tokens} tokens (characters / 4)"
    return _padded(filling, f"padded {grown}, as always up to {MIN_CACHEABLE_PREFIX_TOKENS}")


def _where_it_pays(head: View, occasion: Occasion, adapter: Adapter, bodies: Sequence[tuple[str, str]]) -> Decision:
    caching = [model for model in occasion.models if capabilities_of(model).supports_prompt_caching]
    if not caching:
        return Decision("not padded: no model of this session caches prompts")
    highest = max(caching, key=_target)
    natural, target = prefix_tokens(head, adapter), _target(highest)
    floor = f"the floor of {highest.cache.tokens_min} tokens of {highest.id}"
    if natural >= target:
        return Decision(f"not padded: about {_of(highest, natural)} tokens reach {floor}")
    calls = f"{occasion.ahead.calls} calls"
    best = _compared(natural, target, caching, occasion)
    if not best:
        return Decision(f"not padded: to reach {floor} does not pay in {calls}: {_told(best)}")
    maximum = target * MAX_CACHEABLE_PREFIX_TOKENS // MIN_CACHEABLE_PREFIX_TOKENS
    filling = fill(natural, Bounds(target, maximum), bodies, count=count_tokens, mark=PRELOADED)
    if filling.prefix_tokens < target:
        return Decision(f"not padded: there is not enough to say to reach {floor}")
    real = _compared(natural, filling.prefix_tokens, caching, occasion)
    if not real:
        return Decision(f"not padded: what there is to say does not pay in {calls}: {_told(real)}")
    grown = f"from about {_of(highest, natural)} to {_of(highest, filling.prefix_tokens)} tokens"
    return _padded(filling, f"padded {grown}, past {floor}: it pays in {calls}: {_told(real)}")


def _padded(filling: Filling, reason: str) -> Decision:
    return Decision(reason, (LayerText(LAYER, filling.text),), filling.names)


def prefix_tokens(head: View, adapter: Adapter) -> int:
    """The stable prefix as it is sent, in tokens that belong to no model yet."""
    scroll = Scroll(adapter, count_block)
    for segment in head_of(head):
        scroll.extend(adapter.spell(segment))
    return scroll.tokens_total


def _target(model: Model) -> int:
    return math.ceil(model.cache.tokens_min * FLOOR_MARGIN / model.tokens_factor)


def _of(model: Model, tokens: int) -> int:
    return math.ceil(tokens * model.tokens_factor)


def _compared(natural: int, padded: int, models: Sequence[Model], occasion: Occasion) -> Comparison:
    """In US dollars per million. Nobody knows which of the models will speak: each is taken to do so as often."""
    first = second = Decimal(0)
    for model in models:
        price = price_at(model, utc_date(occasion.at), _of(model, padded))
        if not price.input:
            continue
        told = padding_pays(
            _of(model, natural),
            _of(model, padded),
            floor_tokens=model.cache.tokens_min,
            ahead=occasion.ahead,
            read=price.cache_read / price.input,
            write=first_rate(model, price) / price.input,
        )
        first += told.first_units * price.input
        second += told.second_units * price.input
    return Comparison(first, second)


def _told(dollars: Comparison) -> str:
    padded, natural = (amount / 1_000_000 for amount in (dollars.first_units, dollars.second_units))
    return f"${padded:.6f} against ${natural:.6f} as it is"
