"""Transfer of instruction records between stores, one JSON line each: an owner is imported completely or not at all."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.errors import InstructionError, UserError
from holdfast.instructions.models import Agent, AuditRecord, UnitVersion
from holdfast.instructions.store import InstructionRecords, OwnedRecord, export_record, record_owner
from holdfast.instructions.uri import is_shared_owner
from holdfast.stores.instructions import tables
from holdfast.stores.sql.connection import ChangeRunner
from holdfast.stores.sql.events import Cell, FetchRows

PAGE_RECORDS = 500  # Audit records are many: bounds what an export holds in memory.
Row = TypeVar("Row", bound=msgspec.Struct)

# Yields each record as accepted, None for a rejected one; raises InstructionError at the first invalid one.
RecordJudge = Callable[[Sequence[OwnedRecord]], Iterator[OwnedRecord | None]]

# The table of each kind of record, by its tag in an export.
_TABLES: dict[str, tables.InstructionTable[Any]] = {
    "agent": tables.AGENTS,
    "unit": tables.UNITS,
    "manifest": tables.MANIFESTS,
    "approval": tables.APPROVALS,
    "coverage": tables.COVERAGE,
    "probe": tables.PROBES,
    "audit": tables.AUDIT,
}
_TAGS: dict[type[OwnedRecord], str] = {table.row: tag for tag, table in _TABLES.items()}
_encode = msgspec.json.Encoder().encode


class OwnerTransfer:
    def __init__(self, fetch: FetchRows, changes: ChangeRunner) -> None:
        self._fetch = fetch
        self._changes = changes

    def owners(self) -> tuple[str, ...]:
        # Shared owners first: an agent's manifest may list their units, which must exist when it is imported.
        unit_owners = self._ids(f"SELECT DISTINCT agent_id FROM {tables.UNITS.name}")
        agents = self._ids(f"SELECT id FROM {tables.AGENTS.name} ORDER BY id")
        return (*sorted(filter(is_shared_owner, unit_owners)), *agents)

    def list_owner_records(self, owner: str) -> Iterator[OwnedRecord]:
        of_owner = "WHERE agent_id = ? ORDER BY"
        yield from self._rows(tables.AGENTS, "WHERE id = ?", owner)
        # In one query: with pages, a version and its successor could both be read as active.
        yield from self._rows(tables.UNITS, f"{of_owner} created_at, uri", owner)
        yield from self._rows(tables.MANIFESTS, f"{of_owner} created_at, id", owner)
        yield from self._rows(tables.APPROVALS, f"{of_owner} id", owner)
        yield from self._rows(tables.COVERAGE, f"{of_owner} finished_at, id", owner)
        yield from self._rows(tables.PROBES, f"{of_owner} probe_id", owner)
        yield from self._audit_pages(owner)

    def has_owner(self, owner: str) -> bool:
        table, column = (tables.UNITS, "agent_id") if is_shared_owner(owner) else (tables.AGENTS, "id")
        return bool(self._ids(f"SELECT {column} FROM {table.name} WHERE {column} = ? LIMIT 1", owner))

    def add_owner(self, records: Sequence[OwnedRecord]) -> bool:
        owner = record_owner(records[0])
        steps = [tables.take_lock()]
        if is_shared_owner(owner):
            steps.append(tables.require_none(f"{tables.UNITS.name} WHERE agent_id = ?", (owner,)))
        for record in records:
            if isinstance(record, Agent):
                # Ids and shortnames share one namespace.
                names = (record.id, record.shortname or record.id)
                name_taken = "WHERE id IN (?, ?) OR shortname IN (?, ?)"
                steps.append(tables.require_none(f"{tables.AGENTS.name} {name_taken}", (*names, *names)))
            steps.append(_TABLES[_TAGS[type(record)]].insert_step(record))
        if is_shared_owner(owner):
            unit_names = {record.name for record in records if isinstance(record, UnitVersion)}
            steps += [*(tables.mark_stale(owner, name) for name in sorted(unit_names)), tables.bump_revision(owner)]
        return self._changes.run_steps(steps)

    def other_deployment(self, deployment: str) -> str | None:
        agents = f"SELECT deployment FROM {tables.AGENTS.name} WHERE deployment <> ? LIMIT 1"
        prefix = f"instruction:{deployment}/"
        units = f"SELECT uri FROM {tables.UNITS.name} WHERE substr(uri, 1, {len(prefix)}) <> ? LIMIT 1"
        deployments = (
            *self._ids(agents, deployment),
            *(uri.removeprefix("instruction:").partition("/")[0] for uri in self._ids(units, prefix)),
        )
        return next(iter(deployments), None)

    def _audit_pages(self, owner: str) -> Iterator[AuditRecord]:
        at, last_id = 0, ""
        after_last = "WHERE agent_id = ? AND created_at >= ? AND (created_at > ? OR id > ?)"
        query = f"{after_last} ORDER BY created_at, id LIMIT {PAGE_RECORDS}"
        while page := self._rows(tables.AUDIT, query, owner, at, at, last_id):
            yield from page
            at, last_id = page[-1].created_at, page[-1].id

    def _first(self, table: tables.InstructionTable[Row], where: str, *cells: Cell) -> Row | None:
        return next(iter(self._rows(table, where, *cells)), None)

    def _rows(self, table: tables.InstructionTable[Row], where: str, *cells: Cell) -> tuple[Row, ...]:
        rows = self._fetch(f"{table.select} {where}", cells)
        return tuple(map(table.decode_row, rows))

    def _ids(self, query: str, *cells: Cell) -> tuple[str, ...]:
        return tuple(str(name) for (name,) in self._fetch(query, cells))


class ImportedOwner(msgspec.Struct, frozen=True):
    """The result of importing an owner: records added, units quarantined, approvals dropped for their signatures."""

    owner: str
    added: int = 0
    already_existed: bool = False
    quarantined: int = 0
    dropped_approvals: int = 0


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of an export; `instruction_records` is the tag of the record in `row`."""

    instruction_records: str
    row: msgspec.Raw


