"""Maps events to rows of the events table, and sums up session rows."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

import msgspec

from holdfast.errors import StoreError
from holdfast.events.envelope import SCHEMA_VERSION, Actor, Event, sensitivity_of, type_of
from holdfast.events.log import SessionRow
from holdfast.events.payloads import AnyPayload, SessionStarted

EVENT_BYTES_MAX = 64 * 1024 * 1024
# Two ids must fit into one index entry. PostgreSQL limits a B-tree entry to 2,704 bytes (8 kB pages), and escaping can
# double the length of an id: 2 * 2 * 600 = 2,400.
ID_BYTES_MAX = 600

_VERSION_MAX = 2**31 - 1
_NUMBERS = frozenset((float, int))
_ACTORS = frozenset(get_args(Actor))


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One row of the events table, fields in column order; only text and numbers, so it needs no cycle collection."""

    id: str
    at: float
    session_id: str
    turn_id: str | None
    parent_event_id: str | None
    type: str
    actor: Actor
    sensitivity: str
    version: int
    payload: str


COLUMNS = Row.__struct_fields__

_KNOWN_TYPES = frozenset(payload.__struct_config__.tag for payload in get_args(AnyPayload))

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnyPayload).decode


def rows_of(events: Iterable[Event], *, event_bytes_max: int = EVENT_BYTES_MAX) -> tuple[Row, ...]:
    """The rows of one append; raises StoreError unless each can be read back as the same event."""
    rows: dict[str, Row] = {}
    continued: set[tuple[str, str]] = set()
    for event in events:
        if event.id in rows:
            raise already_kept(event.id)
        if event.parent_event_id is not None:
            if (event.session_id, event.parent_event_id) in continued:
                raise continued_elsewhere(event.session_id)
            continued.add((event.session_id, event.parent_event_id))
        rows[event.id] = _row_of(event, event_bytes_max)
    return tuple(rows.values())


def _row_of(event: Event, event_bytes_max: int) -> Row:
    event_type = type_of(event.payload)
    try:
        payload = _encode(event.payload)
        # Decode it right away: NaN, a lone surrogate or a wrong type would otherwise be found only when it is read.
        is_storable = _is_storable(event) and _decode(payload) == event.payload
    except (ValueError, TypeError, ArithmeticError):
        is_storable = False
    if not is_storable:
        raise StoreError(
            f"event {event.id!a} of type {event_type!r} cannot be stored as it is: "
            "its numbers must be finite, its text valid Unicode, its fields of their declared types, "
            f"its ids of {ID_BYTES_MAX} bytes at most"
        )
    if len(payload) > event_bytes_max:
        raise StoreError(
            f"event {event.id!a} of type {event_type!r} has {len(payload)} bytes, the maximum is {event_bytes_max}: "
            "put large content into a file and refer to it"
        )
    return Row(
        event.id,
        event.at,
        event.session_id,
        event.turn_id,
        event.parent_event_id,
        event_type,
        event.actor,
        str(sensitivity_of(event.payload)),
        event.version,
        payload.decode(),
    )


def _is_storable(event: Event) -> bool:
    """Whether all but the payload can be read back unchanged: what decoding would find, without doing it."""
    turn_id, parent_id, at, version = event.turn_id, event.parent_event_id, event.at, event.version
    ids = (event.id, event.session_id, "" if turn_id is None else turn_id, "" if parent_id is None else parent_id)
    joined_ids = "".join(ids)
    is_short = len(joined_ids) <= ID_BYTES_MAX and joined_ids.isascii()
    ids_fit = is_short or (is_text(joined_ids) and all(len(text.encode()) <= ID_BYTES_MAX for text in ids))
    time_fits = type(at) in _NUMBERS and float(at) == at and math.isfinite(at)
    return ids_fit and time_fits and type(version) is int and 0 < version <= _VERSION_MAX and event.actor in _ACTORS


