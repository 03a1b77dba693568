"""Gemini's usage counters as disjoint buckets, and back."""

import msgspec

from holdfast.canonical.usage import Usage, counted


class WireUsage(msgspec.Struct, frozen=True, rename="camel"):
    """The provider's own counters; None if missing. `promptTokenCount` includes cached tokens."""

    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None


def buckets(wire: WireUsage) -> Usage:
    prompt = counted(wire.prompt_token_count)
    # Thoughts count as output; tool results that Gemini inserted itself count as input.
    cached = min(counted(wire.cached_content_token_count), prompt)
    return Usage(
        input=prompt - cached + counted(wire.tool_use_prompt_token_count),
        cache_read=cached,
        output=counted(wire.candidates_token_count) + counted(wire.thoughts_token_count),
    )


def wire_usage(usage: Usage) -> dict[str, int]:
    """Like the provider, leaves out the cached count if it is 0."""
    cached = {"cachedContentTokenCount": usage.cache_read} if usage.cache_read else {}
    return {
        "promptTokenCount": usage.tokens_sent,
        **cached,
        "candidatesTokenCount": usage.output,
        "totalTokenCount": usage.tokens_sent + usage.output,
    }
