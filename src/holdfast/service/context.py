"""What every route uses: log, records, model catalog, clock, and the state that one process holds in memory."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec

from holdfast.catalog.lookup import Models, pricing_version
from holdfast.clock import Clock, system_clock
from holdfast.engine.leases import Job
from holdfast.errors import UserError
from holdfast.events.log import LogPosition, SessionRow
from holdfast.events.records import StoreRecords
from holdfast.gateway.http.client_addresses import ClientConnections, FailedKeys
from holdfast.instructions.context import InstructionContext
from holdfast.ledger.analytics.queries import PAGE_MAX, format_session_titles
from holdfast.ledger.cache.state import FOLDED_EVENT_TYPES, CacheState, fold_cache_state
from holdfast.ledger.cache.verdicts import Verdict
from holdfast.service.api.prompt_view import PromptViews
from holdfast.service.http.batches import BatchedCalls
from holdfast.service.live.hub import EventHub
from holdfast.service.telemetry.prometheus import RequestMetrics
from holdfast.sources.skills.discovery import SkillRoot
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.spending_cache import SpendingCache

if TYPE_CHECKING:
    from holdfast.service.http.routes import ApiError

Item = TypeVar("Item")
Result = TypeVar("Result")
CALLS_TOGETHER_MAX = 32
"""Of recalls, and of checks of keys: a longer batch would delay its first call more than it saves."""

SIMULATED_HEADER = "holdfast-simulated"
"""A request with `include` in this header counts simulated sessions too: the switch of the dashboard."""

INCLUDES_SIMULATED: ContextVar[bool] = ContextVar("includes_simulated", default=False)
"""Whether the request that is being answered has that header."""

QUOTES_PROMPT: ContextVar[bool] = ContextVar("quotes_prompt", default=False)
"""Whether the caller may read prompts, so that titles of sessions have the first words of their first requests."""

SESSIONS_MAX = 10_000
"""How many sessions are held in memory; an evicted one is read again from its first event."""

EVENTS_AT_ONCE = 10_000
"""How many events of several sessions are read by one statement, and held in memory."""


class Sample(Protocol):
    """Sample sessions played on demand, so that a new user's dashboard is not empty."""

    @property
    def is_playing(self) -> bool: ...

    def start(self) -> None:
        """Starts playing in the background; does nothing if it is already playing."""


class AppContext:
    """One per process. Only what is in the store outlives it."""

    def __init__(
        self,
        log: DatabaseEventLog,
        records: StoreRecords,
        models: Models,
        *,
        clock: Clock = system_clock,
        require_keys: bool = False,
        simulated: bool = False,
        instructions: InstructionContext | None = None,
    ) -> None:
        self.log = log
        self.records = records
        self.models = models
        self.pricing_version = pricing_version(models)
        self.clock = clock
        self.require_keys = require_keys
        self.instructions = instructions
        self.request_metrics = RequestMetrics()
        self.connections = ClientConnections()
        self.failed_keys = FailedKeys()
        self._add_counters()
        self.encode_refusal: Callable[[str, ApiError], tuple[int, bytes]]
        """Status and body of a refusal in the format of the path's clients; set by `make_app`."""
        self.is_simulating = simulated
        self.cache_states = CacheStateStore(log, models)
        self.spending_cache = SpendingCache(None, models)
        self.prompt_views = PromptViews(log, models)
        self.hub = EventHub(records, clock)
        self.sample: Sample | None = None
        self.jobs: list[Job] = []
        """What all replicas together do once in a time, beside measuring coverage."""
        self.warnings: list[Callable[[], str]] = []
        """Each returns why the service is degraded, or an empty text."""
        self.read_other_metrics: Callable[[], Sequence[Iterable[str]]] = tuple
        """The metrics of the other workers that serve this port."""
        # Sample instructions are readable without a key on this machine; instructions of real agents are not.
        self.has_sample_only = False
        self.workspace: Path | None = None
        self.skill_roots: tuple[SkillRoot, ...] = ()
        self._has_keys = False
        self._batches: dict[object, BatchedCalls[Any, Any]] = {}

    def _add_counters(self) -> None:
        add, failed = self.request_metrics.add_counter, self.failed_keys
        add("holdfast_failed_keys_total", "Requests with a wrong key.", lambda: failed.failed_count)
        add(
            "holdfast_slowed_requests_total",
            "Requests that were refused because their address had sent too many wrong keys.",
            lambda: failed.refused_count,
        )
        add(
            "holdfast_refused_connections_total",
            "Requests that were refused because their address, or all clients, had too many connections or requests.",
            lambda: self.connections.refused_count,
        )

    def find_batches(
        self, name: object, run_all: Callable[[Sequence[Item]], Sequence[Result | Exception]]
    ) -> BatchedCalls[Item, Result]:
        """The calls of this name, which wait for one another; created with `run_all` at first use."""
        return self._batches.setdefault(name, BatchedCalls(run_all, size_max=CALLS_TOGETHER_MAX))

    @property
    def simulated(self) -> bool:
        """Whether views include simulated sessions: where the service itself simulates, or the request asks for it."""
        return self.is_simulating or INCLUDES_SIMULATED.get()

    @property
    def quotes_prompt(self) -> bool:
        return QUOTES_PROMPT.get()

    def format_titles(self, rows: Iterable[SessionRow]) -> dict[str, str]:
        """By id, and all different."""
        return format_session_titles(rows, quotes_prompt=self.quotes_prompt)

    def find_titles(self, session_ids: Iterable[str]) -> dict[str, str]:
        """By id, and all different; the id itself for a session that is not stored any more."""
        ids, find_rows = tuple(dict.fromkeys(session_ids)), self.log.analytics_queries().find_session_rows
        rows = (row for start in range(0, len(ids), PAGE_MAX) for row in find_rows(ids[start : start + PAGE_MAX]))
        return dict(zip(ids, ids, strict=True)) | self.format_titles(rows)

    async def needs_keys(self) -> bool:
        """Whether requests without a key are refused. Once a key exists, that stays so for the process's lifetime."""
        if not (self.require_keys or self._has_keys):
            self._has_keys = await asyncio.to_thread(self.records.has_keys)
        return self.require_keys or self._has_keys


