"""What a store holds beside the log: API keys (as digests), cache controls, and the global order of all events."""

from typing import Protocol, runtime_checkable

import msgspec

from holdfast.events.log import Event
from holdfast.events.payloads.cache import ControlStore


class PositionedEvent(msgspec.Struct, frozen=True):
    """An event and its position among the events of all sessions; None where this version cannot read it."""

    position: int
    event: Event | None


class EventFeed(Protocol):
    def newest_position(self) -> int:
        """The position of the newest event; 0 if there is none."""

    def events_after(self, position: int, *, limit: int) -> tuple[PositionedEvent, ...]:
        """Events after a position, in order. Positions increase, with gaps."""


class KeyRow(msgspec.Struct, frozen=True):
    """`digest` is that of the secret part; the key itself is shown once and never stored.

    `entity` is the URI with which the holder signs, if one was given. Requests made with the key are charged to its
    user and team.
    """

    id: str
    digest: str
    scope: str
    created_at: float
    name: str | None = None
    entity: str | None = None
    expires_at: float | None = None
    revoked_at: float | None = None
    user_id: str | None = None
    team_id: str | None = None


class KeyStore(Protocol):
    def add_key(self, row: KeyRow) -> None: ...

    def key(self, key_id: str) -> KeyRow | None: ...

    def all_keys(self) -> tuple[KeyRow, ...]:
        """All keys ever created, oldest first."""

    def has_keys(self) -> bool:
        """Whether a key was ever created.

        Revoked keys count, so that revoking the last one does not disable authentication.
        """

    def revoke_key(self, key_id: str, *, at: float) -> bool:
        """Revokes a key; False if there is no such key or it was already revoked."""


class StoreRecords(ControlStore, KeyStore, EventFeed, Protocol):
    """Everything beside the log that a service needs from a store."""


@runtime_checkable
class HasRecords(Protocol):
    """A store that has records beside the log."""

    @property
    def records(self) -> StoreRecords: ...


# The cookie in which the dashboard sends a key.
KEY_COOKIE = "holdfast_key"
