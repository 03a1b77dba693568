"""`Session`, the public entry point: create or resume a conversation, send messages, and inspect it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from types import TracebackType
from typing import Self, Unpack

from holdfast.canonical.blocks import Block, Message
from holdfast.canonical.reply import Delta
from holdfast.canonical.tools import ToolSpec
from holdfast.canonical.transcript import messages_of
from holdfast.canonical.usage import Usage
from holdfast.clock import new_ulid, system_clock
from holdfast.compaction.values import CompactionConfig, CompactionResult
from holdfast.economics.waiting import NextWake
from holdfast.engine.alive import Keeper
from holdfast.engine.checkpoints import standing_of
from holdfast.engine.compacting import hand_off_text
from holdfast.engine.conversation import Conversation
from holdfast.engine.keeping import let_go
from holdfast.engine.recovering import PlannedRecovery, Recoverer, RecoveryOutcome, Reported
from holdfast.engine.state import State, fold
from holdfast.engine.switch import SwitchQuote
from holdfast.engine.teaching import teach
from holdfast.engine.turn import Answer, run_turn
from holdfast.engine.warming import Prewarming, prewarm
from holdfast.errors import AbortedError, StoreError, UserError
from holdfast.events.bus import Listener
from holdfast.events.envelope import Event
from holdfast.events.log import Log
from holdfast.events.payloads import SessionEnded
from holdfast.events.payloads_recovery import Trigger
from holdfast.ledger.stats import PromptCacheStats, Tally, TokenStats, tallied
from holdfast.recovery.ledger import Incident
from holdfast.runtime.compacting import compact_open
from holdfast.runtime.compose import Pieces, bus_of, compose, first_events, models_of
from holdfast.runtime.given import UNDER_WAY, content_of, no_session, not_open, open_log
from holdfast.runtime.layering import ContextUse, context_use
from holdfast.runtime.options import Options, ProvidesWire, checked
from holdfast.runtime.recovering import recoverer_of, scenario_named, steps_given
from holdfast.runtime.switching import Reach, quote, switch
from holdfast.runtime.waking import CacheState, cached_of, wake_of

logger = logging.getLogger(__name__)

StreamItem = Delta | Event


class Session:
    """One conversation with a model. Use it with `async with`, which closes what the session opened.

    Every event is stored as it happens. `Session.resume(id)` continues the conversation in another process, at any
    later time, with the same prefix bytes.
    """

    def __init__(self, options: Options, *, resume: str | None = None) -> None:
        self._options = checked(options)
        self._resume = resume
        self._state: State | None = None
        self._bus = bus_of(self._options)
        self._composition: Pieces | None = None
        self._conversation: Conversation | None = None
        self._turn: asyncio.Task[Answer] | None = None
        self._keeper: Keeper | None = None
        self._tally = Tally()
        self._recoverer: Recoverer | None = None

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
            raise not_open(self._state.session_id)
        log, owns_log = open_log(self._options)
        try:
            state = self._load(log)
            composition = compose(self._options, state, log=log, bus=self._bus, owns_log=owns_log)
            conversation = Conversation(composition.parts, state)
            steps = steps_given(self._options)
            if composition.delegation is not None:
                composition.delegation.work_for(conversation)
            if self._resume is None:
                await conversation.record("system", *first_events(self._options, composition))
            self._recoverer = recoverer_of(conversation, steps, self._options)
        except BaseException:
            if owns_log:
                log.close()
            raise
        self._composition, self._conversation = composition, conversation
        if composition.parts.keep_alive is not None:
            self._keeper = Keeper(conversation, composition.parts.keep_alive)
        if self._options.get("prewarm"):
            await self._prewarm_or_close()
        return self

    async def _prewarm_or_close(self) -> None:
        try:
            outcome = await self.prewarm()
        except BaseException:
            await self.aclose()
            raise
        if not outcome.sent:
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
                await let_go(self._conversation, "the session is closed")
                with suppress(StoreError):
                    # Learned parameters only improve later plans; another session will learn them, so do not fail.
                    await teach(self._conversation)
        finally:
            self._state = self._conversation.state if self._conversation is not None else self._state
            self._conversation, self._composition = None, None
            if composition is not None:
                if composition.owns_wire:
                    await composition.parts.wire.aclose()
                if composition.owns_log:
                    composition.parts.log.close()

    async def send(self, message: str | Block | Sequence[Block]) -> Answer:
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

    async def prewarm(self) -> Prewarming:
        """Write tools and system prompt to the provider's cache now, so that the first message reads them from there.

        The cache write is billed even if no message follows. If prewarming is not possible, the result says why;
        nothing is raised.
        """
        if self._turn is not None and not self._turn.done():
            raise UserError("a turn is in progress in this session, and it writes the stable prefix itself")
        return await prewarm(self._open_conversation)

    def next_wake(self) -> NextWake:
        """When an agent that is about to wait should continue: while the cache is warm or after, with both prices."""
        return wake_of(self._open_conversation)

    def cache_state(self) -> CacheState:
        """What the provider has cached of this session, by the usage it last reported, pings included."""
        return cached_of(self._open_conversation)

    def context_use(self) -> ContextUse:
        """How many tokens each layer would take if a message were sent now, and the model's context window."""
        return context_use(self._open_conversation)

    def cache_stats(self) -> PromptCacheStats:
        """Cache statistics of this session so far: requests, hits, breaks, tokens read and written."""
        return self._update_tally().stats

    def get_token_stats(self) -> dict[str, TokenStats]:
        """For each provider used: tokens sent, how many of these were read from its cache, and tokens received."""
        return dict(self._update_tally().tokens)

    def _update_tally(self) -> Tally:
        newer = self._open_conversation.parts.log.read(self.id, after=self._tally.last_event_id)
        self._tally = tallied(self._tally, newer, models_of(self._open_composition.config))
        return self._tally

    def quote_switch(self, model: str) -> SwitchQuote:
        """What it would cost to continue with another model; nothing is changed."""
        return quote(self._open_composition, self._open_conversation, model)

    async def switch_model(self, model: str, *, allow_uncached: bool = False, **endpoint: Unpack[Reach]) -> SwitchQuote:
        """Use another model from the next message on; the history is transferred as far as its provider allows.

        Raises UserError, which names the price, for a model without prompt caching unless `allow_uncached`. The
        endpoint of another provider is the configured one, or that of `wire`, `base_url` and `api_key`.
        """
        conversation = self._open_conversation
        if self._turn is not None and not self._turn.done():
            raise UserError("a turn is in progress in this session; wait for it before you switch the model")
        quoted = self.quote_switch(model)
        options = checked({**self._session_endpoint(), **endpoint})
        self._composition = await switch(
            self._open_composition, conversation, model, options=options, allow_uncached=allow_uncached
        )
        return quoted

    def _session_endpoint(self) -> Options:
        # `wire`, `base_url` and `api_key` of the session's options are for its first provider, and must not send a
        # key to another one. A simulator stands in for every provider, so it stays in use.
        wire = self._options.get("wire")
        return {"wire": wire} if isinstance(wire, ProvidesWire) else {}

    async def compact(self, config: CompactionConfig | None = None) -> CompactionResult:
        """Replace all but the newest part of the conversation by a summary, from the next message on.

        The event log keeps the full history. A compaction that would not help is not done; the result says why.
        """
        return await compact_open(self._idle_conversation, config)

    def hand_off(self) -> str:
        """A summary of this session, as the first message of a new session that continues the work."""
        conversation = self._idle_conversation
        return hand_off_text(standing_of(conversation), conversation.parts.compaction)

    @property
    def _idle_conversation(self) -> Conversation:
        """The conversation. Raises UserError while a turn is in progress."""
        if self._turn is not None and not self._turn.done():
            raise UserError("a turn is in progress in this session; wait for it before you compact")
        return self._open_conversation

    async def end(self) -> None:
        """Record the end of this session; it can still be read and resumed."""
        await let_go(self._open_conversation, "the session is over")
        state, clock = self._open_conversation.state, self._open_conversation.parts.clock
        await teach(self._open_conversation)
        ended = SessionEnded("completed", state.turn_count, state.cost_usd, clock() - state.started_at)
        await self._open_conversation.record("system", ended)

    async def report_failure(self, scenario: str, *, incident: str = "", detail: str = "") -> Reported:
        """Report a known failure: its recovery recipe runs, waits for a person, or aborts the work.

        An abort cancels the turn in progress and raises `AbortedError`.
        """
        try:
            return await self._open_recoverer.report(scenario_named(scenario), incident=incident, detail=detail)
        except AbortedError:
            if self._turn is not None:
                self._turn.cancel()
            raise

    async def recover(
        self, scenario: str, *, incident: str = "", detail: str = "", trigger: Trigger = "automatic"
    ) -> RecoveryOutcome:
        """Run the recipe of a known failure from its first open step, unless its attempts are used up."""
        failure = scenario_named(scenario)
        return await self._open_recoverer.attempt(failure, incident=incident, detail=detail, trigger=trigger)

    def plan_recovery(self, scenario: str, *, incident: str = "", trigger: Trigger = "automatic") -> PlannedRecovery:
        """What `recover` would do now; a dry run."""
        return self._open_recoverer.dry_run(scenario_named(scenario), incident=incident, trigger=trigger)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """The failures reported in this session, with their recovery attempts."""
        return tuple(self._current_state.incidents.incidents.values())

    def subscribe(self, listener: Listener) -> Callable[[], None]:
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
        return messages_of(self._current_state.passages)

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
    def _current_state(self) -> State:
        """The state; also available after the session is closed."""
        state = self._conversation.state if self._conversation is not None else self._state
        if state is None:
            raise UserError("the session was never opened: use it as `async with Session.create(...) as session`")
        return state

    @property
    def _open_composition(self) -> Pieces:
        if self._composition is None:
            raise not_open(self._state.session_id if self._state else None)
        return self._composition

    @property
    def _open_conversation(self) -> Conversation:
        if self._conversation is None:
            raise not_open(self._state.session_id if self._state else None)
        return self._conversation

    @property
    def _open_recoverer(self) -> Recoverer:
        self._open_composition  # noqa: B018 - raises where the session is not open.
        assert self._recoverer is not None
        return self._recoverer

    def _begin(self, message: str | Block | Sequence[Block], emit: Callable[[Delta], None]) -> "asyncio.Task[Answer]":
        conversation = self._open_conversation
        if self._turn is not None and not self._turn.done():
            raise UserError(UNDER_WAY)
        content = content_of(message)
        self._open_composition.dimensions.hear(content)
        self._turn = asyncio.ensure_future(run_turn(conversation, content, emit))
        return self._turn

    def _load(self, log: Log) -> State:
        if self._resume is None:
            at = self._options.get("clock", system_clock)()
            return State(session_id=self._options.get("new_id", new_ulid)(at))
        state = fold(log.read(self._resume), self._resume)
        if not state.model:
            raise no_session(log, self._resume)
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
    return await compact_open(session._idle_conversation, config, seed=True)


def run_sync(*messages: str | Block | Sequence[Block], **options: Unpack[Options]) -> Answer:
    """For scripts: one session, the messages one after the other, the last answer. Not inside a running loop."""
    if not messages:
        raise UserError("run_sync needs at least one message")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise UserError("run_sync cannot be used inside a running event loop; use `async with Session.create(...)`")

    async def send_all() -> Answer:
        async with Session.create(**options) as session:
            for message in messages[:-1]:
                await session.send(message)
            return await session.send(messages[-1])

    return asyncio.run(send_all())


async def _cancel(turn: "asyncio.Task[Answer]") -> None:
    if not turn.done():
        turn.cancel()
        # A failure of the turn is raised where the turn itself is awaited.
        await asyncio.gather(turn, return_exceptions=True)
