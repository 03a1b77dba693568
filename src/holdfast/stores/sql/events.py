"""The event log in SQL, for all engines: rows of events and sessions, and the queries on them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import get_args

import msgspec

from holdfast.errors import StoreError, UnstorableEventError
from holdfast.events.log import SCHEMA_VERSION, Actor, Event, SessionRow, event_type_of, sensitivity_of
from holdfast.events.payloads.calls import GatewayForwarded
from holdfast.events.payloads.session import MessageAppended, SessionStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.stores.sql.dialect import repeat_params
from holdfast.types.blocks import Text

# Bounds what one event takes in memory: it is encoded, decoded once for checking, and queued.
EVENT_BYTES_MAX = 64 * 1024 * 1024

# Two ids must fit into one index entry. PostgreSQL limits a B-tree entry to 2,704 bytes (8 kB pages), and escaping can
# double the length of an id: 2 * 2 * 600 = 2,400.
ID_BYTES_MAX = 600
_VERSION_MAX = 2**31 - 1  # PostgreSQL's integer column.
OPENING_CHARACTERS_MAX = 80
_OPENING_SEARCHED_CHARACTERS = 400  # Bounds what collapsing white space reads of a long text.
_NUMBERS = frozenset((float, int))
_ACTORS = frozenset(get_args(Actor))
Cell = str | bytes | int | float | None
FetchRows = Callable[[str, Sequence[Cell]], list[tuple[object, ...]]]
SESSION_COLUMNS = SessionRow.__struct_fields__
_KNOWN_TYPES = frozenset(payload.__struct_config__.tag for payload in get_args(AnyPayload))
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnyPayload).decode


class EventRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
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


EVENT_COLUMNS = EventRow.__struct_fields__


def encode_events(events: Iterable[Event], *, event_bytes_max: int = EVENT_BYTES_MAX) -> tuple[EventRow, ...]:
    """The rows of one append; raises StoreError unless each can be read back as the same event."""
    rows: dict[str, EventRow] = {}
    continued: set[tuple[str, str]] = set()
    for event in events:
        if event.id in rows:
            raise duplicate_event_error(event.id)
        if event.parent_event_id is not None:
            if (event.session_id, event.parent_event_id) in continued:
                raise continued_elsewhere_error(event.session_id)
            continued.add((event.session_id, event.parent_event_id))
        rows[event.id] = _row_of(event, event_bytes_max)
    return tuple(rows.values())


def _row_of(event: Event, event_bytes_max: int) -> EventRow:
    event_type = event_type_of(event.payload)
    try:
        payload = _encode(event.payload)
        # Decode it right away: NaN, a lone surrogate or a wrong type would otherwise be found only when it is read.
        is_storable = _is_storable(event) and _decode(payload) == event.payload
    except (ValueError, TypeError, ArithmeticError):
        is_storable = False
    if not is_storable:
        raise UnstorableEventError(
            f"event {event.id!a} of type {event_type!r} cannot be stored as it is: "
            "its numbers must be finite, its text valid Unicode, its fields of their declared types, "
            f"its ids of {ID_BYTES_MAX} bytes at most",
            event.id,
        )
    if len(payload) > event_bytes_max:
        raise UnstorableEventError(
            f"event {event.id!a} of type {event_type!r} has {len(payload)} bytes, the maximum is {event_bytes_max}: "
            "put large content into a file and refer to it",
            event.id,
        )
    return EventRow(
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
    ids_fit = is_short or (is_storable_text(joined_ids) and all(len(text.encode()) <= ID_BYTES_MAX for text in ids))
    time_fits = type(at) in _NUMBERS and float(at) == at and math.isfinite(at)
    return ids_fit and time_fits and type(version) is int and 0 < version <= _VERSION_MAX and event.actor in _ACTORS


def is_storable_text(text: str) -> bool:
    """Whether a database can store it: a lone surrogate, as in an undecodable argument, has no UTF-8 encoding."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def decode_event_row(columns: Sequence[object]) -> Event:
    """The inverse of `encode_events` for one row; raises StoreError for a row that this version cannot read."""
    try:
        row = msgspec.convert(columns, EventRow)
        payload = _decode(row.payload)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise _unreadable(dict(zip(EVENT_COLUMNS, columns, strict=False))) from error
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
    short = {name: ascii(value)[:80] for name, value in columns.items()}
    description = f"event {short['id']} of type {short['type']}, version {short['version']},"
    is_newer = isinstance(version, int) and version > SCHEMA_VERSION
    if is_newer or event_type not in _KNOWN_TYPES:
        return StoreError(f"{description} was written by a newer Holdfast: upgrade holdfast to read this session")
    fix = f"restore the database from a backup, or delete session {short['session_id']}"
    return StoreError(f"{description} is damaged: {fix}")


