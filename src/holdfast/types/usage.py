"""Token usage of one call, in disjoint buckets."""

import operator

import msgspec

TOKENS_MAX = 1_000_000_000
"""No prompt is this long. A larger number is a provider's mistake and would distort every figure derived from it."""


def clamp_token_count(tokens: int | None) -> int:
    """Clamp a reported token count to 0..TOKENS_MAX; a missing count is 0."""
    return min(max(0, tokens or 0), TOKENS_MAX)


class Usage(msgspec.Struct, frozen=True):
    """`input` counts only the tokens that were neither read from the cache nor written to it."""

    input: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    cache_write_other: int = 0  # TTLs other than 5m and 1h, such as OpenAI's 30m.
    output: int = 0

    @property
    def cache_write(self) -> int:
        return self.cache_write_5m + self.cache_write_1h + self.cache_write_other

    @property
    def tokens_sent(self) -> int:
        """The whole prompt: uncached, read and written tokens. Shown to users as `in`."""
        return self.input + self.cache_read + self.cache_write

    @property
    def read_share(self) -> float:
        return self.cache_read / self.tokens_sent if self.tokens_sent else 0.0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*map(operator.add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


def exclude_usage(whole: Usage, part: Usage) -> Usage:
    """Subtract `part` from `whole` bucket by bucket; no bucket goes below 0."""
    pairs = zip(msgspec.structs.astuple(whole), msgspec.structs.astuple(part), strict=True)
    return Usage(*(max(0, total - subtracted) for total, subtracted in pairs))


def merge_usage_reports(first: Usage, second: Usage) -> Usage:
    """Merge two usage reports of one call: counters only grow, so the larger number is the newer."""
    if first == second:
        return first
    return Usage(*map(max, msgspec.structs.astuple(first), msgspec.structs.astuple(second)))
