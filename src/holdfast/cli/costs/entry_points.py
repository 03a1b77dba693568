"""Plays recorded conversations through the code of an entry point: what a session, gateway or wrapped client sends.

Each player is a cache policy for the replay, so that costs and cache come from the same model as those of the policies.
"""

import asyncio
import datetime
import importlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol

import msgspec

from holdfast.catalog.lookup import shipped_models
from holdfast.catalog.schema import Model
from holdfast.clock import new_ulid
from holdfast.economics.cost import cost_usd
from holdfast.engine.cache.keep_alive import plan_next_ping
from holdfast.engine.cache.plan import plan_next_call
from holdfast.engine.call_record import completed_call_event
from holdfast.engine.conversation import Conversation, Dependencies, KeepAlive
from holdfast.engine.exchange import RequestOptions
from holdfast.engine.model_call import encode_request
from holdfast.engine.state import SessionState
from holdfast.engine.tools.dispatch import Toolbox
from holdfast.errors import ProviderError, UserError
from holdfast.events.log import EventBus
from holdfast.events.payloads.cache import CachePinged
from holdfast.events.payloads.calls import LlmCallStarted
from holdfast.events.payloads.session import EpochOpened, MessageAppended, SessionStarted, TurnStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.gateway.exchange import Exchange
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.request_analysis import GatewayPing, RequestAnalysis
from holdfast.integrations.http_client import find_observer
from holdfast.integrations.wrap import wrap
from holdfast.planning.idle_times import WaitsFor
from holdfast.planning.learned import NOTHING_LEARNED, LearnedParameters, keep_leading_blocks, learned_after_session
from holdfast.planning.policy import CachePolicy, Ping, PingResult, PlanningMoment
from holdfast.providers.adapter import PATH_HEADER, Adapter, Endpoint, WireRequest
from holdfast.providers.anthropic import anthropic
from holdfast.providers.registry import find_adapter, get_provider
from holdfast.providers.wire_request import OnRetry
from holdfast.replay.playback import OUTPUT_TOKENS_MAX, EncodedPing, ReplaySetting, find_newest_price
from holdfast.replay.recording import RecordedCall, Recording, ReplayPrompt
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import Message
from holdfast.types.prompt import Breakpoint, HistoryEntry, LayerText, Parameters
from holdfast.types.reply import Reply
from holdfast.types.request_buffer import EncodedBlock, RequestBuffer, count_shared_blocks
from holdfast.types.usage import Usage

REPLAYED = "replay"
"""The account, the request id and the pricing version of calls that nobody makes."""


class EntryPoint(CachePolicy, Protocol):
    """A player keeps what it learned from one recording to the next, as a process does.

    `path` and `sent_body` are its last request.
    """

    adapter: Adapter
    path: str
    sent_body: bytes

    @property
    def sent_blocks(self) -> Sequence[EncodedBlock]:
        """The blocks of its last request, which may differ from the recorded ones."""

    def open_recording(self, recording: Recording) -> None:
        """The next calls are those of this recording."""


class GatewayPlayer:
    """A gateway with `--improve`: recorded requests as bytes, and breakpoints as found in the rewritten bytes."""

    name = "via-gateway"
    # Of the last call, set when it is planned.
    _analysis: RequestAnalysis
    _ping: GatewayPing

    def __init__(self, setting: ReplaySetting) -> None:
        model = _at_newest_price(setting)
        self.adapter = find_adapter(model.provider)
        parameters = Parameters(model.name, OUTPUT_TOKENS_MAX)
        self.path = self.adapter.endpoint(parameters).path
        self.sent_body = b""
        self._provider = model.provider
        self._head = self.adapter.request_head(parameters)
        self._rewriter = ConversationRewriter({model.id: model})
        self._received = self._response = b""
        self._used_at = 0.0
        self._calls: Iterator[RecordedCall] = iter(())
        self.sent_blocks: Sequence[EncodedBlock] = ()

    def open_recording(self, recording: Recording) -> None:
        """For the replies; a gateway does not know where a conversation begins."""
        self._calls = iter(recording.calls)

    def choose_breakpoints(self, moment: PlanningMoment) -> tuple[Breakpoint, ...]:
        assert isinstance(moment.buffer, RequestBuffer)
        self._received = moment.buffer.render(self._head)
        self._analysis = self._rewriter.analyze(
            self._provider, self._received, path=self.path, account=REPLAYED, at=moment.at
        )
        self.sent_blocks, self.sent_body = moment.buffer.blocks, self._analysis.body or self._received
        if self._analysis.body is None:
            return ()
        sent = self.adapter.decode_request(self._analysis.body, {PATH_HEADER: self.path})
        self.sent_blocks = _encode_blocks(self.adapter, sent)
        return sent.plan.breakpoints

    def record_usage(self, moment: PlanningMoment, usage: Usage) -> None:
        reply, self._used_at = next(self._calls).reply, moment.at
        self._response = _encode_response(self.adapter, usage, reply)
        self._rewriter.record_response(self._analysis.call, self._response)

    def next_ping(self, moment: PlanningMoment, pings_so_far: int, waits_for: WaitsFor) -> Ping | None:
        """As `gateway/keep_alive.py` sends them, without its daily limit."""
        due = self._rewriter.plan_ping(self._analysis, self._response)
        if due is None:
            return None
        sent = self._analysis.body or self._received
        ping = self._rewriter.encode_ping(self._analysis, due, sent=sent, response=self._response)
        if ping is None:
            return None
        self._ping = ping
        return Ping(due.at - self._used_at, due.ttl, due.reason)

    def encode_ping(self) -> EncodedPing:
        sent = anthropic.decode_request(self._ping.body)
        return EncodedPing(_encode_blocks(self.adapter, sent), sent.plan.breakpoints, self._ping.block_count)

    def record_ping(self, ping: PingResult) -> None:
        self._used_at = ping.at
        response = _encode_response(self.adapter, ping.usage, None)
        self._rewriter.record_ping(self._analysis.call, self._ping, response, ping.at)


