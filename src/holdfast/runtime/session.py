"""`Session`, the public entry point: create or resume a conversation, send messages, and inspect it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Never, Self

from holdfast.clock import Clock, NewId, Sleep
from holdfast.compaction.models import CompactionConfig, CompactionMode, CompactionResult
from holdfast.engine.cache.explicit_cache import delete_explicit_cache
from holdfast.engine.cache.keep_alive import PrewarmResult, SessionKeepAlive, prewarm
from holdfast.engine.cache.plan import record_learned
from holdfast.engine.cache.single_flight import SingleFlight
from holdfast.engine.compaction.compact import handoff_summary
from holdfast.engine.compaction.triggers import snapshot_conversation
from holdfast.engine.conversation import Conversation
from holdfast.engine.loop import TurnResult, message_content, run_turn
from holdfast.engine.model_switch import SwitchQuote
from holdfast.engine.recovery.runner import RecoveryRunner, StepFunction
from holdfast.engine.snapshot import restore_draft, save_session
from holdfast.engine.state import SessionState
from holdfast.engine.tools.definition import Tool, ToolFunction
from holdfast.engine.tools.permissions import Allowed, Confirm
from holdfast.errors import UserError
from holdfast.events.log import Event, EventListener, EventLog
from holdfast.events.payloads.calls import SideEffects
from holdfast.events.payloads.session import SessionEnded
from holdfast.layers.padding import Padding, SessionPadding, read_session_padding
from holdfast.planning.breakpoints import CacheProfile
from holdfast.providers.wire_request import Transport
from holdfast.runtime import compose
from holdfast.runtime.compaction import (
    DroppedContent,
    compact_conversation,
    list_dropped,
    set_compaction,
    undo_compaction,
)
from holdfast.runtime.config import Diagnostics, DigestRefresh
from holdfast.runtime.context_report import ContextUse, measure_context
from holdfast.runtime.model_switch import quote_session_switch, switch_session
from holdfast.runtime.options import (
    Options,
    SessionInstructions,
    TransportProvider,
    VolatileLayers,
    VolatileText,
    check_options,
    collect_options,
)
from holdfast.runtime.recovery import SessionRecovery, host_steps, recovery_runner
from holdfast.runtime.session_cache import OpenSessionCache
from holdfast.sources.skills.skill import SkillMode, SkillRanking
from holdfast.sources.skills.store import SkillStore
from holdfast.types.blocks import Block, Json, Message, join_text_blocks
from holdfast.types.prompt import Layout
from holdfast.types.reply import Delta
from holdfast.types.tool_spec import ToolSpec
from holdfast.types.transcript import merge_into_messages
from holdfast.types.usage import Usage

logger = logging.getLogger(__name__)
StreamItem = Delta | Event


class Session:
    """One conversation with a model. Use it with `async with`, which closes what the session opened.

    `cache` has the cache's state and statistics, `recovery` the known failures and their recipes.

    Every event is stored as it happens. `Session.resume(id)` continues later, in any process, with the same bytes.
    """

    def __init__(self, options: Options, *, resume: str | None = None) -> None:
        self._options = check_options(options)
        self._resume = resume
        self._messages_expected: int | None = None
        self._state: SessionState | None = None
        self._bus = compose.new_event_bus(self._options)
        self._composition: compose.Composition | None = None
        self._conversation: Conversation | None = None
        self._turn: asyncio.Task[TurnResult] | None = None
        self._keeper: SessionKeepAlive | None = None
        self._recovery_runner: RecoveryRunner | None = None
        self.cache = OpenSessionCache(
            lambda: self._open_conversation, lambda: compose.load_models(self._open_composition.config)
        )
        self.recovery = SessionRecovery(lambda: self._open_runner, lambda: self._current_state, self._cancel_turn)

    @classmethod
    def create(
        cls,
        *,
        model: str | None = None,
        system_prompt: str | None = None,
        preset_name: str | None = None,
        persona: str | None = None,
        persona_name: str | None = None,
        system_prompt_volatile: VolatileText | None = None,
        volatile: VolatileLayers | None = None,
        workspace: str | Path | None = None,
        another_workspace: bool | None = None,
        name: str | None = None,
        tools: Sequence[Tool | ToolFunction] | None = None,
        builtin_tools: bool | Sequence[str] | None = None,
        read_roots: Sequence[str | Path] | None = None,
        command_variables: Sequence[str] | None = None,
        memory: bool | None = None,
        delegate: bool | int | None = None,
        delegation_depth_max: int | None = None,
        allowed: Allowed | None = None,
        confirm: Confirm | None = None,
        confirm_for: Sequence[SideEffects] | None = None,
        confirm_seconds_max: float | None = None,
        steps_max: int | None = None,
        instructions: SessionInstructions | None = None,
        skills: bool | str | Path | Sequence[str | Path] | SkillStore | None = None,
        skills_mode: SkillMode | None = None,
        also_skills: Sequence[str] | None = None,
        skill_ranking: SkillRanking | None = None,
        enforce_allowed_tools: bool | None = None,
        knowledge: bool | None = None,
        digest_refresh: DigestRefresh | None = None,
        curation: str | None = None,
        rag: bool | None = None,
        compaction: CompactionMode | CompactionConfig | None = None,
        compaction_tokens: int | None = None,
        recall_history: bool | None = None,
        compact_tool: bool | None = None,
        recovery_steps: Mapping[str, StepFunction] | None = None,
        profile: CacheProfile | None = None,
        layout: Layout | None = None,
        padding: Padding | None = None,
        models: Sequence[str] | None = None,
        calls_expected: int | None = None,
        allow_uncached: bool | None = None,
        spend_max_usd: Decimal | str | float | None = None,
        single_flight: SingleFlight | bool | None = None,
        prewarm: bool | None = None,
        keep_alive: bool | None = None,
        keep_alive_usd_max: Decimal | str | float | None = None,
        cache_ttl_seconds: int | None = None,
        cache_over_an_hour: bool | None = None,
        diagnostics: Diagnostics | None = None,
        completion_cache: bool | None = None,
        completion_cache_seconds: float | None = None,
        output_tokens_max: int | None = None,
        temperature: float | None = None,
        thinking: Mapping[str, Json] | None = None,
        tool_choice: Mapping[str, Json] | None = None,
        stop_sequences: Sequence[str] | None = None,
        betas: Sequence[str] | None = None,
        request_fields: Mapping[str, Json] | None = None,
        transport: Transport | TransportProvider | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        store: EventLog | str | Path | None = None,
        simulated: bool | None = None,
        user_id: str | None = None,
        team_id: str | None = None,
        clock: Clock | None = None,
        sleep: Sleep | None = None,
        new_id: NewId | None = None,
        **unknown: Never,
    ) -> Self:
        """A new session; nothing happens before it is entered. All arguments are optional; None means not given.

        Args:
            model: As `provider:name`; by default the configured one. Without prompt caching it needs `allow_uncached`.
            system_prompt: Never changes within a session.
            preset_name: Reads `system_prompt` from `.holdfast/presets/NAME.md` when a session is created.
            persona: Follows the system prompt, and never changes either.
            persona_name: Reads `persona` from `.holdfast/personas/NAME.md` when a session is created.
            system_prompt_volatile: Text, or a function that returns it, that may change on every call.
            volatile: The same as layers with names.
            workspace: Adds the project's instruction files, its git state and the date.
            another_workspace: Allows to resume in a different folder.
            name: For lists and the dashboard.
            tools: Functions or `Tool` values that the model may call.
            builtin_tools: Tools for files and commands of the workspace: all, or those named.
            read_roots: Folders elsewhere that these may read.
            command_variables: Environment variables that commands get besides harmless ones.
            memory: Adds MEMORY.md of the workspace and USER.md of the user, and the tools to edit them.
            delegate: A tool that runs a task in a child session with the same prefix; a number allows so many at once.
            delegation_depth_max: How deep delegations may nest.
            allowed: Returns why a call may not run at all, or None.
            confirm: Called before a tool runs whose side effects are in `confirm_for`.
            confirm_for: Kinds of side effects that need a confirmation.
            confirm_seconds_max: How long a confirmation may take.
            steps_max: Model calls that one message may lead to.
            instructions: From `Library.for_session`: a stub and an index, and a tool that recalls the rest.
            skills: True for the user's and the workspace's; or folders, or a `SkillStore`.
            skills_mode: Rules by which they are parsed; by default the seed's, and lenient ones for `also_skills`.
            also_skills: Folders of other programs to read as well, such as `.claude/skills`.
            skill_ranking: How `skill_search` ranks: "lexical" or "semantic".
            enforce_allowed_tools: A loaded skill limits which tools may be used.
            knowledge: False leaves out the project's knowledge digest, if there is one.
            digest_refresh: When a newer digest is used: with the next epoch, or the "next_turn".
            curation: The preset of active files, in place of the workspace's.
            rag: Whether retrieved passages of project files are added; by default if `holdfast rag index` was run.
            compaction: When a summary replaces old messages: "threshold", "economical", "off", or a `CompactionConfig`.
            compaction_tokens: Size of the prompt at which that happens: 100,000, at most 80 % of the context window.
            recall_history: A tool that shows what left the prompt; the default beside other tools, unless "off".
            compact_tool: A tool by which the model asks for a compaction at a natural break.
            recovery_steps: Names of recipe steps, such as `rebase_branch`, and their functions.
            profile: "seed" gives the behaviour of the seed documents in everything.
            layout: "seed" puts volatile text at the end of the system prompt.
            padding: Whether a prefix that is too short to be cached is extended: "auto", "always", "never".
            models: Other models that the session may switch to.
            calls_expected: How many calls it will make; by default as earlier sessions of the workspace did.
            allow_uncached: Allows a model without prompt caching.
            spend_max_usd: What the session may spend; a call that could exceed it raises `BudgetError`.
            single_flight: Of sessions that start with the same prefix at once, one writes it and the others wait.
            prewarm: Writes the stable prefix to the cache when the session is entered.
            keep_alive: Pings the cache of an idle session where that is expected to save money.
            keep_alive_usd_max: What these pings may cost.
            cache_ttl_seconds: TTL of an explicit cache (Gemini); 0 for none.
            cache_over_an_hour: Confirms a TTL of over an hour, which is billed by the hour.
            diagnostics: "off" does not ask the provider for the reason of a cache miss.
            completion_cache: A request equal to a recent one of this process gets the same reply without a call.
            completion_cache_seconds: How recent; 30 by default.
            output_tokens_max: Tokens that one reply may have.
            temperature: Goes into every request, as do the next four.
            thinking: Such as `{"type": "adaptive"}`.
            tool_choice: Such as `{"type": "auto"}`.
            stop_sequences: Texts that end a reply.
            betas: Beta features of the provider, sent as a header.
            request_fields: Fields without an option of their own, such as `top_p`, under the provider's names.
            transport: Replaces the network, for example by a `SimulatedProvider`.
            base_url: Address of the provider's API.
            api_key: By default from the environment.
            store: A path, a URL or a store for the events.
            simulated: The calls cost nothing and are left out of reports.
            user_id: Who is billed.
            team_id: Which team is billed.
            clock: Returns the time, for tests.
            sleep: Replaces `asyncio.sleep`, for tests.
            new_id: Returns ids, for tests.

        Raises:
            UserError: For an unknown name or a wrong type.
        """
        return cls(collect_options(locals()))

    @classmethod
    def resume(
        cls,
        session_id: str,
        *,
        model: str | None = None,
        system_prompt: str | None = None,
        preset_name: str | None = None,
        persona: str | None = None,
        persona_name: str | None = None,
        system_prompt_volatile: VolatileText | None = None,
        volatile: VolatileLayers | None = None,
        workspace: str | Path | None = None,
        another_workspace: bool | None = None,
        name: str | None = None,
        tools: Sequence[Tool | ToolFunction] | None = None,
        builtin_tools: bool | Sequence[str] | None = None,
        read_roots: Sequence[str | Path] | None = None,
        command_variables: Sequence[str] | None = None,
        memory: bool | None = None,
        delegate: bool | int | None = None,
        delegation_depth_max: int | None = None,
        allowed: Allowed | None = None,
        confirm: Confirm | None = None,
        confirm_for: Sequence[SideEffects] | None = None,
        confirm_seconds_max: float | None = None,
        steps_max: int | None = None,
        instructions: SessionInstructions | None = None,
        skills: bool | str | Path | Sequence[str | Path] | SkillStore | None = None,
        skills_mode: SkillMode | None = None,
        also_skills: Sequence[str] | None = None,
        skill_ranking: SkillRanking | None = None,
        enforce_allowed_tools: bool | None = None,
        knowledge: bool | None = None,
        digest_refresh: DigestRefresh | None = None,
        curation: str | None = None,
        rag: bool | None = None,
        compaction: CompactionMode | CompactionConfig | None = None,
        compaction_tokens: int | None = None,
        recall_history: bool | None = None,
        compact_tool: bool | None = None,
        recovery_steps: Mapping[str, StepFunction] | None = None,
        profile: CacheProfile | None = None,
        layout: Layout | None = None,
        padding: Padding | None = None,
        models: Sequence[str] | None = None,
        calls_expected: int | None = None,
        allow_uncached: bool | None = None,
        spend_max_usd: Decimal | str | float | None = None,
        single_flight: SingleFlight | bool | None = None,
        prewarm: bool | None = None,
        keep_alive: bool | None = None,
        keep_alive_usd_max: Decimal | str | float | None = None,
        cache_ttl_seconds: int | None = None,
        cache_over_an_hour: bool | None = None,
        diagnostics: Diagnostics | None = None,
        completion_cache: bool | None = None,
        completion_cache_seconds: float | None = None,
        output_tokens_max: int | None = None,
        temperature: float | None = None,
        thinking: Mapping[str, Json] | None = None,
        tool_choice: Mapping[str, Json] | None = None,
        stop_sequences: Sequence[str] | None = None,
        betas: Sequence[str] | None = None,
        request_fields: Mapping[str, Json] | None = None,
        transport: Transport | TransportProvider | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        store: EventLog | str | Path | None = None,
        simulated: bool | None = None,
        user_id: str | None = None,
        team_id: str | None = None,
        clock: Clock | None = None,
        sleep: Sleep | None = None,
        new_id: NewId | None = None,
        **unknown: Never,
    ) -> Self:
        """Continue a stored session, with the arguments of `create`.

        The prompt is read from the store; the functions of its tools are passed here.
        """
        return cls(collect_options(locals()), resume=session_id)

    async def __aenter__(self) -> Self:
        if self._conversation is not None:
            raise UserError("this session is open already")
        if self._state is not None:
            raise compose.not_open_error(self._state.session_id)
        log, owns_log = compose.open_session_log(self._options)
        try:
            state, snapshot = compose.load_session_state(log, self._options, self._resume)
            composition = compose.compose_session(
                self._options, state, log=log, bus=self._bus, owns_log=owns_log, messages=self._messages_expected
            )
            conversation = Conversation(composition.deps, state)
            restore_draft(conversation, snapshot)
            if composition.delegation is not None:
                composition.delegation.set_parent(conversation)
            if self._resume is None:
                await conversation.record("system", *compose.first_events(self._options, composition))
            self._recovery_runner = recovery_runner(conversation, host_steps(self._options), self._options)
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

    async def __aexit__(self, *failure: object) -> None:
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
                await save_session(self._conversation)
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

        The cache write is billed even if no message follows. If prewarming is not possible, the result says why.
        """
        if self._turn is not None and not self._turn.done():
            raise UserError("a turn is in progress in this session, and it writes the stable prefix itself")
        return await prewarm(self._open_conversation)

    def context_use(self) -> ContextUse:
        """How many tokens each layer would take if a message were sent now, and the model's context window."""
        return measure_context(self._open_conversation)

    def quote_switch(self, model: str) -> SwitchQuote:
        """What it would cost to continue with another model; nothing is changed."""
        return quote_session_switch(self._open_composition, self._open_conversation, model)

    async def switch_model(
        self,
        model: str,
        *,
        allow_uncached: bool = False,
        transport: Transport | TransportProvider | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
    ) -> SwitchQuote:
        """Use another model from the next message on; the history is transferred as far as its provider allows.

        Raises UserError, which names the price, for a model without prompt caching unless `allow_uncached`. The
        endpoint of another provider is the configured one, or that of `transport`, `base_url` and `api_key`.
        """
        conversation = self._open_conversation
        if self._turn is not None and not self._turn.done():
            raise UserError("a turn is in progress in this session; wait for it before you switch the model")
        quoted = self.quote_switch(model)
        # `transport`, `base_url` and `api_key` of the session's options are for its first provider, and must not send
        # a key to another one. A simulator replaces every provider, so it stays in use.
        current = self._options.get("transport")
        if transport is None and isinstance(current, TransportProvider):
            transport = current
        options = collect_options({"transport": transport, "base_url": base_url, "api_key": api_key})
        self._composition = await switch_session(
            self._open_composition, conversation, model, options=check_options(options), allow_uncached=allow_uncached
        )
        return quoted

    async def compact(self, config: CompactionConfig | None = None) -> CompactionResult:
        """Replace all but the newest part of the conversation by a summary, from the next message on.

        The event log keeps the full history. A compaction that would not help is not done; the result says why.
        """
        return await compact_conversation(self._idle_conversation, config)

    async def undo_compaction(self) -> CompactionResult:
        """Restore what the newest compaction removed. Raises UserError if there is none, or it would not fit."""
        return await undo_compaction(self._idle_conversation)

    @property
    def compaction(self) -> CompactionConfig:
        """The compaction settings in force."""
        return self._open_conversation.deps.compaction

    def set_compaction(self, setting: CompactionMode | CompactionConfig) -> None:
        """Compact by another mode ("off", "threshold", "economical") or configuration, from the next call on.

        The tools stay: adding or removing `recall_history` would rewrite the cached prefix. A resumed session is
        compacted as it is then configured.
        """
        set_compaction(self._idle_conversation, setting)

    def dropped(self) -> tuple[DroppedContent, ...]:
        """What compactions have removed from the view, largest first; the log still has it."""
        return list_dropped(self._open_conversation)

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
    def padding(self) -> SessionPadding:
        """What was added to the prefix so that the provider caches it, and why, or why nothing was."""
        return read_session_padding(self._current_state.pinned, self._current_state.padding)

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
    def _open_composition(self) -> compose.Composition:
        if self._composition is None:
            raise compose.not_open_error(self._state.session_id if self._state else None)
        return self._composition

    @property
    def _open_conversation(self) -> Conversation:
        if self._conversation is None:
            raise compose.not_open_error(self._state.session_id if self._state else None)
        return self._conversation

    @property
    def _open_runner(self) -> RecoveryRunner:
        self._open_composition  # noqa: B018 - raises where the session is not open.
        assert self._recovery_runner is not None
        return self._recovery_runner

    def _cancel_turn(self) -> None:
        if self._turn is not None:
            self._turn.cancel()

    def _begin(
        self, message: str | Block | Sequence[Block], emit: Callable[[Delta], None]
    ) -> "asyncio.Task[TurnResult]":
        conversation = self._open_conversation
        if self._turn is not None and not self._turn.done():
            raise UserError(compose.TURN_IN_PROGRESS)
        content = message_content(message)
        self._open_composition.knowledge_layers.query = join_text_blocks(content)
        self._turn = asyncio.ensure_future(run_turn(conversation, content, emit))
        return self._turn


async def _cancel(turn: "asyncio.Task[TurnResult]") -> None:
    if not turn.done():
        turn.cancel()
        # A failure of the turn is raised where the turn itself is awaited.
        await asyncio.gather(turn, return_exceptions=True)
