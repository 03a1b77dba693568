"""Probe a manifest: which intents, paraphrases and curated probes do not find their units."""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.instructions.coverage.measure import CRITICAL_HIT_SHARE, measure_hit_share, rank_unit_names
from holdfast.instructions.models import Probe
from holdfast.instructions.recall.ranking import InstructionSet


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
        # A unit without a text cannot be recalled, however well its triggers rank.
        is_available = entry.name in instruction_set.contents
        passed = is_available and not failing and (share or 0.0) >= CRITICAL_HIT_SHARE
        missed = tuple(failing) if is_available else tuple(ProbeMiss(intent, ()) for intent in intents)
        yield ProbedUnit(entry.name, share or 0.0, probe_count, missed, passed)


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
