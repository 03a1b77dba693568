"""Splits reported cache writes by TTL, for providers that report only their sum."""

from collections.abc import Sequence

import msgspec

from holdfast.canonical.pieces import Link
from holdfast.canonical.prompt import Mark
from holdfast.canonical.usage import Usage
from holdfast.providers.openrouter import openrouter


def by_lifetime(usage: Usage, provider: str, breakpoints: Sequence[Mark], digests: Sequence[Link]) -> Usage:
    """The usage with its writes in the bucket in which they are billed.

    OpenRouter reports one `cache_write_tokens` for both TTLs. Everything up to the last 1-hour breakpoint is a 1-hour
    write; where TTLs are mixed, the tokens up to that breakpoint are estimated by its share of the prompt's bytes.
    """
    hour_blocks = [
        breakpoint.piece for breakpoint in breakpoints if breakpoint.ttl == "1h" and breakpoint.piece < len(digests)
    ]
    written_tokens = usage.cache_write_5m
    if provider != openrouter.name or not hour_blocks or not written_tokens:
        return usage
    hour_tokens = written_tokens
    # Writes start where the read ends; those before the last 1-hour breakpoint are 1-hour writes:
    # hour = tokens_upto_hour - cache_read, at least 0 and at most everything written.
    if max(hour_blocks) < max(breakpoint.piece for breakpoint in breakpoints):
        tokens_upto_hour = usage.tokens_sent * digests[max(hour_blocks)].end // digests[-1].end
        hour_tokens = min(written_tokens, max(0, tokens_upto_hour - usage.cache_read))
    return msgspec.structs.replace(
        usage, cache_write_5m=written_tokens - hour_tokens, cache_write_1h=usage.cache_write_1h + hour_tokens
    )
