"""For how long a call has written, where its provider says only how much."""

from collections.abc import Sequence

import msgspec

from holdfast.canonical.pieces import Link
from holdfast.canonical.prompt import Mark
from holdfast.canonical.usage import Usage
from holdfast.providers.openrouter import openrouter


def by_lifetime(usage: Usage, provider: str, breakpoints: Sequence[Mark], links: Sequence[Link]) -> Usage:
    """The usage with its writes where they are billed: for an hour up to the last mark of an hour, then for less.

    OpenRouter adds them up. Where lifetimes are mixed, how far that mark reaches is an estimate, by its share of bytes.
    """
    hour_blocks = [
        breakpoint.piece for breakpoint in breakpoints if breakpoint.ttl == "1h" and breakpoint.piece < len(links)
    ]
    written_tokens = usage.cache_write_5m
    if provider != openrouter.name or not hour_blocks or not written_tokens:
        return usage
    hour_tokens = written_tokens
    if max(hour_blocks) < max(breakpoint.piece for breakpoint in breakpoints):
        tokens_upto_hour = usage.tokens_sent * links[max(hour_blocks)].end // links[-1].end
        hour_tokens = min(written_tokens, max(0, tokens_upto_hour - usage.cache_read))
    return msgspec.structs.replace(
        usage, cache_write_5m=written_tokens - hour_tokens, cache_write_1h=usage.cache_write_1h + hour_tokens
    )