class WrapPlayer(GatewayPlayer):
    """A wrapped client of Anthropic's SDK, whose transport answers with the recorded replies."""

    name = "via-wrap"
    _exchange: Exchange

    def __init__(self, setting: ReplaySetting) -> None:
        super().__init__(setting)
        model = _at_newest_price(setting)
        if model.provider != anthropic.name:
            raise UserError(f"wrap is replayed with Anthropic's client only, not with {model.id}; use --via gateway")
        self._now = 0.0
        sdk, http_library = _import_sdk()
        transport = http_library.MockTransport(self._respond)
        bare = sdk.Anthropic(api_key=REPLAYED, max_retries=0, http_client=http_library.Client(transport=transport))
        self._http_library = http_library
        self._client = wrap(bare, store="memory:", models={model.id: model}, clock=lambda: self._now)
        observer = find_observer(self._client._client)  # No public method of the SDK returns it.
        assert observer is not None
        self._observer, self._rewriter = observer, observer.rewriter
        self.recorder = observer.recorder
        # Read to its end once the usage is known.
        self._stream: Iterator[object] = iter(())

    def choose_breakpoints(self, moment: PlanningMoment) -> tuple[Breakpoint, ...]:
        assert isinstance(moment.buffer, RequestBuffer)
        self._now = moment.at
        request = msgspec.json.decode(moment.buffer.render(self._head))
        self._stream = iter(self._client.messages.create(**request, stream=True))
        (call,) = self._observer.open_calls
        assert call.analysis is not None
        self._analysis, self._exchange = call.analysis, call.exchange
        wire = anthropic.decode_request(self._received)
        self.sent_blocks = _encode_blocks(self.adapter, wire)
        return wire.plan.breakpoints

    def record_usage(self, moment: PlanningMoment, usage: Usage) -> None:
        self._used_at = moment.at
        self._response = _encode_response(self.adapter, usage, next(self._calls).reply)
        for _ in self._stream:
            pass
        # What it plans by is learned from the log, and recorded calls are seconds apart. Played at once, they would
        # come faster than they are recorded, and cost what depends on the machine.
        self.recorder.wait_until_recorded()

    def record_ping(self, ping: PingResult) -> None:
        super().record_ping(ping)
        response = _encode_response(self.adapter, ping.usage, None)
        self._observer.watcher.on_ping(self._exchange, self._ping, response, ping.at)
        self.recorder.wait_until_recorded()

    def _respond(self, request: Any) -> Any:
        self._received = request.content

        def stream() -> Iterator[bytes]:
            yield from anthropic.encode_stream(anthropic.decode_reply(self._response))

        headers = {"content-type": "text/event-stream"}
        return self._http_library.Response(200, headers=headers, content=stream())


def _import_sdk() -> tuple[Any, Any]:
    """Anthropic's SDK and the HTTP library that it uses."""
    try:
        sdk = importlib.import_module("anthropic")
    except ImportError:
        raise UserError("a replay via wrap uses the official client; install it with: pip install anthropic") from None
    modules = {ancestor.__module__.partition(".")[0] for ancestor in sdk.DefaultHttpxClient.__mro__}
    return sdk, importlib.import_module("httpx2" if "httpx2" in modules else "httpx")


