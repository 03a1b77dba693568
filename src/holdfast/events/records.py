"""What a store holds beside the log: API keys (as digests), budgets, cache controls, the global order of all events."""

from collections.abc import Callable, Sequence
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


class FeedNotifications(Protocol):
    """While it is connected, a function is called when there are new events; one that was missed is not repeated."""

    @property
    def is_connected(self) -> bool: ...

    def close(self) -> None: ...


OpenNotifications = Callable[[Callable[[], None]], FeedNotifications]
"""Begins to call a function, from any thread."""


BUDGET_USD_MAX = 1_000_000
"""Of a key's budget. What is larger is a mistake."""


class KeyRow(msgspec.Struct, frozen=True):
    """`digest` is that of the secret part; the key itself is shown once and never stored.

    `entity` is the URI with which the holder signs, if one was given. Requests made with the key are charged to its
    user and team. The limits are those of the gateway; `models` are patterns such as `claude-*`, separated by spaces.
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
    budget_usd_a_day: float | None = None
    requests_a_minute: int | None = None
    budget_usd_a_month: float | None = None
    models: str | None = None

    @property
    def has_budget(self) -> bool:
        return self.budget_usd_a_day is not None or self.budget_usd_a_month is not None

    @property
    def model_patterns(self) -> tuple[str, ...]:
        return tuple(self.models.split()) if self.models else ()


class KeyStore(Protocol):
    def add_key(self, row: KeyRow) -> None: ...

    def key(self, key_id: str) -> KeyRow | None: ...

    def all_keys(self) -> tuple[KeyRow, ...]:
        """All keys ever created, oldest first."""

    def has_keys(self) -> bool:
        """Whether a key was ever created.

        Revoked keys count, so that revoking the last one does not disable authentication.
        """

    def update_key(self, row: KeyRow) -> bool:
        """Replaces name, user, team and limits; False if there is no such key or it was revoked."""

    def last_used_days(self) -> dict[str, str]:
        """The day (UTC) of the last recorded call of each gateway key that has one."""

    def revoke_key(self, key_id: str, *, at: float) -> bool:
        """Revokes a key; False if there is no such key or it was already revoked."""


class BudgetDay(msgspec.Struct, frozen=True):
    """What a gateway key has spent on a day and what is reserved for its calls in progress, in picodollars.

    `usual_output_tokens` is the largest output of its recent calls, on this or an earlier day; 0 if there was none.
    """

    spent: int = 0
    reserved: int = 0
    usual_output_tokens: int = 0


class BudgetCharge(msgspec.Struct, frozen=True):
    """An amount in picodollars under the id of its call, on a day in UTC (`2026-11-17`)."""

    id: str
    key_id: str
    day: str
    amount: int
    at: float


class BudgetStore(Protocol):
    """Daily spending of gateway keys. Each method is one transaction, atomic for all processes that share the store."""

    def get_budget_day(self, key_id: str, day: str) -> BudgetDay: ...

    def sum_budget_days(self, key_id: str, first_day: str, end_day: str) -> BudgetDay:
        """What was spent from the first day up to but excluding the end, and is reserved for calls of those days."""

    def reserve_budget(self, charge: BudgetCharge, *, limit: int, usual_output_tokens: int = 0) -> bool:
        """Reserves an estimate, if the day's spending is below the limit and the estimate fits.

        The only call in progress need not fit: so a key can always use its last cent, and exceeds its limit by at most
        one call. `usual_output_tokens` is that of an earlier day, for the first call of a day.
        """

    def settle_budget(self, charge: BudgetCharge, *, output_tokens: int = 0) -> bool:
        """Replaces what is reserved under the id by what the call cost; a call without a reservation is just added.

        Returns False, and changes nothing, if the id was settled before.
        """

    def expire_reservations(self, before: float) -> int:
        """Counts reservations made before a time as spent, because nobody settled them; returns their number.

        Settling one later still replaces the estimate.
        """

    def delete_settled(self, before: float) -> None:
        """Deletes the ids of calls before a time; settling one of them again would count it again."""

    def seed_budget(self, key_id: str, day: str, spent: int) -> bool:
        """Sets the spending of a day of which nothing is stored yet."""


class RequestCountStore(Protocol):
    """How many requests gateway keys have made in a minute (since 1970), by all processes that share the store."""

    def take_requests(self, key_id: str, minute: int, count: int, *, limit: int) -> bool:
        """Adds requests to a minute in one statement; returns False, and adds nothing, beyond the limit."""

    def delete_request_counts(self, before_minute: int) -> None: ...


class SharedValue(msgspec.Struct, frozen=True):
    """A text under a key; `at` is when it was last used."""

    key: str
    text: str
    at: float


def snapshot_key(session_id: str) -> str:
    """The key of a session's folded state, which is deleted with the session's content."""
    return f"session {session_id}"


def ledger_key(session_id: str) -> str:
    """The key of a session's accounting state, which is deleted with the session."""
    return f"ledger {session_id}"


class SharedValueStore(Protocol):
    """What processes share: memories of planners, folded states of sessions.

    Nothing is lost with it but what a later call can learn, or derive from the log, again.
    """

    def find_shared(self, keys: Sequence[str]) -> dict[str, str]:
        """The texts by their keys, without keys that have none."""

    def put_shared(self, values: Sequence[SharedValue], deleted: Sequence[str] = ()) -> None:
        """Stores values in place of older ones and deletes keys, in one transaction."""

    def add_shared(self, value: SharedValue) -> str:
        """Stores a value unless its key has one; returns the text that is stored now."""

    def delete_shared(self, before: float) -> None:
        """Deletes what was last used before a time."""


class Lease(msgspec.Struct, frozen=True):
    """Work that `owner` does alone for `seconds_left` more; negative if the lease has ended. `value` is the owner's."""

    name: str
    owner: str
    seconds_left: float
    value: str = ""


class SessionHead(msgspec.Struct, frozen=True):
    """How far a session has come: the number of its events, and the last one."""

    session_id: str
    event_count: int
    last_event_id: str | None


class SharedWorkStore(Protocol):
    """What processes that share a store agree on; times are by the clock of the store."""

    def take_lease(self, name: str, owner: str, *, seconds: float, value: str = "") -> bool:
        """Takes or renews a lease; False if another owner has it."""

    def release_lease(self, name: str, owner: str) -> bool:
        """Ends a lease of this owner."""

    def list_leases(self, prefix: str) -> tuple[Lease, ...]:
        """Leases whose name begins so, also those that have ended."""

    def forget_leases(self, *, ended_seconds_ago: float) -> None:
        """Deletes leases that ended so long ago."""

    def find_head(self, session_id: str) -> SessionHead | None:
        """How far a session has come; None if it has no events."""

    def find_conversations(self, keys: Sequence[str]) -> tuple[SessionHead, ...]:
        """The newest sessions that have one of these conversation keys, a few for each."""


class StoreRecords(ControlStore, KeyStore, EventFeed, BudgetStore, RequestCountStore, SharedValueStore, Protocol):
    """Everything beside the log that a service needs from a store."""

    @property
    def shared(self) -> SharedWorkStore: ...


@runtime_checkable
class HasRecords(Protocol):
    """A store that has records beside the log."""

    @property
    def records(self) -> StoreRecords: ...


# The cookie in which the dashboard sends a key.
KEY_COOKIE = "holdfast_key"
