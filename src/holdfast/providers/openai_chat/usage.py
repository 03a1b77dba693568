"""Usage counters of Chat Completions as disjoint buckets, and back."""

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.providers.openai_usage import inclusive_buckets


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class WireUsage(msgspec.Struct, frozen=True):
    """The provider's own counters; None if missing. `prompt_tokens` includes cache reads and writes."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


def buckets(wire: WireUsage, *, for_5m: bool = False) -> Usage:
    """`for_5m`: the TTL of cache writes is 5 minutes."""
    details = wire.prompt_tokens_details or PromptDetails()
    written = details.cache_write_tokens
    return inclusive_buckets(
        wire.prompt_tokens,
        wire.completion_tokens,
        read=details.cached_tokens,
        written_5m=written if for_5m else None,
        written_other=None if for_5m else written,
    )


def wire_usage(usage: Usage) -> dict[str, int | dict[str, int]]:
    return {
        "prompt_tokens": usage.tokens_sent,
        "completion_tokens": usage.output,
        "total_tokens": usage.tokens_sent + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
    }