class SessionPlayer:
    """A `Session` fed with the recorded messages: its state, its prompt, its plan and its encoding.

    There is no compaction and no padding, because the recording says what each request holds.
    """

    name = "via-session"
    _recording: Recording

    def __init__(self, setting: ReplaySetting) -> None:
        self._model = _at_newest_price(setting)
        self.adapter = find_adapter(self._model.provider)
        self.path, self.sent_body = "", b""
        self._learned: LearnedParameters = NOTHING_LEARNED
        self._conversation: Conversation | None = None
        self._next_call = 0
        self._now = 0.0
        self.sent_blocks: Sequence[EncodedBlock] = ()

    def open_recording(self, recording: Recording) -> None:
        if self._conversation is not None:
            self._learned = learned_after_session(self._learned, self._conversation.state.cache_memory)
        self._recording, self._conversation, self._next_call = recording, None, 0

    def choose_breakpoints(self, moment: PlanningMoment) -> tuple[Breakpoint, ...]:
        self._now = moment.at
        if self._conversation is None:
            self._conversation = self._start_session(self._recording, moment)
        conversation, call = self._conversation, self._recording.calls[self._next_call]
        if call.kept_entries is not None:
            conversation.state = _cut_history(conversation.state, call.kept_entries)
        turn = (TurnStarted(REPLAYED, 0),) if call.waited_for != "tool" or conversation.state.turn is None else ()
        messages = (MessageAppended(Message(entry.role, entry.content)) for entry in call.added)
        self._record(*turn, *messages)
        conversation.assemble_request()
        buffer = conversation.draft.buffer
        shared = count_shared_blocks(conversation.state.digests, buffer.digests)
        if shared < len(conversation.state.digests):
            conversation.state = _forget_changed_blocks(conversation, shared)
        plan = plan_next_call(conversation, buffer, shared)
        options = RequestOptions(conversation.parameters, conversation.parameters)
        body, prepared = encode_request(conversation, options, plan, shared)
        started = LlmCallStarted(self._model.id, self._model.provider, conversation.request_tokens, REPLAYED)
        self._record(prepared, started)
        self.sent_blocks, self.sent_body = tuple(buffer.blocks), body
        self.path = self.adapter.endpoint(conversation.parameters).path
        return self.adapter.decode_request(body, {PATH_HEADER: self.path}).plan.breakpoints

    def record_usage(self, moment: PlanningMoment, usage: Usage) -> None:
        assert self._conversation is not None
        call = self._recording.calls[self._next_call]
        self._next_call += 1
        content = call.reply.content if call.reply is not None else ()
        reply = Reply(content, "end_turn", usage)
        completed = completed_call_event(
            self._conversation, reply, started_at=moment.at, retries=0, request_id=REPLAYED
        )
        self._record(completed, *((MessageAppended(Message("assistant", content)),) if content else ()))

    def next_ping(self, moment: PlanningMoment, pings_so_far: int, waits_for: WaitsFor) -> Ping | None:
        assert self._conversation is not None
        ping = plan_next_ping(self._conversation)
        return None if isinstance(ping, str) else ping

    def record_ping(self, ping: PingResult) -> None:
        assert self._conversation is not None
        self._now = ping.at
        pinged = CachePinged(
            kind="refresh",
            model=self._model.id,
            ttl=ping.ttl,
            usage=ping.usage,
            cost_usd=cost_usd(ping.usage, self._conversation.price(ping.usage.tokens_sent)),
            pricing_version=REPLAYED,
            sent_at=ping.at,
            breakpoint_block=ping.block,
            block_count=ping.blocks,
            prefix_tokens=ping.prefix_tokens,
        )
        self._record(pinged)

    def _start_session(self, recording: Recording, moment: PlanningMoment) -> Conversation:
        parameters = Parameters(self._model.name, OUTPUT_TOKENS_MAX)
        deps = Dependencies(
            log=MemoryStore(),
            transport=_NoTransport(),
            adapter=self.adapter,
            model=self._model,
            pricing_version=REPLAYED,
            toolbox=Toolbox(()),
            volatile=_no_volatile_text,
            parameters=parameters,
            clock=lambda: self._now,
            new_id=new_ulid,
            bus=EventBus(),
            learned=self._learned,
            keep_alive=KeepAlive(Decimal("Infinity"), asyncio.sleep),
            diagnoses_misses=False,
        )
        conversation = self._conversation = Conversation(deps, SessionState(recording.id))
        system = (*_placeholder_text(moment), LayerText("preset", recording.system))
        self._record(
            SessionStarted(self._model.id, parameters=parameters, simulated=True),
            EpochOpened(1, system, recording.tools),
        )
        return conversation

    def _record(self, *payloads: AnyPayload) -> None:
        assert self._conversation is not None
        asyncio.run(self._conversation.record("system", *payloads))


