"""How many tokens Gemini says a call took, in buckets that never overlap."""

import msgspec

from holdfast.canonical.usage import Usage


class WireUsage(msgspec.Struct, frozen=True, rename="camel"):
    """The provider's own numbers; None where it did not say. The prompt's count includes what was cached."""

    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None


def buckets(wire: WireUsage) -> Usage:
    prompt = _count(wire.prompt_token_count)
    cached = min(_count(wire.cached_content_token_count), prompt)
    return Usage(
        input=prompt - cached + _count(wire.tool_use_prompt_token_count),
        cache_read=cached,
        output=_count(wire.candidates_token_count) + _count(wire.thoughts_token_count),
    )


def _count(tokens: int | None) -> int:
    return max(0, tokens or 0)


def wire_usage(usage: Usage) -> dict[str, int]:
    """Nothing is said of cached tokens where there are none, as the provider does it."""
    cached = {"cachedContentTokenCount": usage.cache_read} if usage.cache_read else {}
    return {
        "promptTokenCount": usage.tokens_sent,
        **cached,
        "candidatesTokenCount": usage.output,
        "totalTokenCount": usage.tokens_sent + usage.output,
    }
