"""How events leave a store and come into another: lines of JSON, session by session, with a first and a last line.

Without content an export is for other programs to read: what was said is left out, and it cannot be imported.
What agents are told is in it where its first line names the deployment, which alone may take it in.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import IO

import msgspec

from holdfast.errors import StoreError, UserError
from holdfast.events.envelope import Event, Sensitivity, sensitivity_of, type_of
from holdfast.events.log import Log
from holdfast.events.payloads import SessionStarted
from holdfast.instructions.owned import Record, owner_of_record
from holdfast.instructions.records import HasInstructions
from holdfast.stores.instructions_lines import ImportedOwner, Intake, read_record, record_lines
from holdfast.stores.rows import EVENT_BYTES_MAX

FORMAT = 1
LINE_BYTES_MAX = EVENT_BYTES_MAX + 65_536
TIME_SECONDS_MAX = 253_402_214_400.0
"""The last day of the year 9999: no later one can be told."""


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """`deployment` is whose instructions are in it, if any are."""

    holdfast_export: int
    content: bool
    exported_at: float
    deployment: str | None = None


class End(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last line. Without it a file was cut."""

    end_of_export: bool
    sessions: int
    events: int
    instruction_records: int = 0


class Imported(msgspec.Struct, frozen=True):
    """What became of a session: events that were added, and those that were there."""

    session_id: str
    added: int
    known: int


_encode = msgspec.json.Encoder().encode
_header = msgspec.json.Decoder(Header).decode
_event = msgspec.json.Decoder(Event).decode
_end = msgspec.json.Decoder(End).decode

_UNREADABLE = (msgspec.ValidationError, msgspec.DecodeError, UnicodeError, RecursionError, ArithmeticError)


def exported(
    log: Log, session_ids: Iterable[str], *, content: bool, now: float, deployment: str | None = None
) -> Iterator[bytes]:
    """The lines of an export; no more than a few events are in memory at once.

    What agents are told is in it if their deployment is given.
    """
    yield _encode(Header(FORMAT, content, now, deployment)) + b"\n"
    sessions = events = records = 0
    if deployment is not None and isinstance(log, HasInstructions):
        for line in record_lines(log.instructions):
            records += 1
            yield line
    for session_id in session_ids:
        sessions += 1
        for event in log.read(session_id):
            events += 1
            yield _encode(event if content else without_content(event)) + b"\n"
    yield _encode(End(True, sessions, events, records)) + b"\n"


def without_content(event: Event) -> Mapping[str, object]:
    """Who did what, when, and at what cost; not what was said, and not where on whose disk."""
    payload = event.payload
    told: object = payload
    if isinstance(payload, SessionStarted):
        told = msgspec.structs.replace(payload, name=None, workspace_path=None, user_id=None, team_id=None)
    elif sensitivity_of(payload) is Sensitivity.PRIVATE:
        told = {"type": type_of(payload), "left_out_bytes": len(_encode(payload))}
    return {name: getattr(event, name) for name in Event.__struct_fields__} | {"payload": told}


def check_header(file: IO[bytes], name: str) -> Header:
    """The first line; raises UserError for a file that cannot be imported."""
    try:
        header = _header(file.readline(LINE_BYTES_MAX))
    except _UNREADABLE as error:
        raise UserError(f"{name} is not an export of Holdfast: `holdfast db export` makes one") from error
    if header.holdfast_export != FORMAT:
        raise UserError(f"{name} was exported by a newer Holdfast: upgrade holdfast to import it")
    if not header.content:
        raise UserError(f"{name} was exported without what was said, which a session needs: export it with --content")
    return header


def imported(file: IO[bytes], log: Log, name: str, intake: Intake | None = None) -> Iterator[Imported | ImportedOwner]:
    """Append what a file holds behind its first line, a whole session or owner at a time or nothing of it.

    What is there already is left alone. Raises UserError, with the number of the line, for a file that is damaged or
    does not fit what is there. Instructions are taken by the intake, and refused where there is none.
    """
    lines = _numbered(file, name)
    events: list[Event] = []
    records: list[Record] = []
    first = 0
    for number, line in lines:
        found = _read(line, number, name)
        if (events or records) and _group(found) != _group((events or records)[0]):
            yield _merged(log, events, f"{name}, line {first}") if events else _taken(intake, records, name, first)
            events, records = [], []
        first = first if events or records else number
        if isinstance(found, End):
            if found.events + found.instruction_records != number - 2 or next(lines, None) is not None:
                raise UserError(_miscounted(found, number, name))
            return
        if isinstance(found, Event):
            events.append(found)
        else:
            records.append(found)
    raise UserError(f"{name} ends too early, and what stands last in it was not imported: export it anew")


def _group(found: Event | Record | End) -> tuple[str, str]:
    """What comes whole or not at all."""
    if isinstance(found, End):
        return "end", ""
    return ("session", found.session_id) if isinstance(found, Event) else ("owner", owner_of_record(found))


def _taken(intake: Intake | None, records: list[Record], name: str, first: int) -> ImportedOwner:
    if intake is None:
        raise UserError(
            f"{name}, line {first}: there are instructions, and the file names no deployment: export it anew"
        )
    return intake.take(records, name, first)


def _miscounted(end: End, number: int, name: str) -> str:
    if end.events + end.instruction_records == number - 2:
        return f"{name}, line {number + 1}: something stands behind the end: export anew"
    said = f"{end.events} events" + (f" and {end.instruction_records} records" if end.instruction_records else "")
    here = f"{number - 2} of both" if end.instruction_records else f"{number - 2} events"
    return f"{name}, line {number}: the file has {here} and says {said}: export anew"


def _numbered(file: IO[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    number = 1
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise UserError(f"{name}, line {number} has more than {LINE_BYTES_MAX} bytes: no event has")
        yield number, line


def _read(line: bytes, number: int, name: str) -> Event | Record | End:
    try:
        event = _event(line)
    except _UNREADABLE as error:
        for read in (_end, read_record):
            with suppress(*_UNREADABLE):
                return read(line)
        raise UserError(
            f"{name}, line {number} is damaged, or was written by a newer Holdfast; nothing of its session "
            "or agent was imported: export it anew, or upgrade holdfast"
        ) from error
    if not 0 <= event.at < TIME_SECONDS_MAX:
        raise UserError(f"{name}, line {number}: an event is of no time that there is: export it anew")
    return event


def _merged(log: Log, events: list[Event], place: str) -> Imported:
    """Append to a session what it does not have, if that is how it goes on."""
    session_id = events[0].session_id
    known = list(log.read(session_id))
    if known[: len(events)] != events[: len(known)]:
        raise UserError(f"{place}: session {session_id!a} has other events here: delete it first, or keep it as it is")
    new = events[len(known) :]
    try:
        if new:
            log.append(new).result()
    except StoreError as error:
        raise UserError(f"{place}: session {session_id!a} cannot be imported: {error}") from error
    return Imported(session_id, len(new), len(events) - len(new))
