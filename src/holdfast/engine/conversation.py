"""One conversation: its state, its dependencies, and the single path by which events are recorded."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.schema import Model, Price
from holdfast.catalog.token_count import count_block_tokens
from holdfast.clock import Clock, NewId, Sleep
from holdfast.compaction.models import DEFAULT_CONFIG, CompactionConfig
from holdfast.engine.cache.response_cache import ResponseCacheConfig
from holdfast.engine.cache.single_flight import SingleFlight
from holdfast.engine.compaction.history import LoggedMessages
from holdfast.engine.reducer import apply_event
from holdfast.engine.request_draft import RequestDraft, build_sent_view, plan_injections
from holdfast.engine.state import SessionState
from holdfast.engine.tools.dispatch import Toolbox
from holdfast.events.log import Actor, Event, EventBus, EventLog
from holdfast.events.payloads.cache import CacheControls, CacheControlsApplied
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed
from holdfast.events.payloads.session import TurnStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.layers.assemble import assemble_prompt
from holdfast.planning.explicit_cache import ExplicitCacheConfig
from holdfast.planning.learned import NOTHING_LEARNED, LearnedParameters, LearningScope
from holdfast.providers.adapter import Adapter
from holdfast.providers.wire_request import Transport
from holdfast.recovery.scenarios import StepName
from holdfast.types.prompt import LayerText, Parameters

VolatileSource = Callable[[], Awaitable[tuple[LayerText, ...]]]
"""The current text of the volatile layers."""

OverflowStep = Callable[["Conversation"], Awaitable[str]]
"""Shrinks a conversation's view by recording events, and returns what it did."""

FindNewerPins = Callable[[tuple[LayerText, ...]], tuple[LayerText, ...] | None]
"""The texts that a new epoch would pin instead of the given ones; None if they are the same."""

LookUpControls = Callable[[str], Awaitable[CacheControls]]
"""Looks up the cache settings of a session and the global ones."""

STEPS_MAX = 50
"""Model calls per turn."""


class PrefixRefresh(msgspec.Struct, frozen=True):
    """How a session detects that its pinned texts have changed, and whether it checks before every turn."""

    find_newer_pins: FindNewerPins
    each_turn: bool = False


class KeepAlive(msgspec.Struct, frozen=True):
    """Settings of keep-alive: the budget for all pings of a session, and how to wait."""

    usd_max: Decimal
    sleep: Sleep


class Dependencies(msgspec.Struct, frozen=True):
    """Everything that a conversation is given from outside.

    `diagnoses_misses` lets it ask the provider for the reason of a cache miss. `learned` are the parameters that
    earlier sessions learned in the same `learning_scope` (model, route, workspace). `account` identifies whose provider
    cache it is, for single flight and the response cache. `overflow_steps` are tried in the recipe's order when a
    prompt does not fit the context window.
    """

    log: EventLog
    transport: Transport
    adapter: Adapter
    model: Model
    pricing_version: str
    toolbox: Toolbox
    volatile: VolatileSource
    parameters: Parameters
    clock: Clock
    new_id: NewId
    bus: EventBus
    steps_max: int = STEPS_MAX
    explicit_cache: ExplicitCacheConfig = ExplicitCacheConfig()
    spend_max_usd: Decimal | None = None
    learned: LearnedParameters = NOTHING_LEARNED
    learning_scope: LearningScope = LearningScope("", "")
    keep_alive: KeepAlive | None = None
    single_flight: SingleFlight | None = None
    account: str = ""
    diagnoses_misses: bool = True
    response_cache: ResponseCacheConfig | None = None
    overflow_steps: Mapping[StepName, OverflowStep] = {}
    simulated: bool = False
    controls: LookUpControls | None = None
    compaction: CompactionConfig = DEFAULT_CONFIG
    prefix_refresh: PrefixRefresh | None = None


def apply_cache_settings(deps: Dependencies, control: CacheControlsApplied) -> Dependencies:
    """The dependencies with the user's cache settings applied; a model with caching off counts as unable to cache."""
    model, explicit_cache = deps.model, deps.explicit_cache
    if not control.caching_enabled:
        model = replace(model, supports_prompt_caching=False)
    if control.explicit_ttl_seconds is not None:
        explicit_cache = replace(explicit_cache, ttl_seconds=control.explicit_ttl_seconds)
    return replace(deps, model=model, explicit_cache=explicit_cache)


