"""The minimum cacheable prompt size of a model: the catalog's value, corrected by reported usage."""

import msgspec

MISSES_MIN = 2
"""How many prompts of a size must go uncached before that counts as a floor: caches fail now and then."""

FLOOR_FACTOR_MAX = 4
"""An uncached prompt this many times the catalog's floor is no evidence of a higher floor: it has another cause."""


class Floor(msgspec.Struct, frozen=True):
    """Observations: the largest prompt with a breakpoint of which nothing was cached, how many such prompts there
    were, and the smallest of which something was cached. New evidence replaces what it contradicts."""

    above_tokens: int = 0
    misses: int = 0
    upto_tokens: int | None = None

    def seen(self, tokens: int, *, cached: bool) -> "Floor":
        """Add the outcome of one prompt with a breakpoint at its end."""
        if not cached:
            smallest = None if self.upto_tokens is not None and self.upto_tokens <= tokens else self.upto_tokens
            return Floor(max(self.above_tokens, tokens), self.misses + 1, smallest)
        smallest = tokens if self.upto_tokens is None else min(tokens, self.upto_tokens)
        if tokens <= self.above_tokens:
            return Floor(upto_tokens=smallest)
        return Floor(self.above_tokens, self.misses, smallest)

    def __add__(self, later: "Floor") -> "Floor":
        """Both observations, `later` after this one."""
        combined = self
        if later.misses:
            combined = combined.seen(later.above_tokens, cached=False)
            combined = msgspec.structs.replace(combined, misses=self.misses + later.misses)
        return combined.seen(later.upto_tokens, cached=True) if later.upto_tokens is not None else combined

    def corrected(self, table_tokens: int) -> int:
        """The floor to plan with."""
        if self.upto_tokens is not None and self.upto_tokens < table_tokens:
            return self.upto_tokens
        if self.misses >= MISSES_MIN and table_tokens <= self.above_tokens < table_tokens * FLOOR_FACTOR_MAX:
            return self.above_tokens + 1
        return table_tokens
