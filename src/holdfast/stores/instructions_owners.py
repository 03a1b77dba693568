"""All that a database keeps of an owner, to be carried to another: read by pages, written whole or not at all."""

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
        # An agent comes behind what it may list: what comes into a store then changes nothing that came before.
        many = [one for one in self._ids(f"SELECT DISTINCT agent_id FROM {self._tables.units.name}") if is_of_many(one)]
        return (*sorted(many), *self._ids(f"SELECT id FROM {self._tables.agents.name} ORDER BY id"))

    def records_of(self, owner: str) -> Iterator[Record]:
        tables, own = self._tables, "WHERE agent_id = ? ORDER BY"
        yield from self._rows(tables.agents, "WHERE id = ?", owner)
        # At once: page by page a version could be read as holding whose successor is read as holding too.
        yield from self._rows(tables.units, f"{own} created_at, uri", owner)
        yield from self._rows(tables.manifests, f"{own} created_at, id", owner)
        yield from self._rows(tables.approvals, f"{own} id", owner)
        yield from self._rows(tables.coverage, f"{own} finished_at, id", owner)
        yield from self._rows(tables.probes, f"{own} probe_id", owner)
        yield from self._audits(owner)

    def is_here(self, owner: str) -> bool:
        table, column = (self._tables.units, "agent_id") if is_of_many(owner) else (self._tables.agents, "id")
        return bool(self._ids(f"SELECT {column} FROM {table.name} WHERE {column} = ? LIMIT 1", owner))

    def add_owner(self, records: Sequence[Record]) -> bool:
        owner = owner_of_record(records[0])
        steps = [self._taken()]
        if is_of_many(owner):
            steps.append(self._unless(f"{self._tables.units.name} WHERE agent_id = ?", (owner,)))
        for one in records:
            if isinstance(one, Agent):
                # An id and a shortname are one space of names.
                names = (one.id, one.shortname or one.id)
                same = "WHERE id IN (?, ?) OR shortname IN (?, ?)"
                steps.append(self._unless(f"{self._tables.agents.name} {same}", (*names, *names)))
            steps.append(self._insertion(one))
        if is_of_many(owner):
            listed = {one.name for one in records if isinstance(one, UnitVersion)}
            steps += [*(self._stale(owner, name) for name in sorted(listed)), self._bump(owner)]
        return self._changes.change_all(steps)

    def other_deployment(self, deployment: str) -> str | None:
        agents = f"SELECT deployment FROM {self._tables.agents.name} WHERE deployment <> ? LIMIT 1"
        start = f"instruction:{deployment}/"
        units = f"SELECT uri FROM {self._tables.units.name} WHERE substr(uri, 1, {len(start)}) <> ? LIMIT 1"
        found = (
            *self._ids(agents, deployment),
            *(uri.removeprefix("instruction:").partition("/")[0] for uri in self._ids(units, start)),
        )
        return next(iter(found), None)

    def _audits(self, owner: str) -> Iterator[AuditRecord]:
        at, last = 0, ""
        behind = "WHERE agent_id = ? AND created_at >= ? AND (created_at > ? OR id > ?)"
        page = f"{behind} ORDER BY created_at, id LIMIT {PAGE_RECORDS}"
        while found := self._rows(self._tables.audit, page, owner, at, at, last):
            yield from found
            at, last = found[-1].created_at, found[-1].id

    def _insertion(self, record: Record) -> Step:
        tables = self._tables
        match record:
            case Agent():
                return _inserted(tables.agents, record)
            case UnitVersion():
                return _inserted(tables.units, record)
            case Manifest():
                return _inserted(tables.manifests, record)
            case Approval():
                return _inserted(tables.approvals, record)
            case AuditRecord():
                return _inserted(tables.audit, record)
            case CoverageRun():
                return _inserted(tables.coverage, record)
            case Probe():
                return _inserted(tables.probes, record)

    def _rows(self, table: Table[Row], where: str, *cells: Cell) -> tuple[Row, ...]:
        found = self._fetch(f"{table.select} {where}".replace("?", self._tables.mark), cells)
        return tuple(map(table.row, found))

    def _ids(self, query: str, *cells: Cell) -> tuple[str, ...]:
        return tuple(str(name) for (name,) in self._fetch(query.replace("?", self._tables.mark), cells))


def _inserted(table: Table[Row], row: Row) -> Step:
    return Step(table.insert, table.cells(row))
