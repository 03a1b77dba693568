"""Transaction steps that replace one unit version, manifest or agent by another."""

from collections.abc import Sequence

from holdfast.instructions.addresses import is_of_many
from holdfast.instructions.values import Agent, UnitVersion
from holdfast.stores.instructions_tables import InstructionTables
from holdfast.stores.queries import Cell
from holdfast.stores.steps import Step

LISTS = "body LIKE ?"
# The settings row that is locked while one version replaces another.
_LOCK_ROW = "instruction_units"


class InstructionSteps:
    def __init__(self, tables: InstructionTables) -> None:
        self._tables = tables

    def _step(self, statement: str, cells: tuple[Cell, ...], *, rows_min: int = 0) -> Step:
        return Step(statement.replace("?", self._tables.mark), cells, rows_min)

    def _activate(self, unit: UnitVersion, over: str | None, judged: Sequence[str], *, at: int) -> list[Step]:
        # It is in force from its activation, not from when it was written.
        active = self._step(
            f"UPDATE {self._tables.units.name} SET status = 'active', created_at = ? "
            "WHERE uri = ? AND status = 'pending'",
            (at, unit.uri),
            rows_min=1,
        )
        return [*self._check_unchanged(unit, over, judged), active, *self._replace_active(unit, at)]

    def _check_unchanged(self, unit: UnitVersion, over: str | None, judged: Sequence[str]) -> list[Step]:
        """Serialises replacements, and requires that active version and manifests are those that were judged."""
        other_active = "agent_id = ? AND name = ? AND status = 'active' AND valid_until IS NULL AND uri <> ?"
        others = f"{self._tables.units.name} WHERE {other_active}"
        unchanged = self._require_none(others, (unit.agent_id, unit.name, over or ""))
        return [self._take_lock(), unchanged, self._check_listing(unit, judged)]

    def _check_listing(self, unit: UnitVersion, manifests: Sequence[str]) -> Step:
        """Requires that no other manifest lists the unit than those that were judged."""
        is_shared, placeholders = is_of_many(unit.agent_id), ", ".join(["''", *("?" for _ in manifests)])
        lists, pattern = (
            (LISTS, any_version(unit.agent_id, unit.name)) if is_shared else ("agent_id = ?", unit.agent_id)
        )
        others = f"superseded_at IS NULL AND {lists} AND id NOT IN ({placeholders})"
        return self._require_none(f"{self._tables.manifests.name} WHERE {others}", (pattern, *manifests))

    def _require_none(self, query: str, cells: tuple[Cell, ...]) -> Step:
        """Requires that a query finds nothing.

        It is a statement of its own, so that it sees what was committed while the lock step before it waited.
        """
        touch_lock_row = f"UPDATE {self._tables.schema}settings SET value = '' WHERE name = ?"
        return self._step(f"{touch_lock_row} AND NOT EXISTS (SELECT 1 FROM {query})", (_LOCK_ROW, *cells), rows_min=1)

    def _take_lock(self) -> Step:
        upsert = "settings (name, value) VALUES (?, '') ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        return self._step(f"INSERT INTO {self._tables.schema}{upsert}", (_LOCK_ROW,))

    def _replace_active(self, unit: UnitVersion, at: int) -> list[Step]:
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

    def _mark_stale(self, owner: str, name: str) -> Step:
        """Coverage results of manifests that list the unit do not apply to its new text."""
        update = f"UPDATE {self._tables.coverage.name} SET stale = 1 WHERE"
        if not is_of_many(owner):
            return self._step(f"{update} agent_id = ?", (owner,))
        listing = f"SELECT agent_id FROM {self._tables.manifests.name} WHERE superseded_at IS NULL AND {LISTS}"
        return self._step(f"{update} agent_id IN ({listing})", (any_version(owner, name),))

    def _register(self, agent: Agent) -> Step:
        return Step(f"{self._tables.agents.insert} ON CONFLICT (id) DO NOTHING", self._tables.agents.cells(agent))

    def _bump(self, owner: str) -> Step:
        """Increases the agent's revision; a shared unit changes the revision of every agent."""
        update = f"UPDATE {self._tables.agents.name} SET revision = revision + 1"
        return Step(update, ()) if is_of_many(owner) else self._step(f"{update} WHERE id = ?", (owner,))

    def _forget_stubs(self, agent_id: str) -> Step:
        return self._step(f"DELETE FROM {self._tables.stubs.name} WHERE agent_id = ?", (agent_id,))


def any_version(owner: str, name: str) -> str:
    """A LIKE pattern for the body of a manifest that lists the unit, with or without the segment `agent/`."""
    return f"%/{owner}/{name}/%"
