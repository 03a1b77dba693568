"""Anthropic's usage counters as disjoint buckets, and back."""

import msgspec

from holdfast.types.usage import Usage, clamp_token_count


class CacheCreation(msgspec.Struct, frozen=True):
    ephemeral_5m_input_tokens: int | None = None
    ephemeral_1h_input_tokens: int | None = None


class UsageCounters(msgspec.Struct, frozen=True):
    """The provider's own counters; None if missing. `input_tokens` excludes cache reads and writes."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation: CacheCreation | None = None
    output_tokens: int | None = None


class UsageIteration(UsageCounters, frozen=True):
    type: str = ""


class AnthropicUsage(UsageCounters, frozen=True):
    iterations: tuple[UsageIteration, ...] | None = None


def merge_anthropic_usage(before: AnthropicUsage, later: AnthropicUsage) -> AnthropicUsage:
    """Counters in `message_delta` are cumulative, so each one that is present replaces the previous value."""
    changes = {name: value for name in later.__struct_fields__ if (value := getattr(later, name)) is not None}
    return msgspec.structs.replace(before, **changes)


def anthropic_usage_buckets(wire: AnthropicUsage) -> Usage:
    # The top-level counters leave out a server-side compaction; `usage.iterations` lists it (Anthropic, "Compaction").
    response, compaction = _buckets(wire), compaction_usage(wire)
    return response if compaction is msgspec.UNSET else response + compaction


def compaction_usage(wire: AnthropicUsage) -> Usage | msgspec.UnsetType:
    """Usage of a server-side compaction; unset if there was none."""
    usages = [_buckets(iteration) for iteration in wire.iterations or () if iteration.type == "compaction"]
    return sum(usages, Usage()) if usages else msgspec.UNSET


def _buckets(counters: UsageCounters) -> Usage:
    by_ttl = counters.cache_creation or CacheCreation()
    written_1h = clamp_token_count(by_ttl.ephemeral_1h_input_tokens)
    written = counters.cache_creation_input_tokens
    if written is None:
        written = clamp_token_count(by_ttl.ephemeral_5m_input_tokens) + written_1h
    written = clamp_token_count(written)
    # The total is what is billed; what is not listed as 1h was written with the default TTL of 5m.
    written_1h = min(written_1h, written)
    return Usage(
        input=clamp_token_count(counters.input_tokens),
        cache_read=clamp_token_count(counters.cache_read_input_tokens),
        cache_write_5m=written - written_1h,
        cache_write_1h=written_1h,
        output=clamp_token_count(counters.output_tokens),
    )


def encode_anthropic_usage(usage: Usage, *, output: int) -> dict[str, int | dict[str, int]]:
    return {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write_5m,
            "ephemeral_1h_input_tokens": usage.cache_write_1h,
        },
        "output_tokens": output,
    }
