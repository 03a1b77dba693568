"""The dependencies that every route uses: log, records, model catalog, clock, and per-process state."""

import asyncio
from pathlib import Path
from typing import Protocol

from holdfast.catalog.lookup import Models, pricing_version
from holdfast.clock import Clock, NewId, new_ulid, system_clock
from holdfast.events.log import Log
from holdfast.events.records import Records
from holdfast.instructions.library import Library
from holdfast.ledger.figures import KeepsFigures
from holdfast.ledger.tables import KeepsTables
from holdfast.service.cache_states import CacheStates
from holdfast.service.counting import Counted
from holdfast.service.hub import Hub
from holdfast.service.watched import WatchedSessions
from holdfast.sources.skills.found import SkillRoot


class ServedLog(Log, KeepsTables, KeepsFigures, Protocol):
    """A log with analytics queries."""


class Sample(Protocol):
    """Sample sessions played on demand, so that a new user's dashboard is not empty."""

    @property
    def playing(self) -> bool: ...

    def start(self) -> None:
        """Starts playing in the background; does nothing if it is already playing."""


class Service:
    """One per process. Only what is in the store outlives it."""

    def __init__(
        self,
        log: ServedLog,
        records: Records,
        models: Models,
        *,
        clock: Clock = system_clock,
        new_id: NewId = new_ulid,
        require_keys: bool = False,
        simulated: bool = False,
        library: Library | None = None,
    ) -> None:
        self.log = log
        self.records = records
        self.models = models
        self.pricing_version = pricing_version(models)
        self.clock = clock
        self.new_id = new_id
        self.require_keys = require_keys
        self.library = library
        self.counted = Counted()
        self.simulated = simulated
        self.cache_states = CacheStates(log, models)
        self.watched = WatchedSessions(log, models)
        self.hub = Hub(records, clock)
        self.sample: Sample | None = None
        # Sample instructions are readable without a key on this machine; instructions of real agents are not.
        self.keeps_sample_only = False
        self.workspace: Path | None = None
        self.skill_roots: tuple[SkillRoot, ...] = ()
        self._has_keys = False

    async def needs_keys(self) -> bool:
        """Whether requests without a key are refused. Once a key exists, that stays so for the process's lifetime."""
        if not (self.require_keys or self._has_keys):
            self._has_keys = await asyncio.to_thread(self.records.has_keys)
        return self.require_keys or self._has_keys
