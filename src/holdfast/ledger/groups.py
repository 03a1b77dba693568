"""How cost amounts can be grouped and filtered."""

import datetime
from typing import Literal

import msgspec

from holdfast.events.log import SessionRow
from holdfast.ledger.postings import Posting
from holdfast.ledger.tables import Amounts

GroupBy = Literal[
    "model",
    "provider",
    "session",
    "day",
    "hour",
    "gateway_key",
    "user",
    "team",
    "parent_session",
    "is_worker",
    "none",
]

HOUR_SECONDS = 3_600

GroupName = str | bool | None


class Narrowed(msgspec.Struct, frozen=True):
    """Includes only what matches; None matches everything. Without `workers`, child sessions are left out."""

    model: str | None = None
    provider: str | None = None
    session: str | None = None
    gateway_key: str | None = None
    user: str | None = None
    team: str | None = None
    workers: bool = True

    @property
    def by(self) -> frozenset[str]:
        """The names of the fields that filter."""
        fields = ("model", "provider", "session", "gateway_key", "user", "team")
        return frozenset(name for name in fields if getattr(self, name) is not None)


class Group(msgspec.Struct, frozen=True):
    """`name` is None for calls without a key, user or team, and for the single group of `none`."""

    name: GroupName
    amounts: Amounts


def name_of(group_by: GroupBy, cell: object) -> GroupName:
    """The name of a group, from its key in the rows."""
    match group_by:
        case "none":
            return None
        case "gateway_key" | "user" | "team":
            return str(cell) or None
        case "is_worker":
            return bool(cell)
        case "hour":
            start = datetime.datetime.fromtimestamp(int(str(cell)) * HOUR_SECONDS, datetime.UTC)
            return start.strftime("%Y-%m-%dT%H")
        case _:
            return str(cell)


def key_of(group_by: GroupBy, row: SessionRow, posting: Posting) -> str | int:
    """The key of the group that a posting belongs to."""
    match group_by:
        case "model":
            return posting.model
        case "provider":
            return posting.provider
        case "session":
            return row.id
        case "day":
            return posting.day
        case "hour":
            return int(posting.at) // HOUR_SECONDS
        case "gateway_key":
            return posting.payer.key_id
        case "user":
            return posting.payer.user_id
        case "team":
            return posting.payer.team_id
        case "parent_session":
            return row.id if row.parent_session_id is None else row.parent_session_id
        case "is_worker":
            return int(row.parent_session_id is not None)
        case "none":
            return 0


def is_wanted(narrowed: Narrowed, row: SessionRow, posting: Posting) -> bool:
    payer = posting.payer
    return (
        narrowed.model in (None, posting.model)
        and narrowed.provider in (None, posting.provider)
        and narrowed.session in (None, row.id)
        and narrowed.gateway_key in (None, payer.key_id)
        and narrowed.user in (None, payer.user_id)
        and narrowed.team in (None, payer.team_id)
        and (narrowed.workers or row.parent_session_id is None)
    )
