"""Export and import of instruction records, one JSON line each; an owner is imported completely or not at all."""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from holdfast.errors import UserError
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.owned import Record, carried, owner_of_record
from holdfast.instructions.records import InstructionRecords
from holdfast.instructions.values import (
    Agent,
    Approval,
    AuditRecord,
    CoverageRun,
    Manifest,
    Probe,
    UnitVersion,
)

KIND = "instruction_records"

# Yields each record as accepted, None for a rejected one; raises InstructionError at the first invalid one.
Judge = Callable[[Sequence[Record]], Iterator[Record | None]]


class ImportedOwner(msgspec.Struct, frozen=True):
    """The result of importing an owner: records added, units quarantined, approvals dropped for their signatures."""

    owner: str
    added: int = 0
    was_here: bool = False
    quarantined: int = 0
    left_out: int = 0


class _Agent(msgspec.Struct, frozen=True, tag_field=KIND, tag="agent", forbid_unknown_fields=True):
    row: Agent


class _Unit(msgspec.Struct, frozen=True, tag_field=KIND, tag="unit", forbid_unknown_fields=True):
    row: UnitVersion


class _Manifest(msgspec.Struct, frozen=True, tag_field=KIND, tag="manifest", forbid_unknown_fields=True):
    row: Manifest


class _Approval(msgspec.Struct, frozen=True, tag_field=KIND, tag="approval", forbid_unknown_fields=True):
    row: Approval


class _Coverage(msgspec.Struct, frozen=True, tag_field=KIND, tag="coverage", forbid_unknown_fields=True):
    row: CoverageRun


class _Probe(msgspec.Struct, frozen=True, tag_field=KIND, tag="probe", forbid_unknown_fields=True):
    row: Probe


class _Audit(msgspec.Struct, frozen=True, tag_field=KIND, tag="audit", forbid_unknown_fields=True):
    row: AuditRecord


_Line = _Agent | _Unit | _Manifest | _Approval | _Coverage | _Probe | _Audit

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Line).decode


def record_lines(store: InstructionRecords) -> Iterator[bytes]:
    """Owner by owner; only one owner's texts are in memory at a time."""
    for owner in store.owners():
        for record in store.records_of(owner):
            yield _encode(_wrap_record(carried(record))) + b"\n"


def _wrap_record(record: Record) -> _Line:
    match record:
        case Agent():
            return _Agent(record)
        case UnitVersion():
            return _Unit(record)
        case Manifest():
            return _Manifest(record)
        case Approval():
            return _Approval(record)
        case CoverageRun():
            return _Coverage(record)
        case Probe():
            return _Probe(record)
        case AuditRecord():
            return _Audit(record)


def read_record(line: bytes) -> Record:
    """Raises a msgspec error for a line that is not a record."""
    decoded: _Line = _decode(line)
    return decoded.row


class Intake:
    """Imports owners that the store does not have yet; existing ones are left unchanged."""

    def __init__(self, store: InstructionRecords, judge: Judge) -> None:
        self._store = store
        self._judge = judge
        self._seen_owners: set[str] = set()

    def take(self, records: Sequence[Record], name: str, first: int) -> ImportedOwner:
        """`first` is the line number of the first record; raises UserError with the number of the invalid line."""
        owner = owner_of_record(records[0])
        if owner in self._seen_owners:
            raise UserError(f"{name}, line {first}: the records of {owner[:80]!a} are not contiguous: export it again")
        self._seen_owners.add(owner)
        if self._store.is_here(owner):
            return ImportedOwner(owner, was_here=True)
        accepted: list[Record | None] = []
        try:
            for record in self._judge(records):
                accepted.append(record)  # Their number gives the line of the invalid record.
        except InstructionError as error:
            line = first + len(accepted)
            raise UserError(f"{name}, line {line}: {error}; nothing of {owner[:80]!a} was imported") from error
        return self._add_owner(owner, records, accepted, f"{name}, line {first}")

    def _add_owner(
        self, owner: str, records: Sequence[Record], accepted: Sequence[Record | None], location: str
    ) -> ImportedOwner:
        added = [record for record in accepted if record is not None]
        if not self._store.add_owner(added):
            raise UserError(
                f"{location}: an id, a name or an address of {owner[:80]!a} belongs to another owner here, "
                "or occurs twice; nothing of it was imported"
            )
        return ImportedOwner(
            owner,
            added=len(added),
            quarantined=_count_quarantined(added) - _count_quarantined(records),
            left_out=len(records) - len(added),
        )


def _count_quarantined(records: Sequence[Record]) -> int:
    return sum(isinstance(record, UnitVersion) and record.status == "quarantined" for record in records)
