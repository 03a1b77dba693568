"""Tables of instruction records, and the transaction steps that replace one version of a record by another.

Columns are fields; nested values are stored as JSON text.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from holdfast.errors import StoreError
from holdfast.instructions.models import (
    Agent,
    Approval,
    AuditRecord,
    BootStub,
    CoverageRun,
    Manifest,
    Probe,
    Signer,
    UnitVersion,
)
from holdfast.instructions.uri import is_shared_owner
from holdfast.stores.sql.events import Cell
from holdfast.stores.write.queue import SqlStep

Row = TypeVar("Row", bound=msgspec.Struct)
_AUDIT_LIST_COLUMNS = ("loaded_chunks", "used_chunks", "missed_chunks", "detail", "detected")
LISTS_UNIT = "body LIKE ?"

# The settings row that is locked while one version replaces another.
_LOCK_ROW = "instruction_units"


class InstructionTable(Generic[Row]):
    """`nested` are the fields that are stored as JSON text."""

    def __init__(
        self, name: str, row: type[Row], *, nested: tuple[str, ...] = (), param: str = "?", schema: str = ""
    ) -> None:
        self.name = f"{schema}{name}"
        self.columns = tuple(row.__struct_fields__)
        self._row = row
        self._nested = frozenset(nested)
        self._fields = msgspec.structs.fields(row)
        params = ", ".join([param] * len(self.columns))
        self.insert = f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES ({params})"
        self.select = f"SELECT {', '.join(self.columns)} FROM {self.name}"

    def encode_row(self, row: Row) -> tuple[Cell, ...]:
        return tuple(self._cell(name, getattr(row, name)) for name in self.columns)

    def insert_step(self, row: Row, on_conflict: str = "") -> SqlStep:
        return SqlStep(self.insert + on_conflict, self.encode_row(row))

    def _cell(self, name: str, value: object) -> Cell:
        if name in self._nested:
            return msgspec.json.encode(value).decode()
        if isinstance(value, bool):
            return int(value)
        assert value is None or isinstance(value, str | int | float)
        return value

    def decode_row(self, cells: Sequence[object]) -> Row:
        """Raises StoreError for a row that this version cannot read."""
        try:
            values = dict(zip(self.columns, cells, strict=True))
            for field in self._fields:
                if field.name in self._nested:
                    values[field.name] = msgspec.json.decode(str(values[field.name]), type=field.type)
            return msgspec.convert(values, self._row, strict=False)
        except (msgspec.MsgspecError, ValueError) as error:
            raise StoreError(f"{self.name} was written by a newer Holdfast, or is damaged") from error


class InstructionTables:
    """The tables of an engine that writes `param` for a parameter and `schema` as table prefix."""

    def __init__(self, param: str, *, schema: str = "") -> None:
        self.param, self.schema = param, schema

        def table(name: str, row: type[Row], *nested: str) -> InstructionTable[Row]:
            return InstructionTable(name, row, nested=nested, param=param, schema=schema)

        self.agents = table("instruction_agents", Agent, "supervisors", "always_rules")
        self.units = table("instruction_units", UnitVersion)
        self.manifests = table("instruction_manifests", Manifest, "body", "provenance")
        self.audit = table("instruction_audit", AuditRecord, *_AUDIT_LIST_COLUMNS)
        self.stubs = table("boot_stubs", BootStub)
        self.approvals = table("instruction_approvals", Approval)
        self.coverage = table("instruction_coverage", CoverageRun, "units")
        self.probes = table("instruction_probes", Probe, "required_units")
        self.signers = table("instruction_signers", Signer)


class InstructionSteps:
    def __init__(self, tables: InstructionTables) -> None:
        self._tables = tables

    def _step(self, statement: str, cells: tuple[Cell, ...], *, rows_min: int = 0) -> SqlStep:
        return SqlStep(statement.replace("?", self._tables.param), cells, rows_min)

    def _activate(
        self, unit: UnitVersion, replaces_uri: str | None, manifest_ids: Sequence[str], *, at: int
    ) -> list[SqlStep]:
        # It is in force from its activation, not from when it was written.
        active = self._step(
            f"UPDATE {self._tables.units.name} SET status = 'active', created_at = ? "
            "WHERE uri = ? AND status = 'pending'",
            (at, unit.uri),
            rows_min=1,
        )
        return [*self._check_unchanged(unit, replaces_uri, manifest_ids), active, *self._replace_active(unit, at)]

    def _check_unchanged(
        self, unit: UnitVersion, replaces_uri: str | None, manifest_ids: Sequence[str]
    ) -> list[SqlStep]:
        """Serialises replacements; requires the active version and the manifests that the unit was checked against."""
        other_active = "agent_id = ? AND name = ? AND status = 'active' AND valid_until IS NULL AND uri <> ?"
        others = f"{self._tables.units.name} WHERE {other_active}"
        unchanged = self._require_none(others, (unit.agent_id, unit.name, replaces_uri or ""))
        return [self._take_lock(), unchanged, self._check_listing(unit, manifest_ids)]

    def _check_listing(self, unit: UnitVersion, manifests: Sequence[str]) -> SqlStep:
        """Requires that only the manifests that the unit was checked against list it."""
        is_shared, placeholders = is_shared_owner(unit.agent_id), ", ".join(["''", *("?" for _ in manifests)])
        lists, pattern = (
            (LISTS_UNIT, manifest_pattern(unit.agent_id, unit.name)) if is_shared else ("agent_id = ?", unit.agent_id)
        )
        others = f"superseded_at IS NULL AND {lists} AND id NOT IN ({placeholders})"
        return self._require_none(f"{self._tables.manifests.name} WHERE {others}", (pattern, *manifests))

    def _require_none(self, query: str, cells: tuple[Cell, ...]) -> SqlStep:
        """Requires that a query finds nothing.

        It is a statement of its own, so that it sees what was committed while the lock step before it waited.
        """
        touch_lock_row = f"UPDATE {self._tables.schema}settings SET value = '' WHERE name = ?"
        return self._step(f"{touch_lock_row} AND NOT EXISTS (SELECT 1 FROM {query})", (_LOCK_ROW, *cells), rows_min=1)

    def _take_lock(self) -> SqlStep:
        upsert = "settings (name, value) VALUES (?, '') ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        return self._step(f"INSERT INTO {self._tables.schema}{upsert}", (_LOCK_ROW,))

    def _replace_active(self, unit: UnitVersion, at: int) -> list[SqlStep]:
        """Ends the previous active versions when this one begins, and marks coverage results as stale."""
        supersede = (
            f"UPDATE {self._tables.units.name} SET valid_until = ? "
            "WHERE agent_id = ? AND name = ? AND uri <> ? AND status = 'active' AND valid_until IS NULL"
        )
        return [
            self._step(supersede, (at, unit.agent_id, unit.name, unit.uri)),
            self._mark_stale(unit.agent_id, unit.name),
            self._bump(unit.agent_id),
        ]

    def _mark_stale(self, owner: str, name: str) -> SqlStep:
        """Coverage results of manifests that list the unit do not apply to its new text."""
        update = f"UPDATE {self._tables.coverage.name} SET stale = 1 WHERE"
        if not is_shared_owner(owner):
            return self._step(f"{update} agent_id = ?", (owner,))
        listing = f"SELECT agent_id FROM {self._tables.manifests.name} WHERE superseded_at IS NULL AND {LISTS_UNIT}"
        return self._step(f"{update} agent_id IN ({listing})", (manifest_pattern(owner, name),))

    def _register(self, agent: Agent) -> SqlStep:
        return self._tables.agents.insert_step(agent, " ON CONFLICT (id) DO NOTHING")

    def _bump(self, owner: str) -> SqlStep:
        """Increases the agent's revision; a shared unit changes the revision of every agent."""
        update = f"UPDATE {self._tables.agents.name} SET revision = revision + 1"
        return SqlStep(update, ()) if is_shared_owner(owner) else self._step(f"{update} WHERE id = ?", (owner,))

    def _forget_stubs(self, agent_id: str) -> SqlStep:
        return self._step(f"DELETE FROM {self._tables.stubs.name} WHERE agent_id = ?", (agent_id,))


def manifest_pattern(owner: str, name: str) -> str:
    """A LIKE pattern for the body of a manifest that lists the unit, with or without the segment `agent/`."""
    return f"%/{owner}/{name}/%"
