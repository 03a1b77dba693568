"""Anthropic's usage counters as disjoint buckets, and back."""

import msgspec

from holdfast.canonical.usage import Usage, counted


class Lifetimes(msgspec.Struct, frozen=True):
    ephemeral_5m_input_tokens: int | None = None
    ephemeral_1h_input_tokens: int | None = None


class Counters(msgspec.Struct, frozen=True):
    """The provider's own counters; None if missing. `input_tokens` excludes cache reads and writes."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation: Lifetimes | None = None
    output_tokens: int | None = None


class Iteration(Counters, frozen=True):
    type: str = ""


class WireUsage(Counters, frozen=True):
    iterations: tuple[Iteration, ...] | None = None


def updated(before: WireUsage, later: WireUsage) -> WireUsage:
    """Counters in `message_delta` are cumulative, so each one that is present replaces the previous value."""
    changes = {name: value for name in later.__struct_fields__ if (value := getattr(later, name)) is not None}
    return msgspec.structs.replace(before, **changes)


def buckets(wire: WireUsage) -> Usage:
    # The top-level counters leave out a server-side compaction; `usage.iterations` lists it (Anthropic, "Compaction").
    response, compaction = _buckets(wire), compacting(wire)
    return response if compaction is msgspec.UNSET else response + compaction


def compacting(wire: WireUsage) -> Usage | msgspec.UnsetType:
    """Usage of a server-side compaction; unset if there was none."""
    usages = [_buckets(iteration) for iteration in wire.iterations or () if iteration.type == "compaction"]
    return sum(usages, Usage()) if usages else msgspec.UNSET


def _buckets(counters: Counters) -> Usage:
    by_ttl = counters.cache_creation or Lifetimes()
    written_1h = counted(by_ttl.ephemeral_1h_input_tokens)
    written = counters.cache_creation_input_tokens
    if written is None:
        written = counted(by_ttl.ephemeral_5m_input_tokens) + written_1h
    written = counted(written)
    # The total is what is billed; what is not listed as 1h was written with the default TTL of 5m.
    written_1h = min(written_1h, written)
    return Usage(
        input=counted(counters.input_tokens),
        cache_read=counted(counters.cache_read_input_tokens),
        cache_write_5m=written - written_1h,
        cache_write_1h=written_1h,
        output=counted(counters.output_tokens),
    )


def wire_usage(usage: Usage, *, output: int) -> dict[str, int | dict[str, int]]:
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