class Conversation:
    """A conversation whose state changes by events alone. They are on the log before anything else happens outside:
    `stage` keeps events for the next `record`, so that one commit holds what belongs together.

    `deps` are the dependencies in `base_deps` with the user's cache settings applied. `logged_state` is the state
    without staged events. `children` are delegated conversations that spend this one's budget; `reserved_usd` is
    reserved for the call in progress. `messages_saved` are in the stored snapshot of the state.
    """

    def __init__(self, deps: Dependencies, state: SessionState, *, parent: "Conversation | None" = None) -> None:
        self.base_deps = deps
        self.deps = apply_cache_settings(deps, state.cache_settings)
        self.state = state
        self.parent = parent
        self.children: list[Conversation] = []
        self.reserved_usd = Decimal(0)
        self.opened_at = deps.clock()
        self.messages_saved = 0
        self._recording = asyncio.Lock()
        self._staged: tuple[Event, ...] = ()
        self.logged_state = state
        self.logged = LoggedMessages(lambda after: self.deps.log.read(self.state.session_id, after=after))
        self.draft = self.new_draft()

    @property
    def parameters(self) -> Parameters:
        """The request parameters, with the cache key that sessions with the same prefix share."""
        base, parent = self.deps.parameters, self.state.parent
        owner = self.state.cache_settings.cache_key or (parent.prefix_session_id if parent else self.state.session_id)
        fields = self.deps.adapter.session_fields(self.deps.model, owner)
        return replace(base, extra=(*base.extra, *fields)) if fields else base

    def switch_deps(self, deps: Dependencies) -> None:
        """Continue with other dependencies; the encoded draft is discarded."""
        self.base_deps = deps
        self.deps = apply_cache_settings(deps, self.state.cache_settings)
        self.draft = self.new_draft()

    def new_draft(self) -> RequestDraft:
        """An empty request draft for the current provider."""
        factor = self.deps.model.tokens_factor
        return RequestDraft(self.deps.adapter, lambda data: count_block_tokens(data, factor))

    def assemble_request(self) -> None:
        """Bring the draft up to date: the prompt that the state describes, encoded for the provider."""
        self.draft.update(assemble_prompt(build_sent_view(self.state)))

    @property
    def request_tokens(self) -> int:
        """Estimated tokens of the request as it was last assembled."""
        return self.state.calibration.correct_estimate(self.draft.buffer.tokens_total)

    async def inject_changed_context(self) -> None:
        """Record changed volatile text in the middle of a turn."""
        if self.state.layout == "seed":
            # Changing the system prompt within a turn would invalidate the turn's thinking.
            return
        early, late = plan_injections(self.state, await self.deps.volatile())
        if early or late:
            await self.record("system", *early, *late)

    async def stage(self, actor: Actor, *payloads: AnyPayload) -> None:
        """Apply events now and append them together with the next ones; only for what may be lost in a crash until
        then. If that append fails, the state is again that of the log.
        """
        async with self._recording:
            self._staged += self._apply(self._events(actor, payloads))

    async def flush(self) -> None:
        """Append staged events, before the log is read or something slow begins."""
        if self._staged:
            await self.record("system")

    async def record(self, actor: Actor, *payloads: AnyPayload) -> None:
        """Append events to the log and apply them; a cancellation is raised only once log and state agree."""
        writing = asyncio.ensure_future(self._write(actor, payloads))
        cancelled: asyncio.CancelledError | None = None
        while not writing.done():
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError as error:
                cancelled = error
        writing.result()
        if cancelled is not None:
            raise cancelled

    async def _write(self, actor: Actor, payloads: tuple[AnyPayload, ...]) -> None:
        # Tools record concurrently, and each event refers to the one before it.
        async with self._recording:
            new_events = self._events(actor, payloads)
            events, self._staged = (*self._staged, *new_events), ()
            try:
                await asyncio.wrap_future(self.deps.log.append(events))
            except BaseException:
                self.state = self.logged_state
                raise
            self._apply(new_events)
            self.logged_state = self.state
            self.deps.bus.publish(events)

    def _apply(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        for event in events:
            self.state = apply_event(self.state, event)
            if isinstance(event.payload, CacheControlsApplied):
                self.deps = apply_cache_settings(self.base_deps, event.payload)
            if isinstance(event.payload, LlmCallCompleted | LlmCallFailed):
                # The call is now part of `state.cost_usd`.
                self.reserved_usd = Decimal(0)
        return events

    def _events(self, actor: Actor, payloads: tuple[AnyPayload, ...]) -> tuple[Event, ...]:
        at = self.deps.clock()
        turn_id = self.state.turn.id if self.state.turn else None
        parent = self.state.last_event_id
        events = []
        for payload in payloads:
            id = self.deps.new_id(at)
            if isinstance(payload, TurnStarted):
                turn_id = id
            events.append(Event(id, at, self.state.session_id, actor, payload, turn_id, parent))
            parent = id
        return tuple(events)

    def price(self, prompt_tokens: int) -> Price:
        return price_at(self.deps.model, utc_date(self.deps.clock()), prompt_tokens)
