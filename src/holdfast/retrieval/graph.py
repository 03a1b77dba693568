"""Which units belong together: they share a trigger, or one names the other."""

import math
import re
from collections.abc import Mapping

from holdfast.retrieval.lexical import trigger_keys
from holdfast.retrieval.units import Unit

# `name`, [[name]], [text](name) and addresses such as instruction:local/agent/name/v1. A bare word is no reference.
# Bounded, so that a text full of brackets takes no longer than another.
_REFERENCE = re.compile(
    r"`([^`\s]{1,400})`|\[\[([^\]\n]{1,400})\]\]|\]\(([^)\s]{1,400})\)|\b([a-z]+:[^\s`\])>\"']{1,600})"
)


class GraphStage:
    """A unit is reached from its best neighbour; what many share binds each of them less."""

    def __init__(self) -> None:
        self._sharing: dict[str, set[int]] = {}
        self._named: dict[str, set[int]] = {}
        self._naming: dict[str, set[int]] = {}
        self._keys: dict[int, tuple[frozenset[str], frozenset[str], frozenset[str]]] = {}

    def add(self, slot: int, unit: Unit) -> None:
        own = frozenset(name for name in (unit.id, unit.name) if name)
        keys = (trigger_keys(unit.triggers), own, references(f"{unit.description}\n{unit.content}") - own)
        self._keys[slot] = keys
        for table, names in zip(self._tables(), keys, strict=True):
            for name in names:
                table.setdefault(name, set()).add(slot)

    def remove(self, slot: int) -> None:
        for table, names in zip(self._tables(), self._keys.pop(slot), strict=True):
            for name in names:
                table[name].discard(slot)
                if not table[name]:
                    del table[name]

    def reach(self, fits: Mapping[int, float]) -> dict[int, float]:
        """For each unit with neighbours, how well the best of them fits, damped by how many there are."""
        reached: dict[int, float] = {}
        for members in self._sharing.values():
            if len(members) > 1:
                _pass_on(reached, fits, members, members)
        for name in self._naming.keys() & self._named.keys():
            _pass_on(reached, fits, self._naming[name], self._named[name])
            _pass_on(reached, fits, self._named[name], self._naming[name])
        return reached

    def links(self, slot: int) -> tuple[str, ...]:
        """Shared triggers and names by which a unit has neighbours, sorted."""
        shared, own, named = self._keys[slot]
        ties = [key for key in shared if len(self._sharing[key]) > 1]
        ties += [name for name in own if name in self._naming] + [name for name in named if name in self._named]
        return tuple(sorted(set(ties)))

    def _tables(self) -> tuple[dict[str, set[int]], dict[str, set[int]], dict[str, set[int]]]:
        return self._sharing, self._named, self._naming


def references(text: str) -> frozenset[str]:
    found = (next(part for part in match if part) for match in _REFERENCE.findall(text))
    return frozenset(name.rstrip(".,;") for name in found)


def _pass_on(reached: dict[int, float], fits: Mapping[int, float], givers: set[int], takers: set[int]) -> None:
    """Each taker gets the best fit among the other givers; the two best are all that must be known for that."""
    damping = 1 / (1 + math.log(max(1, len(givers - takers) or len(givers) - 1)))
    best = sorted(givers, key=fits.__getitem__, reverse=True)[:2]
    for taker in takers:
        giver = next((slot for slot in best if slot != taker), None)
        if giver is not None:
            reached[taker] = max(reached.get(taker, 0.0), fits[giver] * damping)