class _NoTransport:
    """A replay sends nothing."""

    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        raise ProviderError("network", "a replay sends no requests")
        yield b""

    async def aclose(self) -> None:
        pass


async def _no_volatile_text() -> tuple[LayerText, ...]:
    return ()


def _at_newest_price(setting: ReplaySetting) -> Model:
    """The model with the rules that policies assume, and at every date with the prices that the replay uses."""
    newest = max((price.valid_from for price in setting.model.prices), default=datetime.date.min)
    prices = tuple(price for price in setting.model.prices if price.valid_from == newest)
    return msgspec.structs.replace(setting.model, cache=setting.assumed_rules, prices=prices)


def _encode_blocks(adapter: Adapter, request: WireRequest) -> list[EncodedBlock]:
    return [block for segment in request.prompt.segments for block in adapter.encode_segment(segment)]


def _encode_response(adapter: Adapter, usage: Usage, reply: HistoryEntry | None) -> bytes:
    content = reply.content if reply is not None else ()
    return adapter.encode_reply(Reply(content, "end_turn", usage))


def _placeholder_text(moment: PlanningMoment) -> tuple[LayerText, ...]:
    """The text that stands for the part of the system prompt that was not recorded, if there is one."""
    placeholder = next(
        (block for block in moment.buffer.blocks[: moment.buffer.stable_count] if block.layer == "role"), None
    )
    return (LayerText("role", msgspec.json.decode(placeholder.data)["text"]),) if placeholder is not None else ()


def _cut_history(state: SessionState, kept_entries: int) -> SessionState:
    """The client went back, or compacted: a session's own events for that would decide themselves what is kept."""
    sent_count = min(state.sent_count, kept_entries)
    return msgspec.structs.replace(state, entries=state.entries[:kept_entries], sent_count=sent_count)


def _forget_changed_blocks(conversation: Conversation, shared: int) -> SessionState:
    """As after a compaction: the unchanged leading blocks stay cached."""
    state = conversation.state
    tokens = state.calibration.correct_estimate(sum(conversation.draft.buffer.tokens[:shared]))
    memory = keep_leading_blocks(state.cache_memory, state.request, blocks=shared, tokens=tokens)
    return msgspec.structs.replace(state, digests=state.digests[:shared], cache_memory=memory)


ENTRY_POINTS: Mapping[str, Callable[[ReplaySetting], EntryPoint]] = {
    "session": SessionPlayer,
    "gateway": GatewayPlayer,
    "wrap": WrapPlayer,
}
"""What `holdfast replay --via` can play."""


def create_player(name: str, setting: ReplaySetting) -> EntryPoint:
    if name not in ENTRY_POINTS:
        raise UserError(f"no entry point {name!r}; choose from: {', '.join(ENTRY_POINTS)}")
    return ENTRY_POINTS[name](setting)


def play_simulated(player: EntryPoint, recording: Recording, model: Model) -> Decimal:
    """What the prompts of a recording cost at the provider's simulator, each sent as the entry point would.

    For caches that no breakpoint controls alone: keys, retention and the ends of messages decide there as well.
    """
    now = 0.0
    # Both of OpenAI's APIs have the rows of one.
    models = {**shipped_models(), model.id: model}
    provider = SimulatedProvider(clock=lambda: now, models=models, script='{"content": "Yes."}')
    prompt = ReplayPrompt(recording, player.adapter, model.tokens_factor)
    prefix = get_provider(model.provider).path_prefix
    player.open_recording(recording)
    total: Decimal = Decimal(0)
    previous: float | None = None
    for call in prompt.iterate_calls(recording):
        now = call.at
        idle = None if previous is None else call.at - previous
        price = find_newest_price(model, prompt.prefixes[-1].tokens)
        moment = PlanningMoment(prompt.buffer, model.cache, price, call.at, idle, call.waited_for)
        player.choose_breakpoints(moment)
        credentials = player.adapter.credentials(REPLAYED)
        response = provider.handle("POST", prefix + player.path, headers=credentials, body=player.sent_body)
        answer = response.read_body()
        if response.status != 200:
            raise player.adapter.decode_error(response.status, response.headers, answer)
        usage = msgspec.structs.replace(player.adapter.decode_reply(answer).usage, output=0)
        player.record_usage(moment, usage)
        total += cost_usd(usage, find_newest_price(model, usage.tokens_sent))
        previous = call.at
    return total
