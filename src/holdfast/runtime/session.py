"""The public door: a session that is created or resumed, spoken to, and read."""

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
    """One conversation with a model. Use it as `async with`: what it opened is closed at the end.

    Everything is kept in the store as it happens; `Session.resume(id)` goes on in another process, on another day,
    with the same bytes in front.
    """

    def __init__(self, options: Options, *, resume: str | None = None) -> None:
        self._options = checked(options)
        self._resume = resume
        self._state: State | None = None
        self._bus = bus_of(self._options)
        self._pieces: Pieces | None = None
        self._talk: Conversation | None = None
        self._turn: asyncio.Task[Answer] | None = None
        self._keeper: Keeper | None = None
        self._tally = Tally()
        self._recoverer: Recoverer | None = None

    @classmethod
    def create(cls, **options: Unpack[Options]) -> Self:
        """A new session; nothing happens before it is entered. See `Options` for what can be given."""
        return cls(options)

    @classmethod
    def resume(cls, session_id: str, **options: Unpack[Options]) -> Self:
        """Go on with a stored session: its prompt is the stored one, its tools' functions are those given here."""
        return cls(options, resume=session_id)

    async def __aenter__(self) -> Self:
        if self._talk is not None:
            raise UserError("this session is open already")
        if self._state is not None:
            raise not_open(self._state.session_id)
        log, owned = open_log(self._options)
        try:
            state = self._load(log)
            pieces = compose(self._options, state, log=log, bus=self._bus, owns_log=owned)
            talk = Conversation(pieces.parts, state)
            steps = steps_given(self._options)
            if pieces.delegation is not None:
                pieces.delegation.work_for(talk)
            if self._resume is None:
                await talk.record("system", *first_events(self._options, pieces))
            self._recoverer = recoverer_of(talk, steps, self._options)
        except BaseException:
            if owned:
                log.close()
            raise
        self._pieces, self._talk = pieces, talk
        if pieces.parts.keep_alive is not None:
            self._keeper = Keeper(talk, pieces.parts.keep_alive)
        if self._options.get("prewarm"):
            await self._prewarm_or_close()
        return self

    async def _prewarm_or_close(self) -> None:
        try:
            told = await self.prewarm()
        except BaseException:
            await self.aclose()
            raise
        if not told.sent:
            logger.warning("the head was not put into the cache: %s", told.reason)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel a turn that is under way, and close what this session opened."""
        if self._turn is not None:
            await _cancel(self._turn)
        if self._keeper is not None:
            await self._keeper.aclose()
        pieces = self._pieces
        try:
            if self._talk is not None:
                await let_go(self._talk, "the session is closed")
                with suppress(StoreError):
                    # What is not learned now is learned by another session; it is no reason to fail.
                    await teach(self._talk)
        finally:
            self._state = self._talk.state if self._talk is not None else self._state
            self._talk, self._pieces = None, None
            if pieces is not None:
                if pieces.owns_wire:
                    await pieces.parts.wire.aclose()
                if pieces.owns_log:
                    pieces.parts.log.close()

    async def send(self, message: str | Block | Sequence[Block]) -> Answer:
        """Say something; the answer comes when the turn is over, tools and all."""
        return await self._begin(message, lambda delta: None)

    async def stream(self, message: str | Block | Sequence[Block]) -> AsyncGenerator[StreamItem, None]:
        """Say something and see it happen: deltas as they arrive, events as they are recorded.

        Closing the stream cancels the turn: to leave the loop early, use `contextlib.aclosing`.
        """
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
        """Put tools and system prompt into the cache now, so that the first message finds them there.

        It costs what writing them costs, and is paid for even if no message follows. What cannot be done is told and
        not raised.
        """
        if self._turn is not None and not self._turn.done():
            raise UserError("a turn is under way in this session, which writes the head itself")
        return await prewarm(self._open)

    def next_wake(self) -> NextWake:
        """When to come back, for an agent that is about to wait: in time or late enough, and the price of each."""
        return wake_of(self._open)

    def cache_state(self) -> CacheState:
        """What the provider keeps of this session by what it last reported; pings count."""
        return cached_of(self._open)

    def context_use(self) -> ContextUse:
        """Which layer takes how many tokens of what would be sent now, and how many the model takes."""
        return context_use(self._open)

    def cache_stats(self) -> PromptCacheStats:
        """What the cache did for this session so far: requests, hits, breaks, and what was read and written."""
        return self._counted().stats

    def get_token_stats(self) -> dict[str, TokenStats]:
        """For each provider that was spoken to: tokens sent, tokens of these that its cache had, tokens received."""
        return dict(self._counted().tokens)

    def _counted(self) -> Tally:
        newer = self._open.parts.log.read(self.id, after=self._tally.last_event_id)
        self._tally = tallied(self._tally, newer, models_of(self._composed.config))
        return self._tally

    def quote_switch(self, model: str) -> SwitchQuote:
        """What it would cost to go on with another model; nothing is changed."""
        return quote(self._composed, self._open, model)

    async def switch_model(self, model: str, *, allow_uncached: bool = False, **reach: Unpack[Reach]) -> SwitchQuote:
        """Go on with another model, from the next message on; the history goes along as far as it can.

        A model that does not cache is refused, with its price, unless `allow_uncached`. Another provider is reached
        as configured, or as `wire`, `base_url` and `api_key` say.
        """
        talk = self._open
        if self._turn is not None and not self._turn.done():
            raise UserError("a turn is under way in this session; wait for it before you switch the model")
        told = self.quote_switch(model)
        options = checked({**self._given_reach(), **reach})
        self._pieces = await switch(self._composed, talk, model, options=options, allow_uncached=allow_uncached)
        return told

    def _given_reach(self) -> Options:
        """What was said when the session began holds for the provider it was said of; a simulator plays them all."""
        given = self._options.get("wire")
        return {"wire": given} if isinstance(given, ProvidesWire) else {}

    async def compact(self, config: CompactionConfig | None = None) -> CompactionResult:
        """Make the conversation shorter from the next message on: a record stands for all but its newest part.

        Nothing on the log changes. What would not help is not done, and the result says why.
        """
        return await compact_open(self._idle, config)

    def hand_off(self) -> str:
        """What a new session has to be told to go on with this work: a record of all of it, as its first message."""
        talk = self._idle
        return hand_off_text(standing_of(talk), talk.parts.compaction)

    @property
    def _idle(self) -> Conversation:
        """The conversation, if nothing is under way in it."""
        if self._turn is not None and not self._turn.done():
            raise UserError("a turn is under way in this session; wait for it before you compact")
        return self._open

    async def end(self) -> None:
        """Record that this session is over; it can still be read and resumed."""
        await let_go(self._open, "the session is over")
        state, clock = self._open.state, self._open.parts.clock
        await teach(self._open)
        ended = SessionEnded("completed", state.turn_count, state.cost_usd, clock() - state.started_at)
        await self._open.record("system", ended)

    async def report_failure(self, scenario: str, *, incident: str = "", detail: str = "") -> Reported:
        """Say that something known went wrong: its recipe is run, waits for a person, or ends the work.

        What ends the work stops a turn that is under way, and raises `AbortedError`.
        """
        try:
            return await self._recovers.report(scenario_named(scenario), incident=incident, detail=detail)
        except AbortedError:
            if self._turn is not None:
                self._turn.cancel()
            raise

    async def recover(
        self, scenario: str, *, incident: str = "", detail: str = "", trigger: Trigger = "automatic"
    ) -> RecoveryOutcome:
        """Follow the recipe of a known failure, from the first step that remains, if it may be tried once more."""
        known = scenario_named(scenario)
        return await self._recovers.attempt(known, incident=incident, detail=detail, trigger=trigger)

    def plan_recovery(self, scenario: str, *, incident: str = "", trigger: Trigger = "automatic") -> PlannedRecovery:
        """What `recover` would do now; nothing is done."""
        return self._recovers.dry_run(scenario_named(scenario), incident=incident, trigger=trigger)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """What went wrong in this session and is known, and what was tried about it."""
        return tuple(self._known.incidents.incidents.values())

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Hear every event of this session once it is on the log; call the result to stop."""
        return self._bus.subscribe(listener)

    @property
    def id(self) -> str:
        return self._known.session_id

    @property
    def name(self) -> str | None:
        return self._known.name

    @property
    def model(self) -> str:
        return self._known.model

    @property
    def history(self) -> tuple[Message, ...]:
        """The conversation as the provider sees it, volatile text included."""
        return messages_of(self._known.passages)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What the model is told of, since the epoch began."""
        return self._known.tools

    @property
    def turn_count(self) -> int:
        return self._known.turn_count

    @property
    def usage(self) -> Usage:
        return self._known.usage

    @property
    def cost(self) -> Decimal:
        """US dollars spent so far, by the catalog's prices."""
        return self._known.cost_usd

    @property
    def _known(self) -> State:
        """The state, also once the session is closed."""
        state = self._talk.state if self._talk is not None else self._state
        if state is None:
            raise UserError("the session was never opened: use it as `async with Session.create(...) as session`")
        return state

    @property
    def _composed(self) -> Pieces:
        if self._pieces is None:
            raise not_open(self._state.session_id if self._state else None)
        return self._pieces

    @property
    def _open(self) -> Conversation:
        if self._talk is None:
            raise not_open(self._state.session_id if self._state else None)
        return self._talk

    @property
    def _recovers(self) -> Recoverer:
        self._composed  # noqa: B018 - raises where the session is not open.
        assert self._recoverer is not None
        return self._recoverer

    def _begin(self, message: str | Block | Sequence[Block], emit: Callable[[Delta], None]) -> "asyncio.Task[Answer]":
        talk = self._open
        if self._turn is not None and not self._turn.done():
            raise UserError(UNDER_WAY)
        content = content_of(message)
        self._composed.dimensions.hear(content)
        self._turn = asyncio.ensure_future(run_turn(talk, content, emit))
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
                f"session {self._resume!r} has no prompt to go on with: it was recorded from a wrapped client or pruned"
            )
        return state


def next_wake(session: Session) -> NextWake:
    """The same as `session.next_wake()`."""
    return session.next_wake()


async def compact_session(session: Session, config: CompactionConfig) -> CompactionResult:
    """Compact by the rules of seed 002, whatever the profile: a summary, and the last messages as they are."""
    return await compact_open(session._idle, config, seed=True)


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

    async def speak() -> Answer:
        async with Session.create(**options) as session:
            for message in messages[:-1]:
                await session.send(message)
            return await session.send(messages[-1])

    return asyncio.run(speak())


async def _cancel(turn: "asyncio.Task[Answer]") -> None:
    if not turn.done():
        turn.cancel()
        # The turn's own failure belongs to whoever waits for the turn.
        await asyncio.gather(turn, return_exceptions=True)
