"""A cost quote for continuing with another model, before the switch is made."""

from decimal import Decimal

import msgspec
from msgspec.structs import replace

from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.schema import Model, Price
from holdfast.catalog.token_count import count_block_tokens
from holdfast.engine.conversation import Conversation
from holdfast.engine.history_transfer import model_provider, transfer_history
from holdfast.engine.request_draft import RequestDraft, build_view
from holdfast.layers.assemble import assemble_prompt
from holdfast.providers.adapter import Adapter, model_capabilities

_MILLION = Decimal(1_000_000)


class SwitchQuote(msgspec.Struct, frozen=True):
    """The next prompt's cost with the other model, whose cache is cold, and with the current one, whose cache is warm.

    `dropped` counts the blocks that cannot be transferred, by kind; `reworded` the entries that the other provider can
    only accept in a changed form. `below_floor_tokens` is what the stable prefix lacks to be cached by that model.
    Token counts are estimates.
    """

    model_before: str
    model_after: str
    prompt_tokens: int
    cold_usd: Decimal
    warm_usd: Decimal
    supports_prompt_caching: bool
    dropped: tuple[tuple[str, int], ...] = ()
    reworded: int = 0
    below_floor_tokens: int = 0

    def __str__(self) -> str:
        caches = ""
        if not self.supports_prompt_caching:
            caches = "; it is not known to cache, so every later call may cost as much again"
        elif self.below_floor_tokens:
            caches = f"; its stable part is {self.below_floor_tokens} tokens too short to be cached by itself"
        return (
            f"{self.model_after} starts cold: about {self.prompt_tokens} tokens for ${self.cold_usd:.6f}, which "
            f"cost ${self.warm_usd:.6f} with {self.model_before}{caches}"
        )


def quote_switch(conversation: Conversation, model: Model, adapter: Adapter) -> SwitchQuote:
    state, current_model = conversation.state, conversation.deps.model
    transferred = transfer_history(state.entries, same_provider=model_provider(current_model.id) == model.provider)
    view = build_view(replace(state, entries=transferred.entries, sent_count=len(transferred.entries)))
    draft = RequestDraft(adapter, lambda data: count_block_tokens(data, model.tokens_factor))
    draft.update(assemble_prompt(view))
    buffer = draft.buffer
    tokens, stable_tokens = buffer.tokens_total, sum(buffer.tokens[: buffer.stable_count])
    target_caches = model_capabilities(model).supports_prompt_caching
    today = utc_date(conversation.deps.clock())
    # Cold: the other model sees every token for the first time. Warm: the current model reads the whole prompt.
    warm_tokens = conversation.request_tokens or tokens
    warm = price_at(current_model, today, warm_tokens)
    current_caches = model_capabilities(current_model).supports_prompt_caching
    return SwitchQuote(
        model_before=current_model.id,
        model_after=model.id,
        prompt_tokens=tokens,
        cold_usd=tokens * first_send_rate(model, price_at(model, today, tokens)) / _MILLION,
        warm_usd=warm_tokens * (warm.cache_read if current_caches else warm.input) / _MILLION,
        supports_prompt_caching=target_caches,
        dropped=transferred.dropped,
        reworded=sum(adapter.lower_entry(entry) != entry for entry in transferred.entries),
        below_floor_tokens=max(model.cache.tokens_min - stable_tokens, 0) if target_caches else 0,
    )


def first_send_rate(model: Model, price: Price) -> Decimal:
    """The price of a token that the provider has not seen before: a cache write, if the model has one."""
    if not model_capabilities(model).supports_prompt_caching:
        return price.input
    match model.cache.kind:
        case "explicit":
            return price.cache_write_5m
        case "hybrid":
            return price.cache_write_other
        case "implicit" | "none":
            return price.input
