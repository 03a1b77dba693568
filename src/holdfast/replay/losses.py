"""What a recorded cache miss cost above reading what the previous call had sent."""

from collections.abc import Sequence
from decimal import Decimal

import msgspec

from holdfast.canonical.prompt import Ttl
from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import CacheRules, Price
from holdfast.economics.cost import cost_usd
from holdfast.replay.colds import ALONE, Around, recorded_lifetimes, why_cold
from holdfast.replay.play import is_cold
from holdfast.replay.recording import RecordedCall, Recording

MODEL_CHANGED = "model changed"
UNCACHED = "uncached"
"""The previous call cached nothing, so there was nothing to read."""


class Loss(msgspec.Struct, frozen=True):
    """Tokens that were sent again instead of read from the cache, and what that cost above reading them."""

    cause: str
    tokens: int
    usd: Decimal


def loss_of(
    before: RecordedCall, call: RecordedCall, ttl: Ttl, *, rules: CacheRules, price: Price, around: Around = ALONE
) -> Loss | None:
    """None if the call was a hit, or missed because the conversation had been compacted.

    `ttl` is the TTL that the previous call wrote its prefix with.
    """
    cause = cause_of(before, call, ttl, rules, around=around)
    if cause is None or call.usage is None or before.usage is None:
        return None
    usage = call.usage
    tokens = min(before.usage.tokens_sent, usage.tokens_sent) - usage.cache_read
    unread = usage.tokens_sent - usage.cache_read
    # Usage does not tell which of the unread tokens were written and which were plain input, so the missed ones are
    # charged the average price of all unread tokens of the call.
    paid = cost_usd(msgspec.structs.replace(usage, cache_read=0, output=0), price) * tokens / unread
    return Loss(cause, tokens, max(Decimal(0), paid - cost_usd(Usage(cache_read=tokens), price)))


def cause_of(
    before: RecordedCall, call: RecordedCall, ttl: Ttl, rules: CacheRules, *, around: Around = ALONE
) -> str | None:
    """The cause of a miss; None for a hit and for an intended restart (a compaction, or a user who went back)."""
    if call.usage is None or before.usage is None:
        return None
    shared = min(before.usage.tokens_sent, call.usage.tokens_sent)
    # A prefix below the model's minimum is never cached, so missing it is no loss.
    if shared < rules.tokens_min or not is_cold(call.usage, shared):
        return None
    if before.model != call.model and call.kept != 0:
        return MODEL_CHANGED
    # The client replaced or cut the history on purpose.
    if call.kept is not None:
        return None
    if not before.usage.cache_read + before.usage.cache_write:
        return UNCACHED
    return why_cold(before, call, rules, ttl, around=around)


def lifetimes_of(calls: Sequence[RecordedCall]) -> tuple[Ttl, ...]:
    """The TTL of each call; five minutes, the default of the API, if no call wrote anything."""
    short: Ttl = "5m"
    return recorded_lifetimes(Recording("", "", (), tuple(calls))) or (short,) * len(calls)
