"""Export and import of events as JSON lines, session by session, between a header and an end line.

An export without content is for other programs: conversation content is left out, and it cannot be imported.
Instructions are included if the header names a deployment; only that deployment can import them.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import IO

import msgspec

from holdfast.errors import StoreError, UserError
from holdfast.events.log import Event, EventLog, Sensitivity, event_type_of, sensitivity_of
from holdfast.events.payloads.session import SessionStarted
from holdfast.instructions.store import OwnedRecord, SupportsInstructions, record_owner
from holdfast.stores.instructions.transfer import ImportedOwner, OwnerImporter, decode_record, export_records
from holdfast.stores.sql.events import EVENT_BYTES_MAX

EXPORT_FORMAT = 1  # Increase it when an older version could not import the lines.
LINE_BYTES_MAX = EVENT_BYTES_MAX + 65_536  # A payload of the maximum size, and room for the envelope around it.
EVENT_TIME_MAX = 253_402_214_400.0  # 9999-12-31T00:00:00Z: `datetime` cannot represent the day after.
_encode = msgspec.json.Encoder().encode
_decode_event = msgspec.json.Decoder(Event).decode
_UNREADABLE = (msgspec.ValidationError, msgspec.DecodeError, UnicodeError, RecursionError, ArithmeticError)


class ExportHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """`deployment` is the owner of the instructions in the export, if there are any."""

    holdfast_export: int
    content: bool
    exported_at: float
    deployment: str | None = None


class ExportEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last line. A file without it was truncated."""

    end_of_export: bool
    sessions: int
    events: int
    instruction_records: int = 0


class ImportedSession(msgspec.Struct, frozen=True):
    """The result of importing a session: events added, and events that were already there."""

    session_id: str
    added: int
    existing: int


_decode_header = msgspec.json.Decoder(ExportHeader).decode
_decode_end = msgspec.json.Decoder(ExportEnd).decode


def export_lines(
    log: EventLog, session_ids: Iterable[str], *, content: bool, now: float, deployment: str | None = None
) -> Iterator[bytes]:
    """The lines of an export; only a few events are in memory at a time.

    Instructions are included if their deployment is given.
    """
    yield _encode(ExportHeader(EXPORT_FORMAT, content, now, deployment)) + b"\n"
    sessions = events = records = 0
    if deployment is not None and isinstance(log, SupportsInstructions):
        for line in export_records(log.instructions):
            records += 1
            yield line
    for session_id in session_ids:
        sessions += 1
        for event in log.read(session_id):
            events += 1
            yield _encode(event if content else strip_content(event)) + b"\n"
    yield _encode(ExportEnd(True, sessions, events, records)) + b"\n"


def strip_content(event: Event) -> Mapping[str, object]:
    """Who did what, when and at what cost, without conversation content, names and paths."""
    payload = event.payload
    exported_payload: object = payload
    if isinstance(payload, SessionStarted):
        exported_payload = msgspec.structs.replace(payload, name=None, workspace_path=None, user_id=None, team_id=None)
    elif sensitivity_of(payload) is Sensitivity.PRIVATE:
        exported_payload = {"type": event_type_of(payload), "omitted_bytes": len(_encode(payload))}
    return {name: getattr(event, name) for name in Event.__struct_fields__} | {"payload": exported_payload}


def read_export_header(file: IO[bytes], name: str) -> ExportHeader:
    """Reads the first line; raises UserError for a file that cannot be imported."""
    try:
        header = _decode_header(file.readline(LINE_BYTES_MAX))
    except _UNREADABLE as error:
        raise UserError(f"{name} is not a Holdfast export: `holdfast db export` creates one") from error
    if header.holdfast_export != EXPORT_FORMAT:
        raise UserError(f"{name} was exported by a newer Holdfast: upgrade holdfast to import it")
    if not header.content:
        raise UserError(f"{name} was exported without content, which a session needs: export it with --content")
    return header