def continued_elsewhere_error(session_id: str) -> StoreError:
    return StoreError(
        f"session {session_id!a} was continued elsewhere since it was opened here, so this append was "
        "rejected: resume the session to continue"
    )


def duplicate_event_error(event_id: str) -> StoreError:
    return StoreError(
        f"an event with id {event_id!a} is already on the log, so this append was rejected: append each event once"
    )


def tally_sessions(events: Iterable[Event]) -> tuple[SessionRow, ...]:
    """What events add to the rows of their sessions; the model is empty if none of them names it."""
    events_by_session: dict[str, list[Event]] = {}
    for event in events:
        events_by_session.setdefault(event.session_id, []).append(event)
    return tuple(_build_tally(session_id, session_events) for session_id, session_events in events_by_session.items())


def _build_tally(session_id: str, events: Sequence[Event]) -> SessionRow:
    times = [event.at for event in events]
    starts = [event.payload for event in events if isinstance(event.payload, SessionStarted)]
    forwards = [event.payload for event in events if isinstance(event.payload, GatewayForwarded)]
    # In the order of the events, as if each were appended alone.
    callers = [event.payload for event in events if isinstance(event.payload, SessionStarted | GatewayForwarded)]
    return SessionRow(
        id=session_id,
        name=_last_present(start.name for start in starts),
        model=_last_present(start.model or None for start in starts) or "",
        started_at=min(times),
        last_event_at=max(times),
        event_count=len(events),
        parent_session_id=_last_present(start.parent.session_id for start in starts if start.parent),
        client=_last_present(forward.client or None for forward in forwards),
        opening=next(filter(None, map(_find_opening, events)), None),
        caller_key_id=_last_present(forward.key_id for forward in forwards),
        caller_user_id=_last_present(caller.user_id for caller in callers),
        caller_team_id=_last_present(caller.team_id for caller in callers),
        is_simulated=int(any(start.simulated for start in starts)),
    )


def _find_opening(event: Event) -> str | None:
    """The first words of a user's message; what clients add to it in tags, such as reminders, is not the user's."""
    payload = event.payload
    if not isinstance(payload, MessageAppended) or payload.message.role != "user":
        return None
    for block in payload.message.content:
        if isinstance(block, Text) and block.text.lstrip()[:1] != "<":
            words = " ".join(block.text[:_OPENING_SEARCHED_CHARACTERS].split())[:OPENING_CHARACTERS_MAX]
            if words:
                return words
    return None


def merge_tallies(tallies: Iterable[SessionRow]) -> tuple[SessionRow, ...]:
    """Merges the rows of each session into one."""
    rows_by_session: dict[str, list[SessionRow]] = {}
    for row in tallies:
        rows_by_session.setdefault(row.id, []).append(row)
    return tuple(rows[0] if len(rows) == 1 else _merge_rows(rows) for rows in rows_by_session.values())


