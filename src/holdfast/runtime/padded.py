"""Whether the stable head of a request was made longer, or would be, and why."""

import math

from holdfast.canonical.prompt import Stability
from holdfast.canonical.view import LayerText, View
from holdfast.economics.padding import Outlook
from holdfast.layers.padding import padding_in
from holdfast.ledger.requests import SentRequest
from holdfast.providers.registry import adapter_for
from holdfast.runtime.padding import CALLS_EXPECTED, GROWTH_TOKENS_EXPECTED, Occasion, decide_padding, prefix_tokens


def padding_told(request: SentRequest, *, at: float) -> str | None:
    """For a session that begins with this head and makes as many calls as one does by default; None without a price."""
    row = request.row
    if row is None or not row.prices:
        return None
    texts = _stable_texts(request)
    found = padding_in("\n\n".join(texts))
    adapter = adapter_for(request.told.provider)
    natural = _view(request, (found.before,) if found else texts)
    occasion = Occasion((row,), Outlook(CALLS_EXPECTED, GROWTH_TOKENS_EXPECTED), at)
    decided = decide_padding("auto", natural, occasion, adapter=adapter).reason
    tokens, floor = request.tokens_before(request.scroll.stable_count), row.cache.tokens_min
    place = f"{'below' if tokens < floor else 'not below'} the floor of {floor}"
    told = f"tools and stable system prompt have about {tokens} tokens, {place}"
    if found is not None:
        without = math.ceil(prefix_tokens(natural, adapter) * row.tokens_factor)
        told += f"; {found.told} stands there as padding, without it they have about {without}"
    return f'{told}; padding="auto" decides: {decided}'


def _stable_texts(request: SentRequest) -> tuple[str, ...]:
    stable = (one for one in request.wire.prompt.segments if one.stability <= Stability.EPOCH)
    return tuple(text.text for segment in stable for text in segment.system)


def _view(request: SentRequest, texts: tuple[str, ...]) -> View:
    pinned = tuple(LayerText("preset", text) for text in texts if text.strip())
    return View(tools=request.wire.prompt.tools, pinned=pinned)