class SessionCache(msgspec.Struct, frozen=True):
    """A session's cache state, and the verdict on its last call."""

    state: CacheState
    verdict: Verdict | None = None


class CacheStateStore:
    """Thread-safe."""

    def __init__(self, log: DatabaseEventLog, models: Models) -> None:
        self._log = log
        self._models = models
        self._lock = Lock()
        self._folded: OrderedDict[str, _FoldedState] = OrderedDict()

    def list_newest(self, *, limit: int, skip: int = 0, simulated: bool) -> tuple[SessionCache, ...]:
        """Newest activity first; `simulated` ones are included only where all views include them."""
        queries = self._log.analytics_queries()
        page = queries.session_costs(order="recency", limit=limit, skip=skip, simulated=simulated)
        ids = [session.row.id for session in page]
        verdicts, states = queries.last_verdicts(ids), self._get_states(ids)
        return tuple(SessionCache(states[id], verdicts.get(id)) for id in ids)

    def get_cache(self, session_id: str) -> SessionCache:
        verdicts = self._log.analytics_queries().last_verdicts([session_id])
        return SessionCache(self.get_state(session_id), verdicts.get(session_id))

    def get_state(self, session_id: str) -> CacheState:
        """A session without events has no model."""
        return self._get_states([session_id])[session_id]

    def _get_states(self, session_ids: Sequence[str]) -> dict[str, CacheState]:
        """Reads what is new of the sessions whose logs have changed, with few statements however many there are."""
        with self._lock:
            # Read before the events: one that comes in between makes the next call look again.
            positions = self._log.read_positions(session_ids)
            states: dict[str, CacheState] = {}
            changed: dict[str, LogPosition | None] = {}
            for id in session_ids:
                # Pop and reinsert: the dict's order is the order of use.
                folded = self._folded.pop(id, None)
                states[id] = folded.state if folded is not None else CacheState(id)
                if folded is not None and folded.position == positions.get(id):
                    self._folded[id] = folded
                else:
                    changed[id] = positions.get(id)
            for group in _group_by_events(changed):
                before = tuple(states[id] for id in group)
                for state in self._advance(before) if len(group) > 1 else (self._advance_lazily(*before),):
                    states[state.session_id] = state
                    if state.last_event_id is not None:
                        self._folded[state.session_id] = _FoldedState(state, changed[state.session_id])
            while len(self._folded) > SESSIONS_MAX:
                self._folded.popitem(last=False)
            return states

    def _advance_lazily(self, before: CacheState) -> CacheState:
        try:
            events = self._log.read(before.session_id, after=before.last_event_id, types=FOLDED_EVENT_TYPES)
            return fold_cache_state(before, events, self._models)
        except UserError:
            # The session was deleted and created again, so our last event id is unknown.
            return self._advance_lazily(CacheState(before.session_id))

    def _advance(self, before: Sequence[CacheState]) -> Iterator[CacheState]:
        after = {state.session_id: state.last_event_id for state in before}
        events = self._log.read_sessions(after, types=FOLDED_EVENT_TYPES)
        for state in before:
            if state.session_id in events:
                yield fold_cache_state(state, events[state.session_id], self._models)
            else:
                yield self._advance_lazily(state)


class _FoldedState(NamedTuple):
    """A state, and where the log ended when it was read; None if it was empty."""

    state: CacheState
    position: LogPosition | None


def _group_by_events(positions: Mapping[str, LogPosition | None]) -> Iterator[tuple[str, ...]]:
    """The sessions in groups of at most `EVENTS_AT_ONCE` events, or of one session."""
    group: list[str] = []
    events = 0
    for id, position in positions.items():
        count = position.event_count if position is not None else 0
        if group and events + count > EVENTS_AT_ONCE:
            yield tuple(group)
            group, events = [], 0
        group.append(id)
        events += count
    if group:
        yield tuple(group)
