"""Random histories of a client's calls on the simulated provider, each with one injected cause of its last verdict.

The client sends Anthropic's own JSON. The simulator answers it with the usage of its cache model, and the recorder that
the gateway uses turns the same bodies into events.
"""

import functools
import random
from collections.abc import Callable, Mapping

import msgspec

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import CountingIds, ManualClock
from holdfast.engine.guard import WarningLog
from holdfast.engine.recorder import CallRecorder
from holdfast.engine.request_observer import RequestObserver
from holdfast.events.payloads.cache import CacheControlsApplied
from holdfast.events.payloads.session import SessionStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.ledger.accounting import LedgerEntry, iter_entries
from holdfast.ledger.cache.verdicts import Verdict, VerdictKind
from holdfast.providers.anthropic import anthropic
from holdfast.providers.wire_request import drop_deferred_tools
from holdfast.simulator.anthropic.api import parse_anthropic_request
from holdfast.simulator.explicit_caches import SimulatedExplicitCaches
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.provider_api import RequestContext
from holdfast.simulator.request_blocks import TokenCounts
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.blocks import Json
from holdfast.types.json_encoding import encode_json
from holdfast.types.usage import Usage

SONNET, HAIKU = "claude-sonnet-5-5", "claude-haiku-4-5"
MARK: Json = {"type": "ephemeral"}
MARK_1H: Json = {"type": "ephemeral", "ttl": "1h"}
PIXEL: Json = {
    "type": "image",
    "source": {
        "type": "base64",
        "media_type": "image/png",
        "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    },
}
_REPLY = '{"content": "Done."}\n'
_WORDS = ("the", "a", "file", "test", "code", "path", "error", "line", "value", "user", "name", "list", "read", "write")

Body = dict[str, Json]


class RecordedClient:
    """A client whose requests reach the simulated provider, and are recorded as the gateway records them."""

    def __init__(self, store: MemoryStore | SqliteStore | None = None, *, simulated: bool = False) -> None:
        self.clock = ManualClock(1_790_000_000.0)
        self.store = store or MemoryStore()
        self.recorder = CallRecorder(
            self.store,
            models=shipped_models(),
            clock=self.clock,
            new_id=CountingIds("call-"),
            warnings=WarningLog("history"),
            session_started=functools.partial(SessionStarted, simulated=simulated),
        )
        self._observer = RequestObserver(self.recorder, WarningLog("history"))
        self._counts = TokenCounts()
        self.evict()

    def evict(self) -> None:
        """The provider loses everything that it had cached."""
        self.provider = SimulatedProvider(clock=self.clock, models=shipped_models(), script=_REPLY * 50)

    def send(self, body: Mapping[str, Json], *also: AnyPayload) -> Usage:
        raw = encode_json({"max_tokens": 100, **body})
        wire = drop_deferred_tools(anthropic, anthropic.decode_request(raw))
        call = self.recorder.begin_call(self._observer.prepare(anthropic, wire), *also)
        response = self.provider.handle("POST", "/v1/messages", headers={"x-api-key": "key"}, body=raw)
        if response.status != 200 or call is None:
            raise ValueError(f"the simulator refused the request: {response.read_body().decode()[:300]}")
        reply = anthropic.decode_reply(response.read_body())
        self.recorder.complete_call(call, reply)
        return reply.usage

    def count_readable_tokens(self, body: Mapping[str, Json]) -> int:
        """The longest prefix of the request that is cached now, whether or not its breakpoints would find it."""
        context = RequestContext(shipped_models(), "key", self.clock(), self._counts, SimulatedExplicitCaches())
        wire = anthropic.decode_request(encode_json({"max_tokens": 100, **body}))
        tokens = {prefix.digest: prefix.tokens for prefix in parse_anthropic_request(wire, context).call.prefixes}
        return max((tokens.get(entry.digest, 0) for entry in self.provider.cache), default=0)

    @property
    def entries(self) -> list[LedgerEntry]:
        return list(iter_entries(self.store.read(self.recorder.session_id), shipped_models()))

    @property
    def verdicts(self) -> list[Verdict]:
        return [entry.verdict for entry in self.entries if entry.verdict is not None]


class CallHistory:
    """A client with a conversation of its own: prompt sizes, breakpoints, TTL, pauses and turns are drawn at random."""

    def __init__(
        self,
        seed: str,
        *,
        system_words: tuple[int, int] = (600, 1_500),
        marks: bool = True,
        store: MemoryStore | SqliteStore | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.client = RecordedClient(store)
        self.model = SONNET
        self.marks = marks
        self.hour = self.random.random() < 0.3
        self.style = self.random.choice(("system and end", "end", "automatic", "tools, system and end"))
        self.tools: list[Body] = [self.make_tool(index) for index in range(self.random.randrange(1, 4))]
        self.system: list[Json] = [text_block(self.words(*system_words))]
        self.messages: list[Body] = [self.make_user_message()]
        self.extra: Body = {}

    def words(self, low: int, high: int) -> str:
        return " ".join(self.random.choices(_WORDS, k=self.random.randrange(low, high)))

    def make_tool(self, index: int, **more: Json) -> Body:
        schema: Json = {"type": "object", "properties": {"path": {"type": "string"}}}
        return {"name": f"tool_{index}", "description": self.words(10, 60), "input_schema": schema, **more}

    def make_user_message(self, *blocks: Json) -> Body:
        return {"role": "user", "content": [*blocks, text_block(self.words(20, 200))]}

    def extend(self) -> None:
        """The reply, and the next message: of the user, or with the results of tools."""
        if self.random.random() < 0.5:
            self.messages += [{"role": "assistant", "content": [text_block("Done.")]}, self.make_user_message()]
            return
        ids = [f"call_{len(self.messages)}_{index}" for index in range(self.random.randrange(1, 4))]
        uses: list[Json] = [{"type": "tool_use", "id": id, "name": "tool_0", "input": {"path": id}} for id in ids]
        results: list[Json] = [{"type": "tool_result", "tool_use_id": id, "content": self.words(20, 150)} for id in ids]
        self.messages += [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]

    @property
    def body(self) -> Body:
        tools, system, messages = (
            [dict(tool) for tool in self.tools],
            [dict(text) for text in self.system if isinstance(text, dict)],
            [dict(message) for message in self.messages],
        )
        mark, body = MARK_1H if self.hour else MARK, dict(self.extra)
        if self.marks and self.style == "automatic":
            body["cache_control"] = mark
        elif self.marks:
            last = messages[-1]
            *others, final = last["content"] if isinstance(last["content"], list) else []
            assert isinstance(final, dict)
            last["content"] = [*others, {**final, "cache_control": mark}]
            if "system" in self.style:
                system[-1]["cache_control"] = mark
            if "tools" in self.style:
                tools[-1]["cache_control"] = mark
        return {"model": self.model, "tools": [*tools], "system": [*system], "messages": [*messages], **body}

    def send(self, *also: AnyPayload) -> Usage:
        return self.client.send(self.body, *also)

    def warm_up(self, calls_min: int = 1) -> None:
        """Calls of a conversation without a miss, and the next message."""
        for _ in range(self.random.randrange(calls_min, 4)):
            self.send()
            self.client.clock.advance(self.random.uniform(1, 250))
            self.extend()


def text_block(text: str) -> Body:
    return {"type": "text", "text": text}


def _hold(history: CallHistory) -> None:
    history.warm_up()


def _use_first(history: CallHistory) -> None:
    pass


def _stay_below_floor(history: CallHistory) -> None:
    history.system = [text_block("Be kind.")]
    history.tools = history.tools[:1]
    history.messages = [{"role": "user", "content": [text_block("So?")]}]
    for _ in range(history.random.randrange(0, 3)):
        history.send()
        history.messages += [
            {"role": "assistant", "content": [text_block("Done.")]},
            {"role": "user", "content": [text_block("And?")]},
        ]


def _expire(history: CallHistory) -> None:
    history.warm_up()
    history.client.clock.advance(history.random.uniform(*((3_601, 9_000) if history.hour else (301, 3_000))))


def _change_prefix(history: CallHistory) -> None:
    history.warm_up(2)
    match history.random.choice(("clock", "tool", "tools", "message")):
        case "clock":
            first = history.system[0]
            assert isinstance(first, dict)
            history.system = [text_block(f"It is {history.client.clock():.3f}. {first['text']}")]
        case "tool":
            history.tools[0] = {**history.tools[0], "description": history.words(10, 40)}
        case "tools":
            history.tools.append(history.make_tool(9))
        case "message":
            history.messages[0] = history.make_user_message()


def _rewrite_tail(history: CallHistory) -> None:
    """The last message of the request before has a reminder in it that is not repeated."""
    history.warm_up()
    history.send()
    sent = history.messages[-1]["content"]
    assert isinstance(sent, list)
    last = sent[-1]
    assert isinstance(last, dict)
    key = "text" if "text" in last else "content"
    history.extend()
    history.messages[-3] = {"role": "user", "content": [*sent[:-1], {**last, key: f"{last[key]} (seen)"}]}


def _change_parameter(history: CallHistory) -> None:
    history.warm_up()
    history.extra["tool_choice"] = {"type": "none"}


def _add_image(history: CallHistory) -> None:
    history.warm_up()
    content = history.messages[-1]["content"]
    assert isinstance(content, list)
    history.messages[-1] = {"role": "user", "content": [*content, PIXEL, text_block("See?")]}


def _switch_model(history: CallHistory) -> None:
    history.warm_up()
    history.model = HAIKU


def _mark_nothing(history: CallHistory) -> None:
    history.marks = history.random.random() < 0.5
    history.warm_up()
    history.marks = False


def _outgrow_lookback(history: CallHistory) -> None:
    history.style = history.random.choice(("end", "system and end", "automatic"))
    history.warm_up()
    content = history.messages[-1]["content"]
    assert isinstance(content, list)
    more: list[Json] = [text_block(f"Note {index}.") for index in range(history.random.randrange(21, 40))]
    history.messages[-1] = {"role": "user", "content": [*content, *more]}


def _evict(history: CallHistory) -> None:
    history.warm_up()
    history.client.evict()


def _load_deferred_tool(history: CallHistory) -> None:
    if history.random.random() < 0.5:
        history.tools.append(history.make_tool(7, defer_loading=True))
    if "tools" in history.style:
        history.style = "end"
    history.warm_up()
    at = history.random.randrange(0, len(history.tools) + 1)
    history.tools.insert(at, history.make_tool(8, defer_loading=True))


CAUSES: dict[str, tuple[VerdictKind, Callable[[CallHistory], None]]] = {
    "nothing": ("held", _hold),
    "a deferred tool is loaded": ("held", _load_deferred_tool),
    "the first call": ("first_use", _use_first),
    "a short prompt": ("below_floor", _stay_below_floor),
    "a pause": ("ttl_expired", _expire),
    "an early change": ("prefix_changed", _change_prefix),
    "a rewritten tail": ("tail_rewritten", _rewrite_tail),
    "a parameter": ("parameter_changed", _change_parameter),
    "the first image": ("image_rule", _add_image),
    "another model": ("model_switched", _switch_model),
    "no breakpoint": ("no_breakpoint", _mark_nothing),
    "too many blocks": ("lookback_miss", _outgrow_lookback),
    "an eviction": ("provider_side", _evict),
    "a plan": ("planned", _evict),
}
PLANNED = CacheControlsApplied(reason="the cache was invalidated")


class InjectedCall(msgspec.Struct, frozen=True):
    """The last call of a history: its verdict, and the tokens that were in the cache for it or for the call before."""

    expected: VerdictKind
    verdict: Verdict
    usage: Usage
    readable_tokens: int
    left_tokens: int

    @property
    def is_wrongly_held(self) -> bool:
        """Held, although more of this prompt was cached, or the call before had left more than was read."""
        return self.verdict.kind == "held" and self.usage.cache_read < max(self.readable_tokens, self.left_tokens)


def inject_cause(name: str, seed: int) -> InjectedCall:
    """A random history whose last call has this cause."""
    expected, inject = CAUSES[name]
    history = CallHistory(f"{name} {seed}")
    inject(history)
    left = [entry.record.usage for entry in history.client.entries[-1:]]
    readable = history.client.count_readable_tokens(history.body)
    usage = history.send(*((PLANNED,) if expected == "planned" else ()))
    left_tokens = sum(each.cache_read + each.cache_write for each in left)
    return InjectedCall(expected, history.client.verdicts[-1], usage, readable, left_tokens)


class WalkedCall(msgspec.Struct, frozen=True):
    """A call of a random walk, with the longest prefix of its prompt that was in the cache when it was sent."""

    usage: Usage
    readable_tokens: int


def walk_history(
    seed: int, calls: int, *, store: MemoryStore | SqliteStore | None = None
) -> tuple[CallHistory, list[WalkedCall]]:
    """A client that does everything at random: pauses, edits, returns to older prompts, drops its breakpoints."""
    history = CallHistory(f"walk {seed}", system_words=(300, 2_000), store=store)
    snapshots: list[tuple[list[Body], list[Json]]] = []
    walked = []
    for _ in range(calls):
        history.marks = history.random.random() < 0.85
        readable = history.client.count_readable_tokens(history.body)
        walked.append(WalkedCall(history.send(), readable))
        snapshots.append(([*history.messages], [*history.system]))
        history.client.clock.advance(history.random.choice((5, 60, 200, 400, 4_000)))
        match history.random.randrange(12):
            case 0:
                messages, system = history.random.choice(snapshots)
                history.messages, history.system = [*messages], [*system]
            case 1:
                history.system = [text_block(history.words(300, 2_000))]
            case 2:
                history.model = HAIKU if history.model == SONNET else SONNET
            case 3:
                history.extra = {} if history.extra else {"tool_choice": {"type": "none"}}
            case 4:
                history.client.evict()
            case 5:
                history.hour = not history.hour
            case 6:
                history.messages[0] = history.make_user_message(*((PIXEL,) if history.random.random() < 0.5 else ()))
            case 7:
                history.style = history.random.choice(("system and end", "end", "automatic"))
            case _:
                pass  # Most often the conversation just goes on.
        history.extend()
    return history, walked