def _merge_rows(rows: Sequence[SessionRow]) -> SessionRow:
    """The row of a session after more events; an absent value never replaces a present one."""
    return SessionRow(
        id=rows[0].id,
        name=_last_present(row.name for row in rows),
        model=_last_present(row.model or None for row in rows) or "",
        started_at=min([row.started_at for row in rows]),
        last_event_at=max([row.last_event_at for row in rows]),
        event_count=sum([row.event_count for row in rows]),
        parent_session_id=_last_present(row.parent_session_id or None for row in rows),
        client=_last_present(row.client for row in rows),
        opening=next((row.opening for row in rows if row.opening), None),
        caller_key_id=_last_present(row.caller_key_id for row in rows),
        caller_user_id=_last_present(row.caller_user_id for row in rows),
        caller_team_id=_last_present(row.caller_team_id for row in rows),
        is_simulated=max(row.is_simulated for row in rows),
    )


def _last_present(texts: Iterable[str | None]) -> str | None:
    present = [text for text in texts if text is not None]
    return present[-1] if present else None


def as_int(cell: object) -> int:
    """A cell that the schema or the query makes an integer, unless the file is damaged."""
    if not isinstance(cell, int):
        raise StoreError("a number in the database is damaged: restore it from a backup")
    return cell


def decode_session_row(columns: Sequence[object]) -> SessionRow:
    """Decodes a session row; raises StoreError if it is damaged."""
    try:
        return msgspec.convert(dict(zip(SessionRow.__struct_fields__, columns, strict=True)), SessionRow)
    except (msgspec.ValidationError, ValueError) as error:
        raise damaged_sessions_error() from error


def damaged_sessions_error() -> StoreError:
    return StoreError("the list of sessions is damaged: restore the database from a backup")


_EVENT_LIST = ", ".join(EVENT_COLUMNS)
_SESSION_LIST = ", ".join(SESSION_COLUMNS)
EVENTS_PAGE = f"SELECT seq, {_EVENT_LIST} FROM holdfast.events WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?"
EVENT_POSITION = "SELECT seq FROM holdfast.events WHERE id = ? AND session_id = ?"
SESSION_EXISTS = "SELECT 1 FROM holdfast.sessions WHERE id = ?"
SESSIONS_NEWEST_FIRST = f"SELECT {_SESSION_LIST} FROM holdfast.sessions ORDER BY last_event_at DESC, id DESC LIMIT ?"
# The partial index is used only if the type is a literal.
LEARNED_EVENTS = f"SELECT {_EVENT_LIST} FROM holdfast.events WHERE type = 'cache.learned' ORDER BY seq DESC LIMIT ?"
TOTALS = """
SELECT count(*), CAST(coalesce(sum(event_count), 0) AS bigint), min(started_at), max(last_event_at),
    (SELECT count(*) FROM holdfast.calls),
    (SELECT count(*) FROM holdfast.sessions WHERE entered_events <> event_count)
FROM holdfast.sessions"""
RECOUNT = """
UPDATE holdfast.sessions SET entered_events = -1, opening = NULL,
    head_events = CASE WHEN head_events = event_count
        THEN (SELECT count(*) FROM holdfast.events AS e WHERE e.session_id = holdfast.sessions.id) ELSE -1 END,
    event_count = (SELECT count(*) FROM holdfast.events AS e WHERE e.session_id = holdfast.sessions.id),
    started_at = (SELECT min(at) FROM holdfast.events AS e WHERE e.session_id = holdfast.sessions.id),
    last_event_at = (SELECT max(at) FROM holdfast.events AS e WHERE e.session_id = holdfast.sessions.id)
WHERE id = ?"""
INSERT_EVENT = f"INSERT INTO holdfast.events ({_EVENT_LIST}) VALUES ({repeat_params(len(EVENT_COLUMNS))})"

_LAST_EVENT = "SELECT e.id FROM holdfast.events AS e WHERE e.session_id = {}.id ORDER BY e.seq DESC LIMIT 1"


def chain_head(session: str) -> str:
    """The last event of a row of sessions; looked up where a program that knows no heads has appended."""
    current = f"{session}.head_events = {session}.event_count"
    return f"CASE WHEN {current} THEN {session}.last_event_id ELSE ({_LAST_EVENT.format(session)}) END"


