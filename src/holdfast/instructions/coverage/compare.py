"""Compare the coverage of two manifest versions: which units are found better or worse, and by which queries.

Both versions are measured with the encoder in use, so that differences come from triggers and texts.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.errors import InstructionError
from holdfast.instructions.context import InstructionContext
from holdfast.instructions.coverage.measure import gate_queries, measure_unit
from holdfast.instructions.models import FailedProbe, UnitCoverage
from holdfast.instructions.recall.selection import InstructionSet
from holdfast.instructions.settings import InstructionSettings

CoverageChange = Literal["worse", "better", "new", "gone", "same", "unknown"]


class MeasuredUnit(msgspec.Struct, frozen=True):
    """The coverage of a unit, and every query it was measured with."""

    coverage: UnitCoverage
    queries: tuple[str, ...]

    @property
    def failures(self) -> dict[str, FailedProbe]:
        return {probe.query: probe for probe in self.coverage.failures}


class UnitChange(msgspec.Struct, frozen=True, kw_only=True):
    """`before` and `after` are shares of queries; the verdict is unknown if one version has no intents.

    `newly_found` and `newly_missed` are queries of both versions whose result changed; `failing` are queries of the
    later version only that do not find the unit.
    """

    unit: str
    verdict: CoverageChange
    before: float | None = None
    after: float | None = None
    newly_found: tuple[str, ...] = ()
    newly_missed: tuple[FailedProbe, ...] = ()
    failing: tuple[FailedProbe, ...] = ()


class CoverageDiff(msgspec.Struct, frozen=True):
    """The earlier manifest as it was published, compared with the later one as it is now."""

    earlier_version: str
    later_version: str
    embedding_model_version: str
    units: tuple[UnitChange, ...]

    @property
    def passed(self) -> bool:
        return not any(unit.verdict == "worse" for unit in self.units)


def compare_coverage(earlier: Sequence[MeasuredUnit], later: Sequence[MeasuredUnit]) -> tuple[UnitChange, ...]:
    """Every unit once: those of the later manifest in its order, then the removed ones."""
    before = {unit.coverage.unit: unit for unit in earlier}
    after = {unit.coverage.unit: unit for unit in later}
    changed = (_compare_unit(name, before.get(name), unit) for name, unit in after.items())
    removed = [(name, unit.coverage.coverage_pct) for name, unit in before.items() if name not in after]
    gone = (UnitChange(unit=name, verdict="gone", before=share) for name, share in removed)
    return (*changed, *gone)


def compare_manifest_versions(context: InstructionContext, agent_name: str, version: str) -> CoverageDiff:
    """Compare the current manifest with an earlier version. Files are read as they are now. Raises InstructionError."""
    agent, manifest = context.require_manifest(agent_name)
    old = context.records.find_manifest_version(agent.id, version)
    if old is None:
        missing = f"agent {agent_name[:80]!a} never had a manifest {version[:80]!a}"
        raise InstructionError("manifest_not_found", f"{missing}; the current one is {manifest.version[:80]!a}")
    earlier = context.instruction_sets.build(agent, old, at=old.created_at)
    later = context.instruction_sets.build(agent, manifest)
    units = compare_coverage(measure_units(earlier, context.settings), measure_units(later, context.settings))
    return CoverageDiff(old.version, manifest.version, later.index.embedding_model_version, units)


def measure_units(instruction_set: InstructionSet, settings: InstructionSettings) -> tuple[MeasuredUnit, ...]:
    entries = instruction_set.manifest.body
    return tuple(MeasuredUnit(measure_unit(instruction_set, entry, settings), gate_queries(entry)) for entry in entries)


def _compare_unit(name: str, earlier: MeasuredUnit | None, later: MeasuredUnit) -> UnitChange:
    after, failures_after = later.coverage.coverage_pct, later.failures
    if earlier is None:
        return UnitChange(unit=name, verdict="new", after=after, failing=tuple(failures_after.values()))
    before, failures_before = earlier.coverage.coverage_pct, earlier.failures
    earlier_queries = set(earlier.queries)
    common = tuple(query for query in dict.fromkeys(later.queries) if query in earlier_queries)
    return UnitChange(
        unit=name,
        verdict=_verdict(before, after),
        before=before,
        after=after,
        newly_found=tuple(query for query in common if query in failures_before and query not in failures_after),
        newly_missed=tuple(
            failures_after[query] for query in common if query in failures_after and query not in failures_before
        ),
        failing=tuple(probe for query, probe in failures_after.items() if query not in earlier_queries),
    )


def _verdict(before: float | None, after: float | None) -> CoverageChange:
    if before == after:
        return "same"
    if before is None or after is None:
        return "unknown"
    return "better" if after > before else "worse"
