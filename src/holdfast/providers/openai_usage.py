"""Disjoint usage buckets where a provider's total includes cache reads and writes, as OpenAI's and Gemini's do."""

from holdfast.canonical.usage import Usage, counted


def inclusive_buckets(
    total: int | None,
    output: int | None,
    *,
    read: int | None = None,
    written_5m: int | None = None,
    written_other: int | None = None,
) -> Usage:
    """Buckets that add up to the total. Reads and writes that exceed it together are cut off."""
    # input = total - read - written. Anthropic's counters are disjoint already and do not need this.
    uncached = counted(total)
    cached: list[int] = []
    for reported in (read, written_5m, written_other):
        cached.append(min(counted(reported), uncached))
        uncached -= cached[-1]
    return Usage(
        input=uncached,
        cache_read=cached[0],
        cache_write_5m=cached[1],
        cache_write_other=cached[2],
        output=counted(output),
    )
