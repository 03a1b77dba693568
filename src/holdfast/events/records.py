"""What a store holds beside the log: keys, controls, and the global order of all events."""

from typing import Protocol, runtime_checkable

import msgspec

from holdfast.events.access import KeepsKeys
from holdfast.events.controls import KeepsControls
from holdfast.events.envelope import Event


class Placed(msgspec.Struct, frozen=True):
    """An event and its position among the events of all sessions; None where this version cannot read it."""

    place: int
    event: Event | None


class Feed(Protocol):
    def newest_place(self) -> int:
        """The position of the newest event; 0 if there is none."""

    def behind(self, position: int, *, limit: int) -> tuple[Placed, ...]:
        """Events after a position, in order. Positions increase, with gaps."""


class Records(KeepsControls, KeepsKeys, Feed, Protocol):
    """Everything beside the log that a service needs from a store."""


@runtime_checkable
class HasRecords(Protocol):
    """A store that has records beside the log."""

    @property
    def records(self) -> Records: ...
