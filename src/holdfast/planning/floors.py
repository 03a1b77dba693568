"""From which size on a model's prompts are cached: the table's word, until usage says otherwise."""

import msgspec

MISSES_MIN = 2
"""How often a prompt of a size must go uncached before that is taken for a floor: caches fail now and then."""

FLOOR_FACTOR_MAX = 4
"""What is this much larger than the table's floor and yet not cached is not small: something else is wrong."""


class Floor(msgspec.Struct, frozen=True):
    """What was seen: the largest marked prompt of which nothing was kept, how often such were sent, and the smallest of
    which something was. What contradicts the past takes its place."""

    above_tokens: int = 0
    misses: int = 0
    upto_tokens: int | None = None

    def seen(self, tokens: int, *, cached: bool) -> "Floor":
        """One more prompt with a mark at its end."""
        if not cached:
            upto = None if self.upto_tokens is not None and self.upto_tokens <= tokens else self.upto_tokens
            return Floor(max(self.above_tokens, tokens), self.misses + 1, upto)
        lowest = tokens if self.upto_tokens is None else min(tokens, self.upto_tokens)
        return (
            Floor(upto_tokens=lowest) if tokens <= self.above_tokens else Floor(self.above_tokens, self.misses, lowest)
        )

    def __add__(self, later: "Floor") -> "Floor":
        """What was seen here, and then there."""
        both = self
        if later.misses:
            both = both.seen(later.above_tokens, cached=False)
            both = msgspec.structs.replace(both, misses=self.misses + later.misses)
        return both.seen(later.upto_tokens, cached=True) if later.upto_tokens is not None else both

    def corrected(self, table_tokens: int) -> int:
        """The floor to go by."""
        if self.upto_tokens is not None and self.upto_tokens < table_tokens:
            return self.upto_tokens
        if self.misses >= MISSES_MIN and table_tokens <= self.above_tokens < table_tokens * FLOOR_FACTOR_MAX:
            return self.above_tokens + 1
        return table_tokens
