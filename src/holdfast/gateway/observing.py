"""What went through, as sessions in the log: calls, usage, cost, and whether the cache held."""

import functools
from collections.abc import Callable

import msgspec

from holdfast.canonical.encoding import digest
from holdfast.canonical.reply import Reply, ReplyFinished
from holdfast.catalog.lookup import Models
from holdfast.clock import NewId
from holdfast.engine.harmless import Warnings
from holdfast.engine.recorder import Call, Recorder
from holdfast.engine.witness import Witness
from holdfast.errors import ProviderError
from holdfast.events.log import Log
from holdfast.events.payloads import Parent, SessionStarted
from holdfast.events.payloads_gateway import Change, GatewayForwarded
from holdfast.gateway.clues import clues_in
from holdfast.gateway.conversations import Conversations, Said
from holdfast.gateway.decoding import plain_body
from holdfast.gateway.exchange import Exchange
from holdfast.gateway.improving import Improver
from holdfast.gateway.notes import Notes
from holdfast.gateway.reply import Headers
from holdfast.providers.adapter import PATH, Adapter, WireRequest
from holdfast.providers.registry import adapter_for

_NOT_RECORDED = "a call is not recorded"
HEAD_CHARS = 40
_UNREAD = "a reply cannot be read, so that nobody knows what it took"

Spent = Callable[[str, float, float], None]
"""What a call of a key's holder cost: the key's id, when, in dollars."""


class _UnderWay(msgspec.Struct, frozen=True):
    key: int
    adapter: Adapter
    recorder: Recorder
    call: Call


