"""Explains whether the stable prefix of a recorded request is padded, and what `padding="auto"` would decide."""

import math

from holdfast.canonical.prompt import Stability
from holdfast.canonical.view import LayerText, View
from holdfast.economics.padding import Outlook
from holdfast.layers.padding import padding_in
from holdfast.ledger.requests import SentRequest
from holdfast.providers.registry import adapter_for
from holdfast.runtime.padding import CALLS_EXPECTED, GROWTH_TOKENS_EXPECTED, Occasion, decide_padding, prefix_tokens


def padding_told(request: SentRequest, *, at: float) -> str | None:
    """Assumes a session that starts with this prefix and makes the default number of calls; None without a price."""
    row = request.row
    if row is None or not row.prices:
        return None
    texts = _stable_texts(request)
    padding = padding_in("\n\n".join(texts))
    adapter = adapter_for(request.told.provider)
    natural = _view(request, (padding.before,) if padding else texts)
    occasion = Occasion((row,), Outlook(CALLS_EXPECTED, GROWTH_TOKENS_EXPECTED), at)
    reason = decide_padding("auto", natural, occasion, adapter=adapter).reason
    tokens, floor = request.tokens_before(request.scroll.stable_count), row.cache.tokens_min
    relation = f"{'below' if tokens < floor else 'not below'} the floor of {floor}"
    text = f"tools and stable system prompt have about {tokens} tokens, {relation}"
    if padding is not None:
        natural_tokens = math.ceil(prefix_tokens(natural, adapter) * row.tokens_factor)
        text += f"; {padding.told} is padding, without it they have about {natural_tokens}"
    return f'{text}; padding="auto" decides: {reason}'


def _stable_texts(request: SentRequest) -> tuple[str, ...]:
    stable = (segment for segment in request.wire.prompt.segments if segment.stability <= Stability.EPOCH)
    return tuple(text.text for segment in stable for text in segment.system)


def _view(request: SentRequest, texts: tuple[str, ...]) -> View:
    pinned = tuple(LayerText("preset", text) for text in texts if text.strip())
    return View(tools=request.wire.prompt.tools, pinned=pinned)
