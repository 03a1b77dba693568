"""Which intents do not find their unit: those of the manifest, said otherwise, and those that people have named."""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.instructions.coverage import PROBE_K, PROBES, ranked
from holdfast.instructions.recall import Shelf
from holdfast.instructions.values import Probe
from holdfast.retrieval.paraphrases import probes

HIT_SHARE_MIN = 0.4


class Missed(msgspec.Struct, frozen=True):
    """`found` is what came first instead."""

    intent: str
    found: tuple[str, ...]


class ProbedUnit(msgspec.Struct, frozen=True):
    """`share` is over the probes; a unit passes if enough find it and no intent of its own misses it in the first k."""

    name: str
    share: float
    probes: int
    missed: tuple[Missed, ...]
    passed: bool


class Probed(msgspec.Struct, frozen=True):
    units: tuple[ProbedUnit, ...]
    curated: tuple[ProbedUnit, ...]

    @property
    def passed(self) -> bool:
        return all(one.passed for one in (*self.units, *self.curated))


def probe(shelf: Shelf, curated: Sequence[Probe] = (), *, k: int = 3, use_floor: bool = True) -> Probed:
    """Intents as they stand within the first k; their paraphrases within the first ten, as the daily run has it."""
    return Probed(
        tuple(_probed_units(shelf, k=k, use_floor=use_floor)),
        tuple(_probed_curated(shelf, curated, use_floor=use_floor)),
    )


def _probed_units(shelf: Shelf, *, k: int, use_floor: bool) -> Iterator[ProbedUnit]:
    for entry in shelf.manifest.body:
        intents = entry.load_triggers.intents
        own = [_missed(shelf, intent, k, use_floor=use_floor) for intent in intents]
        failing = [miss for miss in own if entry.name not in miss.found]
        asked = probes(intents, entry.description, count=PROBES)
        hits = sum(entry.name in ranked(shelf, query, use_floor=use_floor)[:PROBE_K] for query in asked)
        share = hits / len(asked) if asked else 0.0
        # A unit without a text cannot be recalled, however well its triggers are found.
        there = entry.name in shelf.contents
        passed = there and not failing and share >= HIT_SHARE_MIN
        missed = tuple(failing) if there else tuple(Missed(intent, ()) for intent in intents)
        yield ProbedUnit(entry.name, share, len(asked), missed, passed)


def _probed_curated(shelf: Shelf, curated: Sequence[Probe], *, use_floor: bool) -> Iterator[ProbedUnit]:
    for one in curated:
        answer = _missed(shelf, one.intent, one.k, use_floor=use_floor)
        met = sum(name in answer.found for name in one.required_units)
        passed = met == len(one.required_units)
        share = met / len(one.required_units)
        yield ProbedUnit(one.probe_id, share, 1, () if passed else (answer,), passed)


def _missed(shelf: Shelf, intent: str, k: int, *, use_floor: bool) -> Missed:
    return Missed(intent, ranked(shelf, intent, use_floor=use_floor)[:k])
