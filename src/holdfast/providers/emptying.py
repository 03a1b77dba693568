"""What an adapter offers whose provider takes a request that asks for nothing, and keeps its prefix all the same."""

from typing import Protocol, runtime_checkable

from holdfast.canonical.prompt import Parameters


@runtime_checkable
class AsksForNothing(Protocol):
    """Beside what every adapter offers. What such a request reads is refreshed, what it marks is written."""

    def emptied(self, parameters: Parameters) -> Parameters:
        """The same parameters, for a whole reply without output; what the cache depends on stays."""

    def conflict_with_empty(self, parameters: Parameters) -> str | None:
        """What in emptied parameters makes the provider refuse such a request."""
