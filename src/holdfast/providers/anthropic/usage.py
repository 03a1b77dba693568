"""How many tokens Anthropic says a call took, in buckets that never overlap."""

import msgspec

from holdfast.canonical.usage import Usage, counted


class Lifetimes(msgspec.Struct, frozen=True):
    ephemeral_5m_input_tokens: int | None = None
    ephemeral_1h_input_tokens: int | None = None


class Counters(msgspec.Struct, frozen=True):
    """The provider's own numbers; None where it did not say."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation: Lifetimes | None = None
    output_tokens: int | None = None


class Iteration(Counters, frozen=True):
    type: str = ""


class WireUsage(Counters, frozen=True):
    iterations: tuple[Iteration, ...] | None = None


def updated(before: WireUsage, news: WireUsage) -> WireUsage:
    """What is said later counts from the start of the call, so it replaces what was said before."""
    said = {name: value for name in news.__struct_fields__ if (value := getattr(news, name)) is not None}
    return msgspec.structs.replace(before, **said)


def buckets(wire: WireUsage) -> Usage:
    """The tokens of a compaction by the provider are in none of the top counters, so they are added."""
    own, summed_up = _buckets(wire), compacting(wire)
    return own if summed_up is msgspec.UNSET else own + summed_up


def compacting(wire: WireUsage) -> Usage | msgspec.UnsetType:
    """What a compaction by the provider took, where there was one."""
    taken = [_buckets(one) for one in wire.iterations or () if one.type == "compaction"]
    return sum(taken, Usage()) if taken else msgspec.UNSET


def _buckets(counters: Counters) -> Usage:
    lifetimes = counters.cache_creation or Lifetimes()
    hour = counted(lifetimes.ephemeral_1h_input_tokens)
    written = counters.cache_creation_input_tokens
    if written is None:
        written = counted(lifetimes.ephemeral_5m_input_tokens) + hour
    written = counted(written)
    # The total is what is billed: what it does not give to the hour was written for five minutes.
    hour = min(hour, written)
    return Usage(
        input=counted(counters.input_tokens),
        cache_read=counted(counters.cache_read_input_tokens),
        cache_write_5m=written - hour,
        cache_write_1h=hour,
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
