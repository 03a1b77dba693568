"""The optional adapter protocol for providers that accept a request for zero output and still cache its prefix."""

from typing import Protocol, runtime_checkable

from holdfast.canonical.prompt import Parameters


@runtime_checkable
class AsksForNothing(Protocol):
    """Implemented in addition to `Adapter`. Such a ping refreshes what it reads and writes at its breakpoints."""

    def emptied(self, parameters: Parameters) -> Parameters:
        """The parameters for a ping: no output, not streamed. What the cache key depends on stays."""

    def conflict_with_empty(self, parameters: Parameters) -> str | None:
        """The parameter that makes the provider refuse such a ping, or None."""
