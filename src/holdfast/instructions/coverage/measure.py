"""Measures coverage: whether paraphrased intents and curated probes find a manifest's units."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast.instructions.models import CoverageRun, FailedProbe, ManifestEntry, Probe, UnitCoverage
from holdfast.instructions.recall.selection import InstructionSet
from holdfast.instructions.settings import InstructionSettings
from holdfast.retrieval.paraphrases import generate_paraphrases, generate_probes

# Seed 003, sections 21.5.4 and 21.5.5: the gate asks for at least 80 % of the paraphrases within the first 3; daily
# probes take 15 to 20 queries per unit, and a unit with hit@10 below 0.4 is coverage-critical and gets a lift.
PARAPHRASES_PER_INTENT = 5
GATE_K = 3
GATE_SHARE_MIN = 0.80
PROBES_PER_UNIT = 20
PROBE_K = 10
CRITICAL_HIT_SHARE = 0.4


class ProbeResult(msgspec.Struct, frozen=True):
    """The share of a curated probe's required units in the first k, and whether at least one was there."""

    probe_id: str
    coverage_at_k: float
    hit: bool


def scale_k(units: int) -> int:
    """A k that is meaningful for a small manifest: among three units, every ranking has each unit in the first 3."""
    return min(GATE_K, max(1, units // 3))


def measure_unit(instruction_set: InstructionSet, entry: ManifestEntry, settings: InstructionSettings) -> UnitCoverage:
    """Measure one unit by its intents, on what a recall would return now.

    Guarantee, hints and lifts are left out, because they would always pass.
    """
    use_floor = settings.use_floor
    rankings = [(query, rank_unit_names(instruction_set, query, use_floor=use_floor)) for query in gate_queries(entry)]
    units = len(instruction_set.manifest.body)
    # A random ranking has the unit among the first k with probability k / n.
    chance = min(1.0, GATE_K / units)
    hit_at_10, probe_count = measure_hit_share(instruction_set, entry, use_floor=use_floor)
    obstacle = instruction_set.find_obstacle(entry.name)
    if not rankings:
        return UnitCoverage(
            unit=entry.name,
            coverage_pct=None,
            passed=True,
            chance=chance,
            hit_at_10=hit_at_10,
            probe_count=probe_count,
            status="no_probes",
            obstacle=obstacle,
        )
    share = _share(rankings, entry.name, GATE_K)
    scaled = _share(rankings, entry.name, scale_k(units))
    failed_probes = (
        # The unit at rank k is the one to beat; with fewer than k results it is the last one.
        FailedProbe(query, next(iter(names[GATE_K - 1 : GATE_K] or names[-1:]), None))
        for query, names in rankings
        if entry.name not in names[:GATE_K]
    )
    return UnitCoverage(
        unit=entry.name,
        coverage_pct=share,
        passed=(scaled if settings.scaled_is_binding else share) >= GATE_SHARE_MIN,
        scaled_pct=scaled,
        chance=chance,
        hit_at_10=hit_at_10,
        probe_count=probe_count,
        failures=tuple(failed_probes),
        obstacle=obstacle,
    )


def gate_queries(entry: ManifestEntry) -> tuple[str, ...]:
    intents = entry.load_triggers.intents
    return tuple(query for intent in intents for query in generate_paraphrases(intent, PARAPHRASES_PER_INTENT))


def measure_hit_share(
    instruction_set: InstructionSet, entry: ManifestEntry, *, use_floor: bool
) -> tuple[float | None, int]:
    """The share of a unit's probes that find it in the first PROBE_K, None without probes, and their number."""
    queries = generate_probes(entry.load_triggers.intents, entry.description, count=PROBES_PER_UNIT)
    hits = sum(entry.name in rank_unit_names(instruction_set, query, use_floor=use_floor) for query in queries)
    return (hits / len(queries) if queries else None), len(queries)


def measure_all_units(instruction_set: InstructionSet, settings: InstructionSettings) -> tuple[UnitCoverage, ...]:
    return tuple(measure_unit(instruction_set, entry, settings) for entry in instruction_set.manifest.body)


def run_probes(
    instruction_set: InstructionSet, curated: Iterable[Probe], *, use_floor: bool
) -> tuple[ProbeResult, ...]:
    results = []
    for probe in curated:
        first = set(rank_unit_names(instruction_set, probe.intent, use_floor=use_floor)[: probe.k])
        found_count = sum(name in first for name in probe.required_units)
        results.append(ProbeResult(probe.probe_id, found_count / len(probe.required_units), found_count > 0))
    return tuple(results)


def find_critical_units(run: CoverageRun | None) -> tuple[str, ...]:
    """The units that get a lift."""
    units = run.units if run is not None else ()
    return tuple(unit.unit for unit in units if unit.hit_at_10 is not None and unit.hit_at_10 < CRITICAL_HIT_SHARE)


def classify_coverage(unit: UnitCoverage) -> str:
    if unit.hit_at_10 is None:
        return "not_evaluated"
    return "coverage_critical" if unit.hit_at_10 < CRITICAL_HIT_SHARE else "ok"


def rank_unit_names(instruction_set: InstructionSet, query: str, *, use_floor: bool) -> tuple[str, ...]:
    """The first PROBE_K units that a recall could return, best first; with `use_floor` only relevant ones."""
    ranking = instruction_set.rank(query)
    # Weak ones count: seed 003 (21.8.3) defines the gate by the first three results, not by how far apart they are.
    filler = instruction_set.find_filler(ranking, use_floor=use_floor)
    excluded = {id for id, reason in filler.items() if reason == "below_floor"}
    present = instruction_set.contents
    return tuple(unit.id for unit in ranking.units if unit.id in present and unit.id not in excluded)[:PROBE_K]


def _share(rankings: Sequence[tuple[str, tuple[str, ...]]], name: str, k: int) -> float:
    return sum(name in names[:k] for _, names in rankings) / len(rankings)


class ProbeMiss(msgspec.Struct, frozen=True):
    """`first_units` are the units that ranked first instead."""

    intent: str
    first_units: tuple[str, ...]


class ProbedUnit(msgspec.Struct, frozen=True):
    """`share` is over the probes; a unit passes if enough find it and its own intents all find it in the first k."""

    name: str
    share: float
    probes: int
    missed: tuple[ProbeMiss, ...]
    passed: bool


class ProbeReport(msgspec.Struct, frozen=True):
    units: tuple[ProbedUnit, ...]
    curated: tuple[ProbedUnit, ...]

    @property
    def passed(self) -> bool:
        return all(unit.passed for unit in (*self.units, *self.curated))


def probe_manifest(
    instruction_set: InstructionSet, curated: Sequence[Probe], *, k: int, use_floor: bool
) -> ProbeReport:
    """Intents must find their unit within the first k, their paraphrases within the first ten, as in the daily run."""
    return ProbeReport(
        tuple(_probed_units(instruction_set, k=k, use_floor=use_floor)),
        tuple(_probed_curated(instruction_set, curated, use_floor=use_floor)),
    )


def _probed_units(instruction_set: InstructionSet, *, k: int, use_floor: bool) -> Iterator[ProbedUnit]:
    for entry in instruction_set.manifest.body:
        intents = entry.load_triggers.intents
        results = [_first_k(instruction_set, intent, k, use_floor=use_floor) for intent in intents]
        failing = [result for result in results if entry.name not in result.first_units]
        share, probe_count = measure_hit_share(instruction_set, entry, use_floor=use_floor)
        passed = entry.name in instruction_set.contents and not failing and (share or 0.0) >= CRITICAL_HIT_SHARE
        yield ProbedUnit(entry.name, share or 0.0, probe_count, tuple(failing), passed)


def _probed_curated(
    instruction_set: InstructionSet, curated: Sequence[Probe], *, use_floor: bool
) -> Iterator[ProbedUnit]:
    for probe in curated:
        result = _first_k(instruction_set, probe.intent, probe.k, use_floor=use_floor)
        found_count = sum(name in result.first_units for name in probe.required_units)
        passed = found_count == len(probe.required_units)
        share = found_count / len(probe.required_units)
        yield ProbedUnit(probe.probe_id, share, 1, () if passed else (result,), passed)


def _first_k(instruction_set: InstructionSet, intent: str, k: int, *, use_floor: bool) -> ProbeMiss:
    return ProbeMiss(intent, rank_unit_names(instruction_set, intent, use_floor=use_floor)[:k])