# Adds a tally to a session's row. The event count is passed three times, then for `entered_events` and `head_events`;
# `previous_event_id` is None in a new row.
ADD_TO_SESSION = f"""
INSERT INTO holdfast.sessions AS kept
    ({_SESSION_LIST}, entered_events, head_events, last_event_id, previous_event_id)
VALUES ({repeat_params(len(SESSION_COLUMNS) + 4)})
ON CONFLICT (id) DO UPDATE SET
    name = coalesce(excluded.name, kept.name),
    model = coalesce(nullif(excluded.model, ''), kept.model),
    started_at = least(kept.started_at, excluded.started_at),
    last_event_at = greatest(kept.last_event_at, excluded.last_event_at),
    event_count = kept.event_count + excluded.event_count,
    parent_session_id = coalesce(excluded.parent_session_id, kept.parent_session_id),
    client = coalesce(excluded.client, kept.client),
    opening = coalesce(kept.opening, excluded.opening),
    caller_key_id = coalesce(excluded.caller_key_id, kept.caller_key_id),
    caller_user_id = coalesce(excluded.caller_user_id, kept.caller_user_id),
    caller_team_id = coalesce(excluded.caller_team_id, kept.caller_team_id),
    is_simulated = greatest(kept.is_simulated, excluded.is_simulated),
    entered_events = kept.entered_events + excluded.entered_events,
    previous_event_id = {chain_head("kept")},
    last_event_id = excluded.last_event_id,
    head_events = kept.event_count + excluded.event_count
"""


@cache
def select_positions(sessions: int) -> str:
    """Parameters: the ids of sessions. All that says whether a log, or what the ledger made of it, has changed."""
    columns = (
        "id, event_count, last_event_id, started_at, last_event_at, calls_total, sent_total, read_total, spent_total, "
        "lost_total"
    )
    # A sequence number is never used again: a session that was deleted and imported again has others.
    last = "SELECT e.seq FROM holdfast.events AS e WHERE e.session_id = s.id ORDER BY e.seq DESC LIMIT 1"
    return f"SELECT {columns}, ({last}) FROM holdfast.sessions AS s WHERE s.id IN ({repeat_params(sessions)})"


@cache
def build_events_page(types: int) -> str:
    """Parameters: the session, the position before the page, the types if only some are read, and the limit."""
    if not types:
        return EVENTS_PAGE
    return EVENTS_PAGE.replace(" ORDER BY", f" AND type IN ({repeat_params(types)}) ORDER BY")


@cache
def build_sessions_events(sessions: int, types: int) -> str:
    """Parameters: the ids of sessions, the position after which their events are read, and the types."""
    chosen = f"session_id IN ({repeat_params(sessions)}) AND seq > ? AND type IN ({repeat_params(types)})"
    return f"SELECT seq, {_EVENT_LIST} FROM holdfast.events WHERE {chosen}"


@cache
def select_event_positions(events: int) -> str:
    """Parameters: the ids of events."""
    return f"SELECT id, session_id, seq FROM holdfast.events WHERE id IN ({repeat_params(events)})"


def build_events_query(ids: int) -> str:
    """Parameters: the ids of events, whose sessions are selected."""
    return f"SELECT DISTINCT session_id FROM holdfast.events WHERE id IN ({repeat_params(ids)})"


def build_prunable_query(retained_types: int) -> str:
    """Parameters: the types that are retained, the time before which a session is old.

    Also the sessions that have no event any more because an interrupted `prune` has removed their partitions.
    """
    return f"""
SELECT s.id, count(e.id) FROM holdfast.sessions AS s LEFT JOIN holdfast.events AS e
    ON e.session_id = s.id AND e.type NOT IN ({repeat_params(retained_types)})
WHERE s.last_event_at < ? GROUP BY s.id HAVING count(e.id) > 0 OR s.event_count = 0 ORDER BY s.id"""
