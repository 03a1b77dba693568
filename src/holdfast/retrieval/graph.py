"""Link scores: units are linked if they share a trigger or if one names the other."""

import math
import re
from collections.abc import Mapping

from holdfast.retrieval.lexical import trigger_keys
from holdfast.retrieval.units import Unit

# `name`, [[name]], [text](name) and addresses such as instruction:local/agent/name/v1. A bare word is no reference.
# Lengths are bounded, so that a text full of brackets cannot slow the match down.
_REFERENCE = re.compile(
    r"`([^`\s]{1,400})`|\[\[([^\]\n]{1,400})\]\]|\]\(([^)\s]{1,400})\)|\b([a-z]+:[^\s`\])>\"']{1,600})"
)


class GraphStage:
    """A unit gets the score of its best neighbour, damped by the number of units that share the link."""

    def __init__(self) -> None:
        self._by_trigger: dict[str, set[int]] = {}
        self._by_name: dict[str, set[int]] = {}
        self._by_reference: dict[str, set[int]] = {}
        self._keys: dict[int, tuple[frozenset[str], frozenset[str], frozenset[str]]] = {}

    def add(self, slot: int, unit: Unit) -> None:
        names_of_unit = frozenset(name for name in (unit.id, unit.name) if name)
        keys = (
            trigger_keys(unit.triggers),
            names_of_unit,
            references(f"{unit.description}\n{unit.content}") - names_of_unit,
        )
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
        """For each unit with neighbours, the score of the best one, damped by how many there are."""
        reached: dict[int, float] = {}
        for members in self._by_trigger.values():
            if len(members) > 1:
                _propagate(reached, fits, members, members)
        for name in self._by_reference.keys() & self._by_name.keys():
            _propagate(reached, fits, self._by_reference[name], self._by_name[name])
            _propagate(reached, fits, self._by_name[name], self._by_reference[name])
        return reached

    def links(self, slot: int) -> tuple[str, ...]:
        """The shared triggers and names that link a unit to others, sorted."""
        triggers, names, referenced = self._keys[slot]
        keys = [key for key in triggers if len(self._by_trigger[key]) > 1]
        keys += [name for name in names if name in self._by_reference] + [
            name for name in referenced if name in self._by_name
        ]
        return tuple(sorted(set(keys)))

    def _tables(self) -> tuple[dict[str, set[int]], dict[str, set[int]], dict[str, set[int]]]:
        return self._by_trigger, self._by_name, self._by_reference


def references(text: str) -> frozenset[str]:
    names = (next(part for part in match if part) for match in _REFERENCE.findall(text))
    return frozenset(name.rstrip(".,;") for name in names)


def _propagate(reached: dict[int, float], fits: Mapping[int, float], sources: set[int], targets: set[int]) -> None:
    """Each target gets the best score among the other sources; the two best sources suffice for that."""
    # 1 / (1 + ln n), with n the number of sources other than the target itself.
    damping = 1 / (1 + math.log(max(1, len(sources - targets) or len(sources) - 1)))
    best = sorted(sources, key=fits.__getitem__, reverse=True)[:2]
    for target in targets:
        source = next((slot for slot in best if slot != target), None)
        if source is not None:
            reached[target] = max(reached.get(target, 0.0), fits[source] * damping)
