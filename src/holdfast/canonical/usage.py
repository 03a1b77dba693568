"""How many tokens a call took, in buckets that never overlap."""

import msgspec

TOKENS_MAX = 1_000_000_000
"""More than this no prompt has: a larger number is a mistake, and would spoil all that is computed from it."""


def counted(tokens: int | None) -> int:
    """A provider's number of tokens as it can be used: none where it gave none, never negative, never absurd."""
    return min(max(0, tokens or 0), TOKENS_MAX)


class Usage(msgspec.Struct, frozen=True):
    """`input` is what was neither read from the cache nor written to it."""

    input: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    cache_write_other: int = 0  # Lifetimes of other providers, such as 30 minutes.
    output: int = 0

    @property
    def cache_write(self) -> int:
        return self.cache_write_5m + self.cache_write_1h + self.cache_write_other

    @property
    def tokens_sent(self) -> int:
        """The whole prompt: uncached, read and written; shown to people as `in`."""
        return self.input + self.cache_read + self.cache_write

    @property
    def read_share(self) -> float:
        return self.cache_read / self.tokens_sent if self.tokens_sent else 0.0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input=self.input + other.input,
            cache_read=self.cache_read + other.cache_read,
            cache_write_5m=self.cache_write_5m + other.cache_write_5m,
            cache_write_1h=self.cache_write_1h + other.cache_write_1h,
            cache_write_other=self.cache_write_other + other.cache_write_other,
            output=self.output + other.output,
        )


def without(whole: Usage, part: Usage) -> Usage:
    """What is left of some tokens when a part of them is taken out."""
    pairs = zip(msgspec.structs.astuple(whole), msgspec.structs.astuple(part), strict=True)
    return Usage(*(max(0, all_of_it - taken) for all_of_it, taken in pairs))


def larger_of(one: Usage, two: Usage) -> Usage:
    """What a call took, of two reports made while it went on: each bucket only grows."""
    return Usage(*map(max, msgspec.structs.astuple(one), msgspec.structs.astuple(two)))
