"""Which manifest and which texts an agent has now, or had at a time; kept ready while nothing changes."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from threading import Lock

import msgspec

from holdfast.instructions.addresses import read_address, version_numbers
from holdfast.instructions.coverage import critical_units
from holdfast.instructions.paths import read_path
from holdfast.instructions.recall import Content, Shelf, text_content
from holdfast.instructions.records import InstructionRecords
from holdfast.instructions.settings import InstructionSettings
from holdfast.instructions.values import Agent, Entry, Manifest, UnitVersion
from holdfast.retrieval.meaning import MeaningStage, meaning_stage

SHELVES_MAX = 2_000


class _Kept(msgspec.Struct, frozen=True):
    revision: int
    files: dict[str, str | None]
    shelf: Shelf


class Shelves:
    """`encoder` is the one in use, which need not be the one that was configured."""

    def __init__(self, records: InstructionRecords, settings: InstructionSettings) -> None:
        self._records = records
        self._settings = settings
        self.encoder: str | None = settings.encoder
        self._lock = Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def current(self, agent: Agent) -> Shelf | None:
        """None where the agent has no manifest. One look at the agent's row tells whether anything has changed.

        No clock is asked: one that is behind would keep what was replaced a moment ago until the next change.
        """
        with self._lock:
            kept = self._kept.get(agent.id)
            if kept is not None:
                self._kept.move_to_end(agent.id)
        if kept is not None and kept.revision == agent.revision and self._files(agent, kept.shelf) == kept.files:
            return kept.shelf
        manifest = self._records.manifest(agent.id)
        if manifest is None:
            return None
        shelf = self.made(agent, manifest, lifted=critical_units(self._records.coverage(agent.id)))
        with self._lock:
            self._kept[agent.id] = _Kept(agent.revision, self._files(agent, shelf), shelf)
            while len(self._kept) > SHELVES_MAX:
                self._kept.popitem(last=False)
        return shelf

    def made(
        self,
        agent: Agent,
        manifest: Manifest,
        *,
        at: int | None = None,
        lifted: Sequence[str] = (),
        instead: Mapping[str, UnitVersion] | None = None,
    ) -> Shelf:
        """The texts behind a manifest as they are, or were at a time; `instead` are units to be tried, by name."""
        pointed = {entry.name: owner_of(entry, agent) for entry in manifest.body}
        owners = sorted({owner for owner, _ in pointed.values() if owner})
        newest = newest_units(self._records.units_at(owners, at))
        contents: dict[str, Content] = {}
        since = manifest.created_at
        for entry in manifest.body:
            unit = (instead or {}).get(entry.name) or newest.get(pointed[entry.name])
            if unit is not None:
                contents[entry.name] = unit_content(unit)
                since = max(since, unit.created_at)
            elif entry.path is not None and (text := self._read(agent, entry.path)) is not None:
                contents[entry.name] = text_content(text, "fallback_path")
        return Shelf(manifest, contents, meaning=partial(_stage, self.encoder), lifted=lifted, since=since)

    def load_encoder(self) -> None:
        """Now rather than when the first is asked: reading the weights takes longer than many recalls."""
        _stage(self.encoder)

    def forget(self) -> None:
        with self._lock:
            self._kept.clear()

    def _files(self, agent: Agent, shelf: Shelf) -> dict[str, str | None]:
        return {entry.name: self._read(agent, entry.path) for entry in shelf.manifest.body if entry.path is not None}

    def _read(self, agent: Agent, path: str) -> str | None:
        return read_path(self._settings.root, agent.id, path)


def owner_of(entry: Entry, agent: Agent) -> tuple[str, str]:
    """Whose unit an entry means, and what it is called; empty for an entry that is a file only."""
    if entry.fact_uri is None:
        return "", ""
    address = read_address(entry.fact_uri)
    own = address.owner in (agent.id, agent.shortname)
    return (agent.id if own else address.owner), address.name


def newest_units(units: Sequence[UnitVersion]) -> dict[tuple[str, str], UnitVersion]:
    """By owner and name: the highest version, or the youngest where versions have no order."""
    found: dict[tuple[str, str], list[UnitVersion]] = {}
    for unit in units:
        found.setdefault((unit.agent_id, unit.name), []).append(unit)
    return {key: _newest(some) for key, some in found.items()}


def _newest(units: Sequence[UnitVersion]) -> UnitVersion:
    numbered = [(numbers, unit) for unit in units if (numbers := version_numbers(unit.version)) is not None]
    if len(numbered) == len(units):
        return max(numbered, key=lambda one: one[0])[1]
    return max(units, key=lambda unit: (unit.created_at, unit.uri))


def unit_content(unit: UnitVersion) -> Content:
    return Content(unit.content, unit.token_count, "stigmem", unit.uri, unit.version, unit.valid_until)


def _stage(encoder: str | None) -> MeaningStage | None:
    return meaning_stage(encoder) if encoder else None
