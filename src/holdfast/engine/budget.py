"""The spending limit of a session: what is committed, what a call may cost, and the reservation around a call."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal

from holdfast.engine.conversation import Conversation
from holdfast.errors import BudgetError

ESTIMATE_MARGIN = 1.2
"""Token counts are local estimates; a spending limit must hold even if a prompt is this much larger."""


@contextmanager
def reserve_budget(conversation: Conversation, estimated_tokens: int) -> Iterator[None]:
    """Reserve budget for a call. Raises `BudgetError` if it could exceed the limit with no cache read."""
    cost_max = call_cost_usd_max(conversation, estimated_tokens)
    if not can_spend(conversation, cost_max):
        payer = budget_owner(conversation)
        raise BudgetError(
            f"the session has spent ${committed_usd(payer):.4f} of its ${payer.deps.spend_max_usd or 0:f}; the next "
            f"call could cost up to ${cost_max:.4f} ({math.ceil(estimated_tokens * ESTIMATE_MARGIN)} tokens in, "
            f"at most {conversation.deps.parameters.output_tokens_max} out): raise spend_max_usd, or lower "
            "output_tokens_max"
        )
    conversation.reserved_usd = cost_max
    try:
        yield
    finally:
        conversation.reserved_usd = Decimal(0)


def can_spend(conversation: Conversation, more_usd: Decimal) -> bool:
    payer = budget_owner(conversation)
    limit = payer.deps.spend_max_usd
    return limit is None or committed_usd(payer) + more_usd <= limit


def budget_owner(conversation: Conversation) -> Conversation:
    """The conversation whose spending limit applies: the root of the delegation tree."""
    return conversation if conversation.parent is None else budget_owner(conversation.parent)


def committed_usd(conversation: Conversation) -> Decimal:
    """What was spent plus what calls in progress may still cost, children included."""
    state = conversation.state
    children = (child for child in conversation.children if child.state.session_id in state.delegated_sessions)
    return sum((committed_usd(child) for child in children), state.cost_usd + conversation.reserved_usd)


def call_cost_usd_max(conversation: Conversation, estimated_tokens: int) -> Decimal:
    """The cost of a call that reads nothing from cache and produces the maximum output (docs/decisions/0008)."""
    output_tokens = conversation.deps.parameters.output_tokens_max
    return prompt_cost_usd_max(conversation, estimated_tokens, output_tokens=output_tokens)


def prompt_cost_usd_max(conversation: Conversation, estimated_tokens: int, *, output_tokens: int = 0) -> Decimal:
    """The cost of a prompt that reads nothing from cache, plus the given output."""
    tokens_max = math.ceil(estimated_tokens * ESTIMATE_MARGIN)
    # Some models charge a higher rate for the whole prompt above a size; the real prompt may be above it.
    prices = (conversation.price(estimated_tokens), conversation.price(tokens_max))
    prompt_rates = [max(row.input, row.cache_write_5m, row.cache_write_1h, row.cache_write_other) for row in prices]
    return (tokens_max * max(prompt_rates) + output_tokens * max(row.output for row in prices)) / Decimal(1_000_000)
