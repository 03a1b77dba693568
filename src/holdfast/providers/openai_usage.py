"""How many tokens a call took where the provider's total includes what was read from and written to its cache."""

from holdfast.canonical.usage import Usage, counted


def inclusive_buckets(
    total: int | None,
    output: int | None,
    *,
    read: int | None = None,
    written_5m: int | None = None,
    written_other: int | None = None,
) -> Usage:
    """Buckets that add up to the total, whatever the parts claim; what a part claims beyond it is cut off."""
    rest = counted(total)
    taken: list[int] = []
    for claimed in (read, written_5m, written_other):
        taken.append(min(counted(claimed), rest))
        rest -= taken[-1]
    return Usage(
        input=rest,
        cache_read=taken[0],
        cache_write_5m=taken[1],
        cache_write_other=taken[2],
        output=counted(output),
    )