def is_text(text: str) -> bool:
    """Whether a database can store it: a lone surrogate, as in an undecodable argument, has no UTF-8 encoding."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def event_of(columns: Sequence[object]) -> Event:
    """The inverse of `encode_events` for one row; raises StoreError for a row that this version cannot read."""
    try:
        row = msgspec.convert(columns, Row)
        payload = _decode(row.payload)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise _unreadable(dict(zip(COLUMNS, columns, strict=False))) from error
    return Event(
        id=row.id,
        at=row.at,
        session_id=row.session_id,
        actor=row.actor,
        payload=payload,
        turn_id=row.turn_id,
        parent_event_id=row.parent_event_id,
        version=row.version,
    )


def _unreadable(columns: Mapping[str, object]) -> StoreError:
    event_type, version = columns["type"], columns["version"]
    description = (
        f"event {_abbreviate(columns['id'])} of type {_abbreviate(event_type)}, version {_abbreviate(version)},"
    )
    is_newer = isinstance(version, int) and version > SCHEMA_VERSION
    if is_newer or event_type not in _KNOWN_TYPES:
        return StoreError(f"{description} was written by a newer Holdfast: upgrade holdfast to read this session")
    session_id = _abbreviate(columns["session_id"])
    return StoreError(f"{description} is damaged: restore the database from a backup, or delete session {session_id}")


def _abbreviate(value: object) -> str:
    return ascii(value)[:80]


def continued_elsewhere(session_id: str) -> StoreError:
    return StoreError(
        f"session {session_id!a} was continued elsewhere since it was opened here, so this append was "
        "rejected: resume the session to continue"
    )


def already_kept(event_id: str) -> StoreError:
    return StoreError(
        f"an event with id {event_id!a} is already on the log, so this append was rejected: append each event once"
    )


def tallies(events: Iterable[Event]) -> tuple[SessionRow, ...]:
    """What events add to the rows of their sessions; the model is empty if none of them names it."""
    events_by_session: dict[str, list[Event]] = {}
    for event in events:
        events_by_session.setdefault(event.session_id, []).append(event)
    return tuple(_build_tally(session_id, session_events) for session_id, session_events in events_by_session.items())


def _build_tally(session_id: str, events: Sequence[Event]) -> SessionRow:
    times = [event.at for event in events]
    starts = [event.payload for event in events if isinstance(event.payload, SessionStarted)]
    return SessionRow(
        id=session_id,
        name=_last_present(start.name for start in starts),
        model=_last_present(start.model or None for start in starts) or "",
        started_at=min(times),
        last_event_at=max(times),
        event_count=len(events),
        parent_session_id=_last_present(start.parent.session_id for start in starts if start.parent),
    )


def joined(tallies: Iterable[SessionRow]) -> tuple[SessionRow, ...]:
    """Merges the rows of each session into one."""
    rows_by_session: dict[str, list[SessionRow]] = {}
    for row in tallies:
        rows_by_session.setdefault(row.id, []).append(row)
    return tuple(rows[0] if len(rows) == 1 else _merge_rows(rows) for rows in rows_by_session.values())


def _merge_rows(parts: Sequence[SessionRow]) -> SessionRow:
    """The row of a session after more events; an absent value never replaces a present one."""
    return SessionRow(
        id=parts[0].id,
        name=_last_present(part.name for part in parts),
        model=_last_present(part.model or None for part in parts) or "",
        started_at=min([part.started_at for part in parts]),
        last_event_at=max([part.last_event_at for part in parts]),
        event_count=sum([part.event_count for part in parts]),
        parent_session_id=_last_present(part.parent_session_id or None for part in parts),
    )


def _last_present(texts: Iterable[str | None]) -> str | None:
    present = None
    for text in texts:
        if text is not None:
            present = text
    return present


def session_of(columns: Sequence[object]) -> SessionRow:
    """Decodes a session row; raises StoreError if it is damaged."""
    try:
        return msgspec.convert(dict(zip(SessionRow.__struct_fields__, columns, strict=True)), SessionRow)
    except (msgspec.ValidationError, ValueError) as error:
        raise StoreError("the list of sessions is damaged: restore the database from a backup") from error
