"""`Session`, the public entry point: create or resume a conversation, send messages, and inspect it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from types import TracebackType
from typing import Self, Unpack

from holdfast.clock import new_ulid, system_clock
from holdfast.compaction.models import CompactionConfig, CompactionResult
from holdfast.economics.keep_alive import NextWake
from holdfast.engine.cache.explicit_cache import delete_explicit_cache
from holdfast.engine.cache.keep_alive import SessionKeepAlive
from holdfast.engine.cache.plan import record_learned
from holdfast.engine.cache.prewarm import PrewarmResult, prewarm
from holdfast.engine.compaction.compact import handoff_summary
from holdfast.engine.compaction.triggers import snapshot_conversation
from holdfast.engine.conversation import Conversation
from holdfast.engine.loop import TurnResult, message_content, run_turn
from holdfast.engine.model_switch import SwitchQuote
from holdfast.engine.recovery.runner import IncidentReport, PlannedRecovery, RecoveryOutcome, RecoveryRunner
from holdfast.engine.reducer import fold_events
from holdfast.engine.state import SessionState
from holdfast.errors import AbortedError, StoreError, UserError
from holdfast.events.log import Event, EventListener, EventLog
from holdfast.events.payloads.recovery import RecoveryTrigger
from holdfast.events.payloads.session import SessionEnded
from holdfast.ledger.cache.prompt_cache import CacheStatsState, PromptCacheStats, TokenStats, fold_cache_stats
from holdfast.recovery.attempts import Incident
from holdfast.runtime.compaction import compact_conversation
from holdfast.runtime.compose import Composition, compose_session, first_events, load_models, new_event_bus
from holdfast.runtime.context_report import ContextUse, measure_context
from holdfast.runtime.inputs import (
    TURN_IN_PROGRESS,
    not_open_error,
    open_session_log,
    unknown_session_error,
)
from holdfast.runtime.model_switch import ProviderEndpoint, quote_session_switch, switch_session
from holdfast.runtime.next_wake import SessionCacheState, plan_next_wake, session_cache_state
from holdfast.runtime.options import Options, TransportProvider, check_options
from holdfast.runtime.recovery import find_scenario, host_steps, session_recoverer
from holdfast.types.blocks import Block, Message
from holdfast.types.reply import Delta
from holdfast.types.tool_spec import ToolSpec
from holdfast.types.transcript import merge_into_messages
from holdfast.types.usage import Usage

logger = logging.getLogger(__name__)

StreamItem = Delta | Event


class Session:
    """One conversation with a model. Use it with `async with`, which closes what the session opened.

    Every event is stored as it happens. `Session.resume(id)` continues the conversation in another process, at any
    later time, with the same prefix bytes.
    """

    def __init__(self, options: Options, *, resume: str | None = None) -> None:
        self._options = check_options(options)
        self._resume = resume
        self._state: SessionState | None = None
        self._bus = new_event_bus(self._options)
        self._composition: Composition | None = None
        self._conversation: Conversation | None = None
        self._turn: asyncio.Task[TurnResult] | None = None
        self._keeper: SessionKeepAlive | None = None
        self._tally = CacheStatsState()
        self._recoverer: RecoveryRunner | None = None

    @classmethod
    def create(cls, **options: Unpack[Options]) -> Self:
        """A new session; nothing happens before it is entered. `Options` lists the keyword arguments."""
        return cls(options)

    @classmethod
    def resume(cls, session_id: str, **options: Unpack[Options]) -> Self:
        """Continue a stored session. The prompt is read from the store; the functions of its tools are passed here."""
        return cls(options, resume=session_id)

    async def __aenter__(self) -> Self:
        if self._conversation is not None:
            raise UserError("this session is open already")
        if self._state is not None:
            raise not_open_error(self._state.session_id)
        log, owns_log = open_session_log(self._options)
        try:
            state = self._load(log)
            composition = compose_session(self._options, state, log=log, bus=self._bus, owns_log=owns_log)
            conversation = Conversation(composition.deps, state)
            steps = host_steps(self._options)
            if composition.delegation is not None:
                composition.delegation.set_parent(conversation)
            if self._resume is None:
                await conversation.record("system", *first_events(self._options, composition))
            self._recoverer = session_recoverer(conversation, steps, self._options)
        except BaseException:
            if owns_log:
                log.close()
            raise
        self._composition, self._conversation = composition, conversation
        if composition.deps.keep_alive is not None:
            self._keeper = SessionKeepAlive(conversation, composition.deps.keep_alive)
        if self._options.get("prewarm"):
            await self._prewarm_or_close()
        return self

    async def _prewarm_or_close(self) -> None:
        try:
            outcome = await self.prewarm()
        except BaseException:
            await self.aclose()
            raise
        if not outcome.is_sent:
            logger.warning("the stable prefix was not prewarmed: %s", outcome.reason)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel a turn in progress, and close what this session opened."""
        if self._turn is not None:
            await _cancel(self._turn)
        if self._keeper is not None:
            await self._keeper.aclose()
        composition = self._composition
        try:
            if self._conversation is not None:
                await delete_explicit_cache(self._conversation, "the session is closed")
                with suppress(StoreError):
                    # Learned parameters only improve later plans; another session will learn them, so do not fail.
                    await record_learned(self._conversation)
        finally:
            self._state = self._conversation.state if self._conversation is not None else self._state
            self._conversation, self._composition = None, None
            if composition is not None:
                if composition.owns_transport:
                    await composition.deps.transport.aclose()
                if composition.owns_log:
                    composition.deps.log.close()

    async def send(self, message: str | Block | Sequence[Block]) -> TurnResult:
        """Send a message and return the answer once the turn is complete, including all tool calls."""
        return await self._begin(message, lambda delta: None)

    async def stream(self, message: str | Block | Sequence[Block]) -> AsyncGenerator[StreamItem, None]:
        """Send a message and yield deltas as they arrive and events as they are recorded.

        Closing the stream cancels the turn; use `contextlib.aclosing` to leave the loop early.
        """
        # None marks the end of the turn, after everything it has emitted.
        queue: asyncio.Queue[StreamItem | None] = asyncio.Queue()
        turn = self._begin(message, queue.put_nowait)
        stop = self.subscribe(queue.put_nowait)
        turn.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (item := await queue.get()) is not None:
                yield item
            await turn
        finally:
            stop()
            await _cancel(turn)

    async def prewarm(self) -> PrewarmResult:
        """Write tools and system prompt to the provider's cache now, so that the first message reads them from there.

        The cache write is billed even if no message follows. If prewarming is not possible, the result says why;
        nothing is raised.
        """
        if self._turn is not None and not self._turn.done():
            raise UserError("a turn is in progress in this session, and it writes the stable prefix itself")
        return await prewarm(self._open_conversation)

    def next_wake(self) -> NextWake:
        """When an agent that is about to wait should continue: while the cache is warm or after, with both prices."""
        return plan_next_wake(self._open_conversation)

    def cache_state(self) -> SessionCacheState:
        """What the provider has cached of this session, by the usage it last reported, pings included."""
        return session_cache_state(self._open_conversation)

    def context_use(self) -> ContextUse:
        """How many tokens each layer would take if a message were sent now, and the model's context window."""
        return measure_context(self._open_conversation)

    def cache_stats(self) -> PromptCacheStats:
        """Cache statistics of this session so far: requests, hits, breaks, tokens read and written."""
        return self._update_tally().stats

    def get_token_stats(self) -> dict[str, TokenStats]:
        """For each provider used: tokens sent, how many of these were read from its cache, and tokens received."""
        return dict(self._update_tally().tokens)

    def _update_tally(self) -> CacheStatsState:
        newer = self._open_conversation.deps.log.read(self.id, after=self._tally.last_event_id)
        self._tally = fold_cache_stats(self._tally, newer, load_models(self._open_composition.config))
        return self._tally

    def quote_switch(self, model: str) -> SwitchQuote:
        """What it would cost to continue with another model; nothing is changed."""
        return quote_session_switch(self._open_composition, self._open_conversation, model)

    async def switch_model(
        self, model: str, *, allow_uncached: bool = False, **endpoint: Unpack[ProviderEndpoint]
    ) -> SwitchQuote:
        """Use another model from the next message on; the history is transferred as far as its provider allows.

        Raises UserError, which names the price, for a model without prompt caching unless `allow_uncached`. The
        endpoint of another provider is the configured one, or that of `wire`, `base_url` and `api_key`.
        """
        conversation = self._open_conversation
        if self._turn is not None and not self._turn.done():
            raise UserError("a turn is in progress in this session; wait for it before you switch the model")
        quoted = self.quote_switch(model)
        options = check_options({**self._session_endpoint(), **endpoint})
        self._composition = await switch_session(
            self._open_composition, conversation, model, options=options, allow_uncached=allow_uncached
        )
        return quoted

    def _session_endpoint(self) -> Options:
        # `wire`, `base_url` and `api_key` of the session's options are for its first provider, and must not send a
        # key to another one. A simulator stands in for every provider, so it stays in use.
        wire = self._options.get("wire")
        return {"wire": wire} if isinstance(wire, TransportProvider) else {}

    async def compact(self, config: CompactionConfig | None = None) -> CompactionResult:
        """Replace all but the newest part of the conversation by a summary, from the next message on.

        The event log keeps the full history. A compaction that would not help is not done; the result says why.
        """
        return await compact_conversation(self._idle_conversation, config)

    def hand_off(self) -> str:
        """A summary of this session, as the first message of a new session that continues the work."""
        conversation = self._idle_conversation
        return handoff_summary(snapshot_conversation(conversation), conversation.deps.compaction)

    @property
    def _idle_conversation(self) -> Conversation:
        """The conversation. Raises UserError while a turn is in progress."""
        if self._turn is not None and not self._turn.done():
            raise UserError("a turn is in progress in this session; wait for it before you compact")
        return self._open_conversation

    async def end(self) -> None:
        """Record the end of this session; it can still be read and resumed."""
        await delete_explicit_cache(self._open_conversation, "the session is over")
        state, clock = self._open_conversation.state, self._open_conversation.deps.clock
        await record_learned(self._open_conversation)
        ended = SessionEnded("completed", state.turn_count, state.cost_usd, clock() - state.started_at)
        await self._open_conversation.record("system", ended)

    async def report_failure(self, scenario: str, *, incident: str = "", detail: str = "") -> IncidentReport:
        """Report a known failure: its recovery recipe runs, waits for a person, or aborts the work.

        An abort cancels the turn in progress and raises `AbortedError`.
        """
        try:
            return await self._open_recoverer.report(find_scenario(scenario), incident=incident, detail=detail)
        except AbortedError:
            if self._turn is not None:
                self._turn.cancel()
            raise

    async def recover(
        self, scenario: str, *, incident: str = "", detail: str = "", trigger: RecoveryTrigger = "automatic"
    ) -> RecoveryOutcome:
        """Run the recipe of a known failure from its first open step, unless its attempts are used up."""
        failure = find_scenario(scenario)
        return await self._open_recoverer.attempt(failure, incident=incident, detail=detail, trigger=trigger)

    def plan_recovery(
        self, scenario: str, *, incident: str = "", trigger: RecoveryTrigger = "automatic"
    ) -> PlannedRecovery:
        """What `recover` would do now; a dry run."""
        return self._open_recoverer.dry_run(find_scenario(scenario), incident=incident, trigger=trigger)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """The failures reported in this session, with their recovery attempts."""
        return tuple(self._current_state.incidents.incidents.values())

    def subscribe(self, listener: EventListener) -> Callable[[], None]:
        """Call `listener` with every event of this session once it is on the log; call the result to unsubscribe."""
        return self._bus.subscribe(listener)

    @property
    def id(self) -> str:
        return self._current_state.session_id

    @property
    def name(self) -> str | None:
        return self._current_state.name

    @property
    def model(self) -> str:
        return self._current_state.model

    @property
    def history(self) -> tuple[Message, ...]:
        """The conversation as the provider sees it, volatile text included."""
        return merge_into_messages(self._current_state.entries)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools in the current epoch's prompt."""
        return self._current_state.tools

    @property
    def turn_count(self) -> int:
        return self._current_state.turn_count

    @property
    def usage(self) -> Usage:
        return self._current_state.usage

    @property
    def cost(self) -> Decimal:
        """US dollars spent so far, by the catalog's prices."""
        return self._current_state.cost_usd

    @property
    def _current_state(self) -> SessionState:
        """The state; also available after the session is closed."""
        state = self._conversation.state if self._conversation is not None else self._state
        if state is None:
            raise UserError("the session was never opened: use it as `async with Session.create(...) as session`")
        return state

    @property
    def _open_composition(self) -> Composition:
        if self._composition is None:
            raise not_open_error(self._state.session_id if self._state else None)
        return self._composition

    @property
    def _open_conversation(self) -> Conversation:
        if self._conversation is None:
            raise not_open_error(self._state.session_id if self._state else None)
        return self._conversation

    @property
    def _open_recoverer(self) -> RecoveryRunner:
        self._open_composition  # noqa: B018 - raises where the session is not open.
        assert self._recoverer is not None
        return self._recoverer

    def _begin(
        self, message: str | Block | Sequence[Block], emit: Callable[[Delta], None]
    ) -> "asyncio.Task[TurnResult]":
        conversation = self._open_conversation
        if self._turn is not None and not self._turn.done():
            raise UserError(TURN_IN_PROGRESS)
        content = message_content(message)
        self._open_composition.knowledge_layers.set_query(content)
        self._turn = asyncio.ensure_future(run_turn(conversation, content, emit))
        return self._turn

    def _load(self, log: EventLog) -> SessionState:
        if self._resume is None:
            at = self._options.get("clock", system_clock)()
            return SessionState(session_id=self._options.get("new_id", new_ulid)(at))
        state = fold_events(log.read(self._resume), self._resume)
        if not state.model:
            raise unknown_session_error(log, self._resume)
        if not state.epoch:
            raise UserError(
                f"session {self._resume!r} has no prompt to continue: it was recorded from a wrapped client or pruned"
            )
        return state


def next_wake(session: Session) -> NextWake:
    """The same as `session.next_wake()`."""
    return session.next_wake()


async def compact_session(session: Session, config: CompactionConfig) -> CompactionResult:
    """Compact by the rules of seed 002, whatever the profile: a summary, and the last messages as they are."""
    return await compact_conversation(session._idle_conversation, config, seed=True)


def run_sync(*messages: str | Block | Sequence[Block], **options: Unpack[Options]) -> TurnResult:
    """For scripts: one session, the messages one after the other, the last answer. Not inside a running loop."""
    if not messages:
        raise UserError("run_sync needs at least one message")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise UserError("run_sync cannot be used inside a running event loop; use `async with Session.create(...)`")

    async def send_all() -> TurnResult:
        async with Session.create(**options) as session:
            for message in messages[:-1]:
                await session.send(message)
            return await session.send(messages[-1])

    return asyncio.run(send_all())


async def _cancel(turn: "asyncio.Task[TurnResult]") -> None:
    if not turn.done():
        turn.cancel()
        # A failure of the turn is raised where the turn itself is awaited.
        await asyncio.gather(turn, return_exceptions=True)