class Observer:
    """Notes exchanges and works on them in a thread of its own. Nothing in here raises, waits, or keeps a body."""

    def __init__(
        self,
        log: Log,
        *,
        models: Models,
        new_id: NewId,
        simulated: bool = False,
        improver: Improver | None = None,
        spent: Spent = lambda key_id, at, dollars: None,
        notes: Callable[[Callable[[Callable[[], None]], None]], Notes[Callable[[], None]]] = Notes,
    ) -> None:
        self._log = log
        self._models = models
        self._new_id = new_id
        self._simulated = simulated
        self._improver = improver or Improver(models)
        self._spent = spent
        self._warnings = Warnings("holdfast.gateway")
        self._conversations: Conversations[Witness] = Conversations()
        self._now = 0.0
        self._notes = notes(self._worked_on)

    @property
    def dropped(self) -> int:
        """How many notes were dropped because the record could not keep up."""
        return self._notes.dropped

    def asked(self, exchange: Exchange) -> None:
        if exchange.target.speaks is not None:
            self._put(functools.partial(self._begin, exchange), exchange)

    def ended(self, exchange: Exchange) -> None:
        if exchange.target.speaks is not None:
            self._put(functools.partial(self._finish, exchange), exchange)

    def wait_until_recorded(self, seconds_max: float) -> bool:
        return self._notes.wait_until_empty(seconds_max)

    def close(self) -> None:
        self._notes.close()

    def _put(self, work: Callable[[], None], exchange: Exchange) -> None:
        if not self._notes.put(work, exchange.kept_bytes):
            self._warnings.once("the record cannot keep up: calls are forwarded and not recorded; /metrics counts them")

    def _worked_on(self, work: Callable[[], None]) -> None:
        with self._warnings.harmless(_NOT_RECORDED):
            work()

    def _begin(self, exchange: Exchange) -> None:
        body, speaks = exchange.request_body, exchange.target.speaks
        if body is None or speaks is None:
            return
        exchange.request_was_read()
        self._now = exchange.asked_at
        adapter = adapter_for(speaks)
        plain = plain_body(body, _told(exchange.headers, b"content-encoding"))
        wire = adapter.read_request(plain, {PATH: exchange.target.path})
        scope = f"{exchange.target.mount} {exchange.caller.account}"
        said = Said(scope, _head_of(wire), _blocks_of(wire), clues_in(plain, exchange.headers))
        found, witness = self._conversations.enter(said, functools.partial(self._opened, exchange))
        prepared = witness.prepared(adapter, wire)
        improved = bool(exchange.changes)
        changes = exchange.changes or self._habits(speaks, plain)
        forwarded = GatewayForwarded(found.because, found.confidence, exchange.caller.key_id, improved, changes)
        call = witness.recorder.begin(prepared, forwarded)
        if call is not None:
            exchange.record = _UnderWay(found.key, adapter, witness.recorder, call)

    def _habits(self, speaks: str, body: bytes) -> tuple[Change, ...]:
        """What improving would have changed."""
        try:
            changes = self._improver.improved(speaks, body).changes
        except Exception:  # noqa: BLE001 - what cannot be improved has no habits that we could name
            return ()
        return tuple(msgspec.structs.replace(change, done=False) for change in changes)

    def _opened(self, exchange: Exchange, above: Witness | None) -> Witness:
        parent = None if above is None else Parent(above.recorder.session_id, "", above.recorder.session_id, 1)
        opening = functools.partial(
            SessionStarted, name=exchange.caller.label, parent=parent, simulated=self._simulated
        )
        recorder = Recorder(
            self._log,
            models=self._models,
            clock=lambda: self._now,
            new_id=self._new_id,
            warnings=self._warnings,
            opening=opening,
        )
        return Witness(recorder, self._warnings)

    def _finish(self, exchange: Exchange) -> None:
        under_way = exchange.record
        if not isinstance(under_way, _UnderWay):
            return
        self._now = exchange.ended_at
        reply: Reply | None = None
        try:
            reply = self._settled(exchange, under_way)
        finally:
            self._conversations.left(under_way.key, reply.id if reply else "")

    def _settled(self, exchange: Exchange, under_way: _UnderWay) -> Reply | None:
        recorder, call = under_way.recorder, under_way.call
        reply, whole, failure = self._read(exchange, under_way.adapter)
        if reply is not None and whole:
            recorder.complete(call, reply)
        elif failure is not None:
            recorder.fail(call, failure.kind, _told_of(exchange, failure), reply)
        elif exchange.end == "cancelled":
            recorder.fail(call, "cancelled", "the client left before the end of the reply", reply)
        elif exchange.end == "whole":
            recorder.fail(call, "other", "the reply could not be read", reply)
        else:
            recorder.fail(call, "network", "the upstream ended before its reply was whole", reply)
        if exchange.caller.key_id is not None and reply is not None:
            self._spent(exchange.caller.key_id, call.started_at, float(recorder.cost_of(call, reply.usage)))
        return reply

    def _read(self, exchange: Exchange, adapter: Adapter) -> tuple[Reply | None, bool, ProviderError | None]:
        """What came of a reply, whether it is whole, and how it failed, if it says so."""
        body = exchange.reply_body
        if body is None or not exchange.status:
            return None, False, None
        try:
            plain = plain_body(body, _told(exchange.reply_headers, b"content-encoding"))
            if exchange.status != 200:
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in exchange.reply_headers}
                return None, False, adapter.read_error(exchange.status, headers, plain)
            if _told(exchange.reply_headers, b"content-type").startswith("text/event-stream"):
                return _streamed(adapter, plain)
            return (adapter.read_reply(plain), True, None) if exchange.end == "whole" else (None, False, None)
        except ProviderError:
            self._warnings.once(_UNREAD)
            return None, False, None


def _streamed(adapter: Adapter, body: bytes) -> tuple[Reply | None, bool, ProviderError | None]:
    reader = adapter.stream_reader()
    try:
        for delta in reader.feed(body):
            if isinstance(delta, ReplyFinished):
                return delta.reply, True, None
    except ProviderError as error:
        return reader.partial(), False, error
    return reader.partial(), False, None


def _told_of(exchange: Exchange, failure: ProviderError) -> str:
    """Names the failure and quotes nothing: its message may hold what was sent."""
    status = failure.status or exchange.status
    return f"{failure.kind} (HTTP status {status})"


def _told(headers: Headers, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in headers if name.lower() == wanted), "")


def _head_of(wire: WireRequest) -> str:
    """What stays the same even where a head is badly kept: names of tools, and how the first text begins."""
    tools = sorted(tool.name for tool in wire.prompt.tools)
    texts = (text.text for segment in wire.prompt.segments for text in segment.system)
    return digest(msgspec.json.encode((wire.parameters.model, tools, next(texts, "")[:HEAD_CHARS])))


def _blocks_of(wire: WireRequest) -> tuple[str, ...]:
    passages = wire.prompt.passages
    return tuple(
        digest(msgspec.json.encode((passage.role, block))) for passage in passages for block in passage.content
    )
