"""All instruction records of an owner, for transfer to another store: read in pages, written in one transaction."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from holdfast.instructions.addresses import is_of_many
from holdfast.instructions.owned import Record, owner_of_record
from holdfast.instructions.values import (
    Agent,
    Approval,
    AuditRecord,
    CoverageRun,
    Manifest,
    Probe,
    UnitVersion,
)
from holdfast.stores.instructions_steps import InstructionSteps
from holdfast.stores.instructions_tables import InstructionTables, Table
from holdfast.stores.queries import Cell
from holdfast.stores.records import Changes, Fetch
from holdfast.stores.steps import Step

PAGE_RECORDS = 500

Row = TypeVar("Row", bound=msgspec.Struct)


class DatabaseOwners(InstructionSteps):
    def __init__(self, tables: InstructionTables, fetch: Fetch, changes: Changes) -> None:
        super().__init__(tables)
        self._fetch = fetch
        self._changes = changes

    def owners(self) -> tuple[str, ...]:
        # Shared owners first: an agent's manifest may list their units, which must exist when it is imported.
        shared = [
            owner
            for owner in self._ids(f"SELECT DISTINCT agent_id FROM {self._tables.units.name}")
            if is_of_many(owner)
        ]
        return (*sorted(shared), *self._ids(f"SELECT id FROM {self._tables.agents.name} ORDER BY id"))

    def records_of(self, owner: str) -> Iterator[Record]:
        tables, of_owner = self._tables, "WHERE agent_id = ? ORDER BY"
        yield from self._rows(tables.agents, "WHERE id = ?", owner)
        # In one query: with pages, a version and its successor could both be read as active.
        yield from self._rows(tables.units, f"{of_owner} created_at, uri", owner)
        yield from self._rows(tables.manifests, f"{of_owner} created_at, id", owner)
        yield from self._rows(tables.approvals, f"{of_owner} id", owner)
        yield from self._rows(tables.coverage, f"{of_owner} finished_at, id", owner)
        yield from self._rows(tables.probes, f"{of_owner} probe_id", owner)
        yield from self._audit_pages(owner)

    def is_here(self, owner: str) -> bool:
        table, column = (self._tables.units, "agent_id") if is_of_many(owner) else (self._tables.agents, "id")
        return bool(self._ids(f"SELECT {column} FROM {table.name} WHERE {column} = ? LIMIT 1", owner))

    def add_owner(self, records: Sequence[Record]) -> bool:
        owner = owner_of_record(records[0])
        steps = [self._take_lock()]
        if is_of_many(owner):
            steps.append(self._require_none(f"{self._tables.units.name} WHERE agent_id = ?", (owner,)))
        for record in records:
            if isinstance(record, Agent):
                # Ids and shortnames share one namespace.
                names = (record.id, record.shortname or record.id)
                name_taken = "WHERE id IN (?, ?) OR shortname IN (?, ?)"
                steps.append(self._require_none(f"{self._tables.agents.name} {name_taken}", (*names, *names)))
            steps.append(self._insert_step(record))
        if is_of_many(owner):
            unit_names = {record.name for record in records if isinstance(record, UnitVersion)}
            steps += [*(self._mark_stale(owner, name) for name in sorted(unit_names)), self._bump(owner)]
        return self._changes.change_all(steps)

    def other_deployment(self, deployment: str) -> str | None:
        agents = f"SELECT deployment FROM {self._tables.agents.name} WHERE deployment <> ? LIMIT 1"
        prefix = f"instruction:{deployment}/"
        units = f"SELECT uri FROM {self._tables.units.name} WHERE substr(uri, 1, {len(prefix)}) <> ? LIMIT 1"
        deployments = (
            *self._ids(agents, deployment),
            *(uri.removeprefix("instruction:").partition("/")[0] for uri in self._ids(units, prefix)),
        )
        return next(iter(deployments), None)

    def _audit_pages(self, owner: str) -> Iterator[AuditRecord]:
        at, last_id = 0, ""
        after_last = "WHERE agent_id = ? AND created_at >= ? AND (created_at > ? OR id > ?)"
        query = f"{after_last} ORDER BY created_at, id LIMIT {PAGE_RECORDS}"
        while page := self._rows(self._tables.audit, query, owner, at, at, last_id):
            yield from page
            at, last_id = page[-1].created_at, page[-1].id

    def _insert_step(self, record: Record) -> Step:
        tables = self._tables
        match record:
            case Agent():
                return _build_insert(tables.agents, record)
            case UnitVersion():
                return _build_insert(tables.units, record)
            case Manifest():
                return _build_insert(tables.manifests, record)
            case Approval():
                return _build_insert(tables.approvals, record)
            case AuditRecord():
                return _build_insert(tables.audit, record)
            case CoverageRun():
                return _build_insert(tables.coverage, record)
            case Probe():
                return _build_insert(tables.probes, record)

    def _rows(self, table: Table[Row], where: str, *cells: Cell) -> tuple[Row, ...]:
        rows = self._fetch(f"{table.select} {where}".replace("?", self._tables.mark), cells)
        return tuple(map(table.row, rows))

    def _ids(self, query: str, *cells: Cell) -> tuple[str, ...]:
        return tuple(str(name) for (name,) in self._fetch(query.replace("?", self._tables.mark), cells))


def _build_insert(table: Table[Row], row: Row) -> Step:
    return Step(table.insert, table.cells(row))
