"""How what agents are told stands in an export, a record a line, and how an owner comes out of one: whole or not."""

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

Judge = Callable[[Sequence[Record]], Iterator[Record | None]]
"""Each record as it is believed, None for what is not; raises InstructionError at the one that is wrong."""


class ImportedOwner(msgspec.Struct, frozen=True):
    """What became of an owner: records added, units quarantined, and approvals left out for their signatures."""

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


def record_lines(kept: InstructionRecords) -> Iterator[bytes]:
    """Owner by owner; what is in memory at once are the texts of one."""
    for owner in kept.owners():
        for record in kept.records_of(owner):
            yield _encode(_line_of(carried(record))) + b"\n"


def _line_of(record: Record) -> _Line:
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
    """Raises what msgspec raises for a line that holds none."""
    found: _Line = _decode(line)
    return found.row


class Intake:
    """Takes in owners that are not here yet; those that are, are left alone."""

    def __init__(self, kept: InstructionRecords, judge: Judge) -> None:
        self._kept = kept
        self._judge = judge
        self._seen: set[str] = set()

    def take(self, records: Sequence[Record], name: str, first: int) -> ImportedOwner:
        """`first` is the line of the first record; raises UserError with the number of the line that is wrong."""
        owner = owner_of_record(records[0])
        if owner in self._seen:
            raise UserError(
                f"{name}, line {first}: the records of {owner[:80]!a} do not stand together: export it anew"
            )
        self._seen.add(owner)
        if self._kept.is_here(owner):
            return ImportedOwner(owner, was_here=True)
        believed: list[Record | None] = []
        try:
            for one in self._judge(records):
                believed.append(one)  # How many came tells which one is wrong.
        except InstructionError as error:
            line = first + len(believed)
            raise UserError(f"{name}, line {line}: {error}; nothing of {owner[:80]!a} was imported") from error
        return self._added(owner, records, believed, f"{name}, line {first}")

    def _added(
        self, owner: str, records: Sequence[Record], believed: Sequence[Record | None], place: str
    ) -> ImportedOwner:
        kept = [one for one in believed if one is not None]
        if not self._kept.add_owner(kept):
            raise UserError(
                f"{place}: an id, a name or an address of {owner[:80]!a} is another's here, or stands there twice; "
                "nothing of it was imported"
            )
        return ImportedOwner(
            owner,
            added=len(kept),
            quarantined=_quarantined(kept) - _quarantined(records),
            left_out=len(records) - len(kept),
        )


def _quarantined(records: Sequence[Record]) -> int:
    return sum(isinstance(one, UnitVersion) and one.status == "quarantined" for one in records)
