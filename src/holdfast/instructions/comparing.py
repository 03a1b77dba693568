"""Which units are found better or worse than in another version of the manifest, and by which queries.

Both versions are measured by the encoder in use, so that a difference is one of triggers and texts.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.instructions.coverage import asked_of, measure_all
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.library import Library, no_manifest
from holdfast.instructions.recall import Shelf
from holdfast.instructions.settings import InstructionSettings
from holdfast.instructions.values import FailedProbe, UnitCoverage

Verdict = Literal["worse", "better", "new", "gone", "same", "unknown"]


class Measured(msgspec.Struct, frozen=True):
    """How a unit fared, and every query that was asked for it."""

    coverage: UnitCoverage
    asked: tuple[str, ...]

    @property
    def failures(self) -> dict[str, FailedProbe]:
        return {one.query: one for one in self.coverage.failures}


class UnitChange(msgspec.Struct, frozen=True, kw_only=True):
    """`before` and `after` are shares of queries; a verdict is unknown where one version has no intent to ask by.

    `found` and `lost` are queries of both versions that have changed sides; `failing` are queries of the later one
    alone that do not find the unit.
    """

    unit: str
    verdict: Verdict
    before: float | None = None
    after: float | None = None
    found: tuple[str, ...] = ()
    lost: tuple[FailedProbe, ...] = ()
    failing: tuple[FailedProbe, ...] = ()


class CoverageDiff(msgspec.Struct, frozen=True):
    """Of the earlier manifest as it was published and the later one as it is now."""

    earlier_version: str
    later_version: str
    embedding_model_version: str
    units: tuple[UnitChange, ...]

    @property
    def passed(self) -> bool:
        return not any(one.verdict == "worse" for one in self.units)


def compare(earlier: Sequence[Measured], later: Sequence[Measured]) -> tuple[UnitChange, ...]:
    """Every unit once: those of the later manifest in its order, then those that are gone."""
    before = {one.coverage.unit: one for one in earlier}
    after = {one.coverage.unit: one for one in later}
    kept = (_changed(name, before.get(name), one) for name, one in after.items())
    gone = (
        UnitChange(unit=name, verdict="gone", before=one.coverage.coverage_pct)
        for name, one in before.items()
        if name not in after
    )
    return (*kept, *gone)


def compare_versions(library: Library, said: str, version: str) -> CoverageDiff:
    """The current manifest with the one of a version. Raises InstructionError. Files are read as they are now."""
    agent = library.records.agent(said)
    manifest = library.records.manifest(agent.id) if agent else None
    if agent is None or manifest is None:
        raise no_manifest(said)
    old = library.records.manifest_of(agent.id, version)
    if old is None:
        raise InstructionError("manifest_not_found", f"agent {said[:80]!a} never had a manifest {version[:80]!a}")
    earlier = library.shelves.made(agent, old, at=old.created_at)
    later = library.shelves.made(agent, manifest)
    units = compare(covered(earlier, library.settings), covered(later, library.settings))
    return CoverageDiff(old.version, manifest.version, later.index.embedding_model_version, units)


def covered(shelf: Shelf, settings: InstructionSettings) -> tuple[Measured, ...]:
    units = measure_all(shelf, scaled_is_binding=settings.scaled_is_binding, use_floor=settings.use_floor)
    return tuple(Measured(one, asked_of(entry)) for one, entry in zip(units, shelf.manifest.body, strict=True))


def _changed(name: str, earlier: Measured | None, later: Measured) -> UnitChange:
    after, failures = later.coverage.coverage_pct, later.failures
    if earlier is None:
        return UnitChange(unit=name, verdict="new", after=after, failing=tuple(failures.values()))
    before, failed = earlier.coverage.coverage_pct, earlier.failures
    both = set(earlier.asked)
    common = tuple(query for query in dict.fromkeys(later.asked) if query in both)
    return UnitChange(
        unit=name,
        verdict=_verdict(before, after),
        before=before,
        after=after,
        found=tuple(query for query in common if query in failed and query not in failures),
        lost=tuple(failures[query] for query in common if query in failures and query not in failed),
        failing=tuple(one for query, one in failures.items() if query not in both),
    )


def _verdict(before: float | None, after: float | None) -> Verdict:
    if before == after:
        return "same"
    if before is None or after is None:
        return "unknown"
    return "better" if after > before else "worse"
