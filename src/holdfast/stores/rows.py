"""How an event lies in a table, and what a session's row adds up to."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

import msgspec

from holdfast.errors import StoreError
from holdfast.events.envelope import SCHEMA_VERSION, Actor, Event, sensitivity_of, type_of
from holdfast.events.log import SessionRow
from holdfast.events.payloads import AnyPayload, SessionStarted

EVENT_BYTES_MAX = 64 * 1024 * 1024
ID_BYTES_MAX = 600  # Two of them must fit into one entry of an index, whatever the engine.

_VERSION_MAX = 2**31 - 1
_NUMBERS = frozenset((float, int))
_ACTORS = frozenset(get_args(Actor))


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One line of the events table, columns in their order there; text and numbers only, so that none is in a cycle."""

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
    """The rows of one append; raises StoreError unless each can be read back as the event it was."""
    rows: dict[str, Row] = {}
    steps: set[tuple[str, str]] = set()
    for event in events:
        if event.id in rows:
            raise already_kept(event.id)
        if event.parent_event_id is not None:
            if (event.session_id, event.parent_event_id) in steps:
                raise continued_elsewhere(event.session_id)
            steps.add((event.session_id, event.parent_event_id))
        rows[event.id] = _row_of(event, event_bytes_max)
    return tuple(rows.values())


def _row_of(event: Event, event_bytes_max: int) -> Row:
    kind = type_of(event.payload)
    try:
        payload = _encode(event.payload)
        # NaN, a lone surrogate or a wrong type would else be found when it is too late: at the next read.
        kept = _is_storable(event) and _decode(payload) == event.payload
    except (ValueError, TypeError, ArithmeticError):
        kept = False
    if not kept:
        raise StoreError(
            f"event {event.id!a} of type {kind!r} cannot be stored as it is: "
            "its numbers must be finite, its text valid Unicode, its fields of their declared types, "
            f"its ids of {ID_BYTES_MAX} bytes at most"
        )
    if len(payload) > event_bytes_max:
        raise StoreError(
            f"event {event.id!a} of type {kind!r} has {len(payload)} bytes, a store takes {event_bytes_max}: "
            "keep large content in a file and refer to it"
        )
    return Row(
        event.id,
        event.at,
        event.session_id,
        event.turn_id,
        event.parent_event_id,
        kind,
        event.actor,
        str(sensitivity_of(event.payload)),
        event.version,
        payload.decode(),
    )


def _is_storable(event: Event) -> bool:
    """Whether all but the payload comes back as it is: what `event_of` would find, without the way there."""
    turn_id, parent_id, at, version = event.turn_id, event.parent_event_id, event.at, event.version
    ids = (event.id, event.session_id, "" if turn_id is None else turn_id, "" if parent_id is None else parent_id)
    together = "".join(ids)
    short = len(together) <= ID_BYTES_MAX and together.isascii()
    named = short or (is_text(together) and all(len(text.encode()) <= ID_BYTES_MAX for text in ids))
    timed = type(at) in _NUMBERS and float(at) == at and math.isfinite(at)
    return named and timed and type(version) is int and 0 < version <= _VERSION_MAX and event.actor in _ACTORS


def is_text(text: str) -> bool:
    """Whether a database can hold it: a lone surrogate, as in an undecodable argument, cannot be spelled."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def event_of(columns: Sequence[object]) -> Event:
    """The inverse of `rows_of` for one row; raises StoreError for what this version cannot read."""
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
    kind, version = columns["type"], columns["version"]
    what = f"event {_short(columns['id'])} of type {_short(kind)}, version {_short(version)},"
    newer = isinstance(version, int) and version > SCHEMA_VERSION
    if newer or kind not in _KNOWN_TYPES:
        return StoreError(f"{what} was written by a newer Holdfast: upgrade holdfast to read this session")
    session = _short(columns["session_id"])
    return StoreError(f"{what} is damaged: restore the database from a copy, or delete session {session}")


def _short(value: object) -> str:
    return ascii(value)[:80]


def continued_elsewhere(session_id: str) -> StoreError:
    return StoreError(
        f"session {session_id!a} was continued elsewhere since it was opened here, so nothing of this append was "
        "kept: resume it anew to go on"
    )


def already_kept(event_id: str) -> StoreError:
    return StoreError(
        f"an event with id {event_id!a} is on the log already, so nothing of this append was kept: "
        "append each event once"
    )


def tallies(events: Iterable[Event]) -> tuple[SessionRow, ...]:
    """What some events add to the rows of their sessions; the model is empty until it is known."""
    told: dict[str, list[Event]] = {}
    for event in events:
        told.setdefault(event.session_id, []).append(event)
    return tuple(_tally(session_id, some) for session_id, some in told.items())


def _tally(session_id: str, events: Sequence[Event]) -> SessionRow:
    times = [event.at for event in events]
    starts = [event.payload for event in events if isinstance(event.payload, SessionStarted)]
    return SessionRow(
        id=session_id,
        name=_last(one.name for one in starts),
        model=_last(one.model or None for one in starts) or "",
        started_at=min(times),
        last_event_at=max(times),
        event_count=len(events),
        parent_session_id=_last(one.parent.session_id for one in starts if one.parent),
    )


def joined(tallies: Iterable[SessionRow]) -> tuple[SessionRow, ...]:
    """One row a session."""
    parts: dict[str, list[SessionRow]] = {}
    for more in tallies:
        parts.setdefault(more.id, []).append(more)
    return tuple(some[0] if len(some) == 1 else _joined(some) for some in parts.values())


def _joined(parts: Sequence[SessionRow]) -> SessionRow:
    """A session's row after more of its events; what is known is replaced only by what is known."""
    return SessionRow(
        id=parts[0].id,
        name=_last(part.name for part in parts),
        model=_last(part.model or None for part in parts) or "",
        started_at=min([part.started_at for part in parts]),
        last_event_at=max([part.last_event_at for part in parts]),
        event_count=sum([part.event_count for part in parts]),
        parent_session_id=_last(part.parent_session_id or None for part in parts),
    )


def _last(texts: Iterable[str | None]) -> str | None:
    last = None
    for text in texts:
        if text is not None:
            last = text
    return last


def session_of(columns: Sequence[object]) -> SessionRow:
    """A session's row as it was read; raises StoreError when it is not one."""
    try:
        return msgspec.convert(dict(zip(SessionRow.__struct_fields__, columns, strict=True)), SessionRow)
    except (msgspec.ValidationError, ValueError) as error:
        raise StoreError("the list of sessions is damaged: restore the database from a copy") from error
