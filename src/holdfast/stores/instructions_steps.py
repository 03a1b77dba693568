"""What is said to a database to put one version, manifest or agent in the place of another, step by step."""

from collections.abc import Sequence

from holdfast.instructions.addresses import is_of_many
from holdfast.instructions.values import Agent, UnitVersion
from holdfast.stores.instructions_tables import InstructionTables
from holdfast.stores.queries import Cell
from holdfast.stores.steps import Step

LISTS = "body LIKE ?"
_TURN = "instruction_units"
"""The row whose lock those hold who put a version in the place of another."""


class InstructionSteps:
    def __init__(self, tables: InstructionTables) -> None:
        self._tables = tables

    def _said(self, statement: str, cells: tuple[Cell, ...], *, rows_min: int = 0) -> Step:
        return Step(statement.replace("?", self._tables.mark), cells, rows_min)

    def _activation(self, unit: UnitVersion, over: str | None, judged: Sequence[str], *, at: int) -> list[Step]:
        # It holds from now on, and not from when it was written.
        active = self._said(
            f"UPDATE {self._tables.units.name} SET status = 'active', created_at = ? "
            "WHERE uri = ? AND status = 'pending'",
            (at, unit.uri),
            rows_min=1,
        )
        return [*self._turn(unit, over, judged), active, *self._takes_over(unit, at)]

    def _turn(self, unit: UnitVersion, over: str | None, judged: Sequence[str]) -> list[Step]:
        """One after the other, and only over the version, and by the manifests, that it was judged against."""
        held = "agent_id = ? AND name = ? AND status = 'active' AND valid_until IS NULL AND uri <> ?"
        found = f"{self._tables.units.name} WHERE {held}"
        still = self._unless(found, (unit.agent_id, unit.name, over or ""))
        return [self._taken(), still, self._listed_by(unit, judged)]

    def _listed_by(self, unit: UnitVersion, manifests: Sequence[str]) -> Step:
        """That no other manifest lists it than those that were looked at."""
        many, marks = is_of_many(unit.agent_id), ", ".join(["''", *("?" for _ in manifests)])
        lists, meant = (LISTS, any_version(unit.agent_id, unit.name)) if many else ("agent_id = ?", unit.agent_id)
        others = f"superseded_at IS NULL AND {lists} AND id NOT IN ({marks})"
        return self._unless(f"{self._tables.manifests.name} WHERE {others}", (meant, *manifests))

    def _unless(self, found: str, cells: tuple[Cell, ...]) -> Step:
        """A statement of its own, which sees what those have done for whom the one before it has waited."""
        still = f"UPDATE {self._tables.schema}settings SET value = '' WHERE name = ?"
        return self._said(f"{still} AND NOT EXISTS (SELECT 1 FROM {found})", (_TURN, *cells), rows_min=1)

    def _taken(self) -> Step:
        taken = "settings (name, value) VALUES (?, '') ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        return self._said(f"INSERT INTO {self._tables.schema}{taken}", (_TURN,))

    def _takes_over(self, unit: UnitVersion, at: int) -> list[Step]:
        """Those before it end when it begins, and what was found about the manifest is stale."""
        ended = (
            f"UPDATE {self._tables.units.name} SET valid_until = ? "
            "WHERE agent_id = ? AND name = ? AND uri <> ? AND status = 'active' AND valid_until IS NULL"
        )
        return [
            self._said(ended, (at, unit.agent_id, unit.name, unit.uri)),
            self._stale(unit.agent_id, unit.name),
            self._bump(unit.agent_id),
        ]

    def _stale(self, owner: str, name: str) -> Step:
        """What was found about manifests that list a unit says nothing of its new text."""
        stale = f"UPDATE {self._tables.coverage.name} SET stale = 1 WHERE"
        if not is_of_many(owner):
            return self._said(f"{stale} agent_id = ?", (owner,))
        listing = f"SELECT agent_id FROM {self._tables.manifests.name} WHERE superseded_at IS NULL AND {LISTS}"
        return self._said(f"{stale} agent_id IN ({listing})", (any_version(owner, name),))

    def _registration(self, agent: Agent) -> Step:
        return Step(f"{self._tables.agents.insert} ON CONFLICT (id) DO NOTHING", self._tables.agents.cells(agent))

    def _bump(self, owner: str) -> Step:
        """What many share changes for all of them."""
        raised = f"UPDATE {self._tables.agents.name} SET revision = revision + 1"
        return Step(raised, ()) if is_of_many(owner) else self._said(f"{raised} WHERE id = ?", (owner,))

    def _forget_stubs(self, agent_id: str) -> Step:
        return self._said(f"DELETE FROM {self._tables.stubs.name} WHERE agent_id = ?", (agent_id,))


def any_version(owner: str, name: str) -> str:
    """What the body of a manifest is like that lists the unit, with the segment `agent/` or without it."""
    return f"%/{owner}/{name}/%"