def import_lines(
    file: IO[bytes], log: EventLog, name: str, intake: OwnerImporter | None = None
) -> Iterator[ImportedSession | ImportedOwner]:
    """Appends the sessions and owners of a file, each completely or not at all.

    Existing ones are left unchanged. Raises UserError with the line number for a file that is damaged or contradicts
    the store. Instructions are imported through `intake`, and refused if there is none.
    """
    lines = _read_lines(file, name)
    events: list[Event] = []
    records: list[OwnedRecord] = []
    first_line = 0
    for line_number, line in lines:
        item = _decode_line(line, line_number, name)
        if (events or records) and _group_key(item) != _group_key((events or records)[0]):
            yield (
                _import_session(log, events, f"{name}, line {first_line}")
                if events
                else _import_owner(intake, records, name, first_line)
            )
            events, records = [], []
        first_line = first_line if events or records else line_number
        if isinstance(item, ExportEnd):
            if item.events + item.instruction_records != line_number - 2 or next(lines, None) is not None:
                raise UserError(_describe_miscount(item, line_number, name))
            return
        if isinstance(item, Event):
            events.append(item)
        else:
            records.append(item)
    raise UserError(f"{name} ends too early, and its last session was not imported: export it again")


def _group_key(item: Event | OwnedRecord | ExportEnd) -> tuple[str, str]:
    """Lines with the same key are imported together or not at all."""
    if isinstance(item, ExportEnd):
        return "end", ""
    return ("session", item.session_id) if isinstance(item, Event) else ("owner", record_owner(item))


def _import_owner(
    intake: OwnerImporter | None, records: list[OwnedRecord], name: str, first_line: int
) -> ImportedOwner:
    if intake is None:
        raise UserError(
            f"{name}, line {first_line}: there are instructions, but the file names no deployment: export it again"
        )
    return intake.import_owner(records, name, first_line)


def _describe_miscount(end: ExportEnd, line_number: int, name: str) -> str:
    if end.events + end.instruction_records == line_number - 2:
        return f"{name}, line {line_number + 1}: there is content after the end line: export it again"
    declared = f"{end.events} events" + (f" and {end.instruction_records} records" if end.instruction_records else "")
    counted = f"{line_number - 2} of both" if end.instruction_records else f"{line_number - 2} events"
    return f"{name}, line {line_number}: the file has {counted} but declares {declared}: export it again"


def _read_lines(file: IO[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    line_number = 1
    while line := file.readline(LINE_BYTES_MAX + 1):
        line_number += 1
        if len(line) > LINE_BYTES_MAX:
            raise UserError(f"{name}, line {line_number} has more than {LINE_BYTES_MAX} bytes, more than any event")
        yield line_number, line


def _decode_line(line: bytes, line_number: int, name: str) -> Event | OwnedRecord | ExportEnd:
    try:
        event = _decode_event(line)
    except _UNREADABLE as error:
        for decode in (_decode_end, decode_record):
            with suppress(*_UNREADABLE):
                return decode(line)
        raise UserError(
            f"{name}, line {line_number} is damaged, or was written by a newer Holdfast; nothing of its session "
            "or agent was imported: export it again, or upgrade holdfast"
        ) from error
    if not 0 <= event.at < EVENT_TIME_MAX:
        raise UserError(f"{name}, line {line_number}: an event has an impossible time: export it again")
    return event


def _import_session(log: EventLog, events: list[Event], location: str) -> ImportedSession:
    """Appends the missing events to a session if they continue it."""
    session_id = events[0].session_id
    existing = list(log.read(session_id))
    if existing[: len(events)] != events[: len(existing)]:
        raise UserError(
            f"{location}: session {session_id!a} has different events here: delete it first, or keep it as it is"
        )
    missing = events[len(existing) :]
    try:
        if missing:
            log.append(missing).result()
    except StoreError as error:
        raise UserError(f"{location}: session {session_id!a} cannot be imported: {error}") from error
    return ImportedSession(session_id, len(missing), len(events) - len(missing))