_decode_line = msgspec.json.Decoder(_Line).decode


def export_records(store: InstructionRecords) -> Iterator[bytes]:
    """Owner by owner; only one owner's texts are in memory at a time."""
    for owner in store.owners():
        for record in map(export_record, store.list_owner_records(owner)):
            yield _encode(_Line(_TAGS[type(record)], msgspec.Raw(_encode(record)))) + b"\n"


def decode_record(line: bytes) -> OwnedRecord:
    """Raises a msgspec error for a line that is not a record."""
    decoded = _decode_line(line)
    table = _TABLES.get(decoded.instruction_records)
    if table is None:
        raise msgspec.ValidationError(f"unknown kind of record {decoded.instruction_records!a}")
    record: OwnedRecord = msgspec.json.decode(decoded.row, type=table.row)
    return record


class OwnerImporter:
    """Imports owners that the store does not have yet; existing ones are left unchanged."""

    def __init__(self, store: InstructionRecords, judge: RecordJudge) -> None:
        self._store = store
        self._judge = judge
        self._seen_owners: set[str] = set()

    def import_owner(self, records: Sequence[OwnedRecord], name: str, first: int) -> ImportedOwner:
        """`first` is the line number of the first record; raises UserError with the number of the invalid line."""
        owner = record_owner(records[0])
        if owner in self._seen_owners:
            raise UserError(f"{name}, line {first}: the records of {owner[:80]!a} are not contiguous: export it again")
        self._seen_owners.add(owner)
        if self._store.has_owner(owner):
            return ImportedOwner(owner, already_existed=True)
        accepted: list[OwnedRecord | None] = []
        try:
            for record in self._judge(records):
                accepted.append(record)  # Their number gives the line of the invalid record.
        except InstructionError as error:
            line = first + len(accepted)
            raise UserError(f"{name}, line {line}: {error}; nothing of {owner[:80]!a} was imported") from error
        return self._add_owner(owner, records, accepted, f"{name}, line {first}")

    def _add_owner(
        self, owner: str, records: Sequence[OwnedRecord], accepted: Sequence[OwnedRecord | None], location: str
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
            dropped_approvals=len(records) - len(added),
        )


def _count_quarantined(records: Sequence[OwnedRecord]) -> int:
    return sum(isinstance(record, UnitVersion) and record.status == "quarantined" for record in records)
