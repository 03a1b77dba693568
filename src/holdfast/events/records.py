"""What a store keeps beside its log: keys, settings, and the order in which all events came."""

from typing import Protocol, runtime_checkable

import msgspec

from holdfast.events.access import KeepsKeys
from holdfast.events.controls import KeepsControls
from holdfast.events.envelope import Event


class Placed(msgspec.Struct, frozen=True):
    """An event of any session and its place among all; the event is None where this version cannot read it."""

    place: int
    event: Event | None


class Feed(Protocol):
    def newest_place(self) -> int:
        """The place of the newest event; 0 where there is none."""

    def behind(self, place: int, *, limit: int) -> tuple[Placed, ...]:
        """Events behind a place, in order. Places rise, and some are never taken."""


class Records(KeepsControls, KeepsKeys, Feed, Protocol):
    """All that a service needs of a store, beside the log."""


@runtime_checkable
class HasRecords(Protocol):
    """A store that keeps more than a log."""

    @property
    def records(self) -> Records: ...
