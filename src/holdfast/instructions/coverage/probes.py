"""Probe a manifest: which intents, paraphrases and curated probes do not find their units."""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.instructions.coverage.measure import PROBE_K, PROBES_PER_UNIT, rank_unit_names
from holdfast.instructions.models import Probe
from holdfast.instructions.recall.ranking import InstructionSet
from holdfast.retrieval.paraphrases import generate_probes

HIT_SHARE_MIN = 0.4


class ProbeMiss(msgspec.Struct, frozen=True):
    """`found` are the units that ranked first instead."""

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
    instruction_set: InstructionSet, curated: Sequence[Probe] = (), *, k: int = 3, use_floor: bool = True
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
        queries = generate_probes(intents, entry.description, count=PROBES_PER_UNIT)
        hits = sum(
            entry.name in rank_unit_names(instruction_set, query, use_floor=use_floor)[:PROBE_K] for query in queries
        )
        share = hits / len(queries) if queries else 0.0
        # A unit without a text cannot be recalled, however well its triggers rank.
        is_available = entry.name in instruction_set.contents
        passed = is_available and not failing and share >= HIT_SHARE_MIN
        missed = tuple(failing) if is_available else tuple(ProbeMiss(intent, ()) for intent in intents)
        yield ProbedUnit(entry.name, share, len(queries), missed, passed)


def _probed_curated(
    instruction_set: InstructionSet, curated: Sequence[Probe], *, use_floor: bool
) -> Iterator[ProbedUnit]:
    for curated_probe in curated:
        result = _first_k(instruction_set, curated_probe.intent, curated_probe.k, use_floor=use_floor)
        found_count = sum(name in result.first_units for name in curated_probe.required_units)
        passed = found_count == len(curated_probe.required_units)
        share = found_count / len(curated_probe.required_units)
        yield ProbedUnit(curated_probe.probe_id, share, 1, () if passed else (result,), passed)


def _first_k(instruction_set: InstructionSet, intent: str, k: int, *, use_floor: bool) -> ProbeMiss:
    return ProbeMiss(intent, rank_unit_names(instruction_set, intent, use_floor=use_floor)[:k])
