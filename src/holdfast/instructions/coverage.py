"""Whether a manifest's units are found by those who say it otherwise: the gate, the daily probes, the lifts."""

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.instructions.recall import Shelf
from holdfast.instructions.values import CoverageRun, Entry, FailedProbe, Probe, UnitCoverage
from holdfast.retrieval.paraphrases import paraphrases, probes

PARAPHRASES = 5
GATE_K = 3
GATE_SHARE_MIN = 0.80
PROBES = 20
PROBE_K = 10
CRITICAL_BELOW = 0.4


class ProbeResult(msgspec.Struct, frozen=True):
    """How a curated probe fared: the share of its units in the first k, and whether there was one."""

    probe_id: str
    coverage_at_k: float
    hit: bool


def scaled_k(units: int) -> int:
    """Among few units the first three are no achievement."""
    return min(GATE_K, max(1, units // 3))


def measure(shelf: Shelf, entry: Entry, *, scaled_is_binding: bool = False, use_floor: bool = True) -> UnitCoverage:
    """Only intents are paraphrased; guarantee, hints and lifts do not count."""
    found = [(query, ranked(shelf, query, use_floor=use_floor)) for query in asked_of(entry)]
    units = len(shelf.manifest.body)
    chance = min(1.0, GATE_K / units)
    asked = probes(entry.load_triggers.intents, entry.description, count=PROBES)
    hits = sum(entry.name in ranked(shelf, query, use_floor=use_floor)[:PROBE_K] for query in asked)
    hit_at_10 = hits / len(asked) if asked else None
    if not found:
        return UnitCoverage(
            unit=entry.name,
            coverage_pct=None,
            passed=True,
            chance=chance,
            hit_at_10=hit_at_10,
            probe_count=len(asked),
            status="no_probes",
        )
    share = _share(found, entry.name, GATE_K)
    scaled = _share(found, entry.name, scaled_k(units))
    failed = (
        FailedProbe(query, next(iter(names[GATE_K - 1 : GATE_K] or names[-1:]), None))
        for query, names in found
        if entry.name not in names[:GATE_K]
    )
    return UnitCoverage(
        unit=entry.name,
        coverage_pct=share,
        passed=(scaled if scaled_is_binding else share) >= GATE_SHARE_MIN,
        scaled_pct=scaled,
        chance=chance,
        hit_at_10=hit_at_10,
        probe_count=len(asked),
        failures=tuple(failed),
    )


def asked_of(entry: Entry) -> tuple[str, ...]:
    """What the gate asks for a unit."""
    return tuple(query for intent in entry.load_triggers.intents for query in paraphrases(intent, PARAPHRASES))


def measure_all(shelf: Shelf, *, scaled_is_binding: bool = False, use_floor: bool = True) -> tuple[UnitCoverage, ...]:
    return tuple(
        measure(shelf, entry, scaled_is_binding=scaled_is_binding, use_floor=use_floor) for entry in shelf.manifest.body
    )


def run_probes(shelf: Shelf, curated: Iterable[Probe], *, use_floor: bool = True) -> tuple[ProbeResult, ...]:
    results = []
    for probe in curated:
        first = set(ranked(shelf, probe.intent, use_floor=use_floor)[: probe.k])
        met = sum(name in first for name in probe.required_units)
        results.append(ProbeResult(probe.probe_id, met / len(probe.required_units), met > 0))
    return tuple(results)


def critical_units(run: CoverageRun | None) -> tuple[str, ...]:
    """Those that get a lift."""
    units = run.units if run is not None else ()
    return tuple(one.unit for one in units if one.hit_at_10 is not None and one.hit_at_10 < CRITICAL_BELOW)


def status_of(unit: UnitCoverage) -> str:
    if unit.hit_at_10 is None:
        return "not_evaluated"
    return "coverage_critical" if unit.hit_at_10 < CRITICAL_BELOW else "ok"


def ranked(shelf: Shelf, query: str, *, use_floor: bool) -> tuple[str, ...]:
    floor = shelf.index.floor if use_floor else 0.0
    places = shelf.rank(query).places
    return tuple(one.id for one in places if one.relevance >= floor)[:PROBE_K]


def _share(found: Sequence[tuple[str, tuple[str, ...]]], name: str, k: int) -> float:
    return sum(name in names[:k] for _, names in found) / len(found)
