"""Usage counters of the Responses API as disjoint buckets, and back."""

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.providers.openai_usage import inclusive_buckets


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class WireUsage(msgspec.Struct, frozen=True):
    """`input_tokens` includes cache reads and writes."""

    input_tokens: int | None = None
    input_tokens_details: _Details | None = None
    output_tokens: int | None = None


def buckets(wire: WireUsage | None) -> Usage:
    if wire is None:
        return Usage()
    details = wire.input_tokens_details or _Details()
    return inclusive_buckets(
        wire.input_tokens,
        wire.output_tokens,
        read=details.cached_tokens,
        written_other=details.cache_write_tokens,
    )


def wire_usage(usage: Usage) -> dict[str, int | dict[str, int]]:
    return {
        "input_tokens": usage.tokens_sent,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.tokens_sent + usage.output,
    }
