"""Tables of instruction records, and the transaction steps that replace one version of a record by another.

Columns are fields; nested values are stored as JSON text.
"""

from collections.abc import Sequence
from itertools import chain
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
from holdfast.stores.sql.dialect import PARAMETERS_MAX, repeat_params
from holdfast.stores.sql.events import Cell
from holdfast.stores.sql.records import SET_SETTING
from holdfast.stores.write.queue import SqlStep

Row = TypeVar("Row", bound=msgspec.Struct)
LISTS_UNIT = "strpos(body, ?) > 0"

# The settings row that is locked while one version replaces another.
_LOCK_ROW = "instruction_units"


class InstructionTable(Generic[Row]):
    """`nested` are the fields that are stored as JSON text."""

    def __init__(self, name: str, row: type[Row], *nested: str) -> None:
        self.name = f"holdfast.{name}"
        self.columns = tuple(row.__struct_fields__)
        self.row = row
        self._nested = frozenset(nested)
        self._fields = msgspec.structs.fields(row)
        params = repeat_params(len(self.columns))
        self.insert = f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES ({params})"
        self.select = f"SELECT {', '.join(self.columns)} FROM {self.name}"

    def encode_row(self, row: Row) -> tuple[Cell, ...]:
        return tuple(self._cell(name, getattr(row, name)) for name in self.columns)

    def insert_step(self, row: Row, on_conflict: str = "") -> SqlStep:
        return SqlStep(self.insert + on_conflict, self.encode_row(row))

    def insert_steps(self, rows: Sequence[Row]) -> list[SqlStep]:
        """Many rows with few statements: each one releases the interpreter lock and has to get it back."""
        size = PARAMETERS_MAX // len(self.columns)
        params = repeat_params(len(self.columns))
        batches = [rows[start : start + size] for start in range(0, len(rows), size)]
        return [
            SqlStep(
                f"{self.insert}{f', ({params})' * (len(batch) - 1)}",
                tuple(chain.from_iterable(map(self.encode_row, batch))),
            )
            for batch in batches
        ]

    def upsert_step(self, row: Row, keys: Sequence[str], *, kept: Sequence[str] = (), where: str = "") -> SqlStep:
        """Replaces the row with the same keys, except its `kept` columns."""
        changed = ", ".join(f"{name} = excluded.{name}" for name in self.columns if name not in (*keys, *kept))
        return self.insert_step(row, f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changed}{where}")

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
            return msgspec.convert(values, self.row, strict=False)
        except (msgspec.MsgspecError, ValueError) as error:
            table = self.name.removeprefix("holdfast.")
            raise StoreError(
                f"table {table} was written by a newer Holdfast, or is damaged: upgrade holdfast, or restore the "
                "database from a backup"
            ) from error


AGENTS = InstructionTable("instruction_agents", Agent, "supervisors", "always_rules")
UNITS = InstructionTable("instruction_units", UnitVersion)
MANIFESTS = InstructionTable("instruction_manifests", Manifest, "body", "provenance")
AUDIT = InstructionTable(
    "instruction_audit", AuditRecord, "loaded_chunks", "used_chunks", "missed_chunks", "detail", "detected"
)
STUBS = InstructionTable("boot_stubs", BootStub)
APPROVALS = InstructionTable("instruction_approvals", Approval)
COVERAGE = InstructionTable("instruction_coverage", CoverageRun, "units")
PROBES = InstructionTable("instruction_probes", Probe, "required_units")
SIGNERS = InstructionTable("instruction_signers", Signer)


def activate_unit(
    unit: UnitVersion, replaces_uri: str | None, manifest_ids: Sequence[str], *, at: int
) -> list[SqlStep]:
    # It is in force from its activation, not from when it was written.
    active = SqlStep(
        f"UPDATE {UNITS.name} SET status = 'active', created_at = ? WHERE uri = ? AND status = 'pending'",
        (at, unit.uri),
        rows_min=1,
    )
    return [*check_unchanged(unit, replaces_uri, manifest_ids), active, *replace_active(unit, at)]


