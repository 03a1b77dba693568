"""Build the instruction set of an agent, current or at a past time, and cache the current one until it changes."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock

import msgspec

from holdfast.errors import StoreError, UserError
from holdfast.instructions.coverage.measure import find_critical_units
from holdfast.instructions.models import Agent, Manifest, ManifestEntry, UnitVersion
from holdfast.instructions.recall.selection import InstructionSet, UnitContent, make_content
from holdfast.instructions.settings import InstructionSettings
from holdfast.instructions.store import InstructionRecords
from holdfast.instructions.units.files import read_entry_file
from holdfast.instructions.uri import parse_unit_uri, version_sort_key
from holdfast.retrieval.encoders.registry import create_semantic_stage

CACHED_SETS_MAX = 2_000
ENCODINGS_UNUSED_MS_MAX = 30 * 86_400_000
"""Encodings of units that no index has contained for so long are forgotten."""
ENCODINGS_KEPT_AGAIN_MS = 86_400_000
"""How exactly the last use of an encoding is known, so that most indexes only read."""


class _CachedSet(msgspec.Struct, frozen=True):
    revision: int
    files: dict[str, str | None]
    instruction_set: InstructionSet


class KeptEncodings:
    """The encodings of one index in the store. Where that cannot be used, everything is encoded."""

    def __init__(self, records: InstructionRecords, now: Callable[[], int]) -> None:
        self._records = records
        self._now = now
        self._is_readable = self._is_writable = True

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        if not self._is_readable:
            return {}
        try:
            kept = self._records.encodings(keys)
        except (StoreError, UserError):
            self._is_readable = self._is_writable = False
            return {}
        # Also if a wrong clock has written a time to come.
        old = {key: vectors for key, (vectors, at) in kept.items() if abs(self._now() - at) > ENCODINGS_KEPT_AGAIN_MS}
        if old:
            self.keep(old)
        return {key: vectors for key, (vectors, _) in kept.items()}

    def keep(self, encodings: Mapping[bytes, bytes]) -> None:
        # An index of many units must not wait for the same lock again and again.
        if self._is_writable:
            now = self._now()
            try:
                self._records.keep_encodings(encodings, at=now, kept_since=now - ENCODINGS_UNUSED_MS_MAX)
            except (StoreError, UserError):
                self._is_writable = False


class InstructionSetCache:
    """`encoder` is the one in use, which may differ from the configured one until that has been certified."""

    def __init__(self, records: InstructionRecords, settings: InstructionSettings, now: Callable[[], int]) -> None:
        self._records = records
        self._settings = settings
        self._now = now
        self.encoder: str | None = settings.encoder
        self._lock = Lock()
        self._cached: OrderedDict[str, _CachedSet] = OrderedDict()

    def load_current(self, agent: Agent) -> InstructionSet | None:
        """None if the agent has no manifest. The agent's revision tells whether anything has changed.

        The clock is not used: one that lags behind would serve a replaced version until the next change.
        """
        with self._lock:
            cached = self._cached.get(agent.id)
            if cached is not None:
                self._cached.move_to_end(agent.id)
        if (
            cached is not None
            and cached.revision == agent.revision
            and self._files(agent, cached.instruction_set) == cached.files
        ):
            return cached.instruction_set
        manifest = self._records.manifest(agent.id)
        if manifest is None:
            return None
        instruction_set = self.build(agent, manifest, lifted=find_critical_units(self._records.coverage(agent.id)))
        with self._lock:
            self._cached[agent.id] = _CachedSet(agent.revision, self._files(agent, instruction_set), instruction_set)
            # Least recently used first: an agent that is not asked for costs only one rebuild later.
            while len(self._cached) > CACHED_SETS_MAX:
                self._cached.popitem(last=False)
        return instruction_set

    def build(
        self,
        agent: Agent,
        manifest: Manifest,
        *,
        at: int | None = None,
        lifted: Sequence[str] = (),
        instead: Mapping[str, UnitVersion] | None = None,
    ) -> InstructionSet:
        """A manifest with its texts as they are now or were at a time; `instead` overrides units by entry name."""
        pointers = {entry.name: unit_key(entry, agent) for entry in manifest.body}
        owners = sorted({owner for owner, _ in pointers.values() if owner})
        newest = select_newest_units(self._records.units_at(owners, at))
        contents: dict[str, UnitContent] = {}
        since = manifest.created_at
        for entry in manifest.body:
            unit = (instead or {}).get(entry.name) or newest.get(pointers[entry.name])
            if unit is not None:
                contents[entry.name] = UnitContent(
                    unit.content, unit.token_count, "stigmem", unit.uri, unit.version, unit.valid_until
                )
                since = max(since, unit.created_at)
            # fact_uri wins over path in coexistence (seed 003, 21.6.1); the file is the fallback.
            elif entry.path is not None and (text := self._read(agent, entry.path)) is not None:
                contents[entry.name] = make_content(text, "fallback_path")
        encodings = KeptEncodings(self._records, self._now)
        return InstructionSet(manifest, contents, encoder=self.encoder, encodings=encodings, lifted=lifted, since=since)

    def load_encoder(self) -> None:
        """Load now rather than at the first recall: reading the weights takes longer than many recalls."""
        if self.encoder:
            create_semantic_stage(self.encoder)

    def clear(self) -> None:
        with self._lock:
            self._cached.clear()

    def _files(self, agent: Agent, instruction_set: InstructionSet) -> dict[str, str | None]:
        entries = instruction_set.manifest.body
        return {entry.name: self._read(agent, entry.path) for entry in entries if entry.path is not None}

    def _read(self, agent: Agent, path: str) -> str | None:
        return read_entry_file(self._settings.root, agent.id, path)


def unit_key(entry: ManifestEntry, agent: Agent) -> tuple[str, str]:
    """Owner and name of the unit that an entry points at; empty for an entry with only a file."""
    if entry.fact_uri is None:
        return "", ""
    address = parse_unit_uri(entry.fact_uri)
    return (agent.id if address.owner in agent.names else address.owner), address.name


def select_newest_units(units: Sequence[UnitVersion]) -> dict[tuple[str, str], UnitVersion]:
    """By owner and name: the highest version, or the latest written if a version has no number."""
    by_unit: dict[tuple[str, str], list[UnitVersion]] = {}
    for unit in units:
        by_unit.setdefault((unit.agent_id, unit.name), []).append(unit)
    return {key: _newest(versions) for key, versions in by_unit.items()}


def _newest(units: Sequence[UnitVersion]) -> UnitVersion:
    numbered = [(key, unit) for unit in units if (key := version_sort_key(unit.version)) is not None]
    if len(numbered) == len(units):
        return max(numbered, key=lambda numbered_unit: numbered_unit[0])[1]
    return max(units, key=lambda unit: (unit.created_at, unit.uri))