def check_unchanged(unit: UnitVersion, replaces_uri: str | None, manifest_ids: Sequence[str]) -> list[SqlStep]:
    """Serialises replacements; requires the active version and the manifests that the unit was checked against."""
    other_active = "agent_id = ? AND name = ? AND status = 'active' AND valid_until IS NULL AND uri <> ?"
    others = f"{UNITS.name} WHERE {other_active}"
    unchanged = require_none(others, (unit.agent_id, unit.name, replaces_uri or ""))
    return [take_lock(), unchanged, _check_listing(unit, manifest_ids)]


def _check_listing(unit: UnitVersion, manifests: Sequence[str]) -> SqlStep:
    """Requires that only the manifests that the unit was checked against list it."""
    is_shared, placeholders = is_shared_owner(unit.agent_id), ", ".join(["''", *("?" for _ in manifests)])
    lists, pattern = (LISTS_UNIT, unit_path(unit.agent_id, unit.name)) if is_shared else ("agent_id = ?", unit.agent_id)
    others = f"superseded_at IS NULL AND {lists} AND id NOT IN ({placeholders})"
    return require_none(f"{MANIFESTS.name} WHERE {others}", (pattern, *manifests))


def require_none(query: str, cells: tuple[Cell, ...]) -> SqlStep:
    """Requires that a query finds nothing.

    It is a statement of its own, so that it sees what was committed while the lock step before it waited.
    """
    touch_lock_row = "UPDATE holdfast.settings SET value = '' WHERE name = ?"
    return SqlStep(f"{touch_lock_row} AND NOT EXISTS (SELECT 1 FROM {query})", (_LOCK_ROW, *cells), rows_min=1)


def take_lock() -> SqlStep:
    return SqlStep(SET_SETTING, (_LOCK_ROW, ""))


def replace_active(unit: UnitVersion, at: int) -> list[SqlStep]:
    """Ends the previous active versions when this one begins, and marks coverage results as stale."""
    supersede = (
        f"UPDATE {UNITS.name} SET valid_until = ? "
        "WHERE agent_id = ? AND name = ? AND uri <> ? AND status = 'active' AND valid_until IS NULL"
    )
    return [
        SqlStep(supersede, (at, unit.agent_id, unit.name, unit.uri)),
        mark_stale(unit.agent_id, unit.name),
        bump_revision(unit.agent_id),
    ]


def mark_stale(owner: str, name: str) -> SqlStep:
    """Coverage results of manifests that list the unit do not apply to its new text."""
    update = f"UPDATE {COVERAGE.name} SET stale = 1 WHERE"
    if not is_shared_owner(owner):
        return SqlStep(f"{update} agent_id = ?", (owner,))
    listing = f"SELECT agent_id FROM {MANIFESTS.name} WHERE superseded_at IS NULL AND {LISTS_UNIT}"
    return SqlStep(f"{update} agent_id IN ({listing})", (unit_path(owner, name),))


def register_agent(agent: Agent) -> SqlStep:
    return AGENTS.insert_step(agent, " ON CONFLICT (id) DO NOTHING")


def bump_revision(owner: str) -> SqlStep:
    """Increases the agent's revision; a shared unit changes the revision of every agent."""
    update = f"UPDATE {AGENTS.name} SET revision = revision + 1"
    return SqlStep(update, ()) if is_shared_owner(owner) else SqlStep(f"{update} WHERE id = ?", (owner,))


def forget_stubs(agent_id: str) -> SqlStep:
    return SqlStep(f"DELETE FROM {STUBS.name} WHERE agent_id = ?", (agent_id,))


def unit_path(owner: str, name: str) -> str:
    """Text in the body of a manifest that lists the unit, with or without the segment `agent/`."""
    return f"/{owner}/{name}/"
