"""What went through, as sessions in the log: calls, usage, cost, and whether the cache held."""

import functools
from collections.abc import Callable

import msgspec

from holdfast.canonical.encoding import digest
from holdfast.canonical.reply import Reply, ReplyFinished
from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import Models
from holdfast.clock import NewId
from holdfast.engine.harmless import Warnings
from holdfast.engine.recorder import Call, Recorder, Resumed, billed
from holdfast.engine.witness import Witness
from holdfast.errors import ProviderError
from holdfast.events.log import Log
from holdfast.events.payloads import Parent, SessionStarted
from holdfast.events.payloads_gateway import GatewayForwarded, Trace
from holdfast.gateway.clues import clues_in
from holdfast.gateway.conversations import Conversations, Found, Said
from holdfast.gateway.decoding import plain_body
from holdfast.gateway.exchange import Exchange
from holdfast.gateway.habits import Habits, as_sent, habits_of, with_diff
from holdfast.gateway.improving import Improver
from holdfast.gateway.letters import Letter
from holdfast.gateway.notes import Notes
from holdfast.gateway.remembering import remembered, wider_scope
from holdfast.gateway.reply import Headers
from holdfast.gateway.shadow import Shadow, shape_of
from holdfast.providers.adapter import PATH, Adapter, WireRequest
from holdfast.providers.registry import adapter_for

_NOT_RECORDED = "a call is not recorded"
HEAD_CHARS = 40
DIGEST_CHARS = 16
BUSY_NOTES = 64
"""Where so many calls wait for their record, habits are not looked for."""
_UNREAD = "a reply cannot be read, so that nobody knows what it took"

Spent = Callable[[str, float, float], None]
"""What a call of a key's holder cost: the key's id, when, in dollars."""


class _Followed(msgspec.Struct, frozen=True):
    """A conversation: what records it, and what prices it."""

    witness: Witness
    shadow: Shadow


class _UnderWay(msgspec.Struct, frozen=True):
    key: int
    adapter: Adapter
    recorder: Recorder
    call: Call
    shadow: Shadow
    priced_number: int


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
        self._conversations: Conversations[_Followed] = Conversations()
        self._now = 0.0
        self._remembers = False
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

    def pinged(self, exchange: Exchange, letter: Letter, answer: bytes, at: float) -> None:
        """A request that asked for nothing was answered, to keep what this exchange has written."""
        self._put(functools.partial(self._keep, exchange, letter, answer, at), exchange)

    def wait_until_recorded(self, seconds_max: float) -> bool:
        return self._notes.wait_until_empty(seconds_max)

    def close(self) -> None:
        self._notes.close()

    def _put(self, work: Callable[[], None], exchange: Exchange) -> None:
        if not self._notes.put(work, exchange.kept_bytes):
            self._warnings.once("the record cannot keep up: calls are forwarded and not recorded; /metrics counts them")

    def _worked_on(self, work: Callable[[], None]) -> None:
        if not self._remembers:
            self._remembers = True
            with self._warnings.harmless("sessions of before are not known again"):
                self._remember()
        with self._warnings.harmless(_NOT_RECORDED):
            work()

    def _remember(self) -> None:
        """Conversations of earlier processes go on as the sessions that they were."""
        for one in remembered(self._log):
            witness = Witness(self._recorder(SessionStarted, one.resumed), self._warnings)
            self._conversations.restore(one.said, _Followed(witness, Shadow()), one.reply_id)

    def _begin(self, exchange: Exchange) -> None:
        body, speaks, original = exchange.request_body, exchange.target.speaks, exchange.original
        if body is None or speaks is None:
            return
        exchange.request_was_read()
        self._now = exchange.asked_at
        adapter = adapter_for(speaks)
        plain = plain_body(body, _told(exchange.headers, b"content-encoding"))
        wire = adapter.read_request(plain, {PATH: exchange.target.path})
        said = _said(exchange, wire, plain)
        found, followed = self._conversations.enter(said, functools.partial(self._opened, exchange))
        witness, shadow = followed.witness, followed.shadow
        prepared = witness.prepared(adapter, wire)
        shared, pieces = witness.recorder.shared(prepared.links), witness.newest.pieces if witness.newest else []
        if exchange.changes:
            changes = with_diff(exchange.changes, original, plain) if original is not None else exchange.changes
            priced = as_sent(adapter, prepared.row, shadow, (wire, exchange.asked_at, prepared.tokens))
        else:
            asked = (adapter, wire, exchange.asked_at, prepared.tokens)
            habits = self._habits(exchange, plain, shadow, asked)
            changes, priced = habits.changes, habits.priced
        forwarded = GatewayForwarded(
            because=found.because,
            confidence=found.confidence,
            key_id=exchange.caller.key_id,
            user_id=exchange.caller.user_id,
            team_id=exchange.caller.team_id,
            improved=bool(exchange.changes),
            changes=changes,
            trace=_trace(exchange.target.mount, said, found),
            shape=shape_of(pieces[shared:]),
            priced=priced,
        )
        call = witness.recorder.begin(prepared, forwarded)
        if call is not None:
            exchange.record = _UnderWay(
                found.key, adapter, witness.recorder, call, shadow, shadow.priced_count if priced else 0
            )

    def _habits(
        self, exchange: Exchange, body: bytes, shadow: Shadow, asked: tuple[Adapter, WireRequest, float, int]
    ) -> Habits:
        """What improving would have changed; nothing while there is more to be recorded than time for it."""
        if max(self._notes.waiting, exchange.waiting) > BUSY_NOTES:
            return Habits()
        try:
            return habits_of(self._improver, exchange.target, body, shadow=shadow, call=asked)
        except Exception:  # noqa: BLE001 - what cannot be improved has no habits that we could name
            return Habits()

    def _opened(self, exchange: Exchange, above: "_Followed | None") -> "_Followed":
        session = None if above is None else above.witness.recorder.session_id
        parent = None if session is None else Parent(session, "", session, 1)
        opening = functools.partial(
            SessionStarted, name=exchange.caller.label, parent=parent, simulated=self._simulated
        )
        return _Followed(Witness(self._recorder(opening), self._warnings), Shadow())

    def _recorder(self, opening: Callable[[str], SessionStarted], resumed: Resumed | None = None) -> Recorder:
        return Recorder(
            self._log,
            models=self._models,
            clock=lambda: self._now,
            new_id=self._new_id,
            warnings=self._warnings,
            session_started=opening,
            resumed=resumed,
        )

    def _finish(self, exchange: Exchange) -> None:
        under_way = exchange.record
        if not isinstance(under_way, _UnderWay):
            return
        self._now = exchange.ended_at
        reply: Reply | None = None
        try:
            reply = self._settled(exchange, under_way)
        finally:
            exchange.reply_was_read()
            self._conversations.left(under_way.key, reply.id if reply else "")

    def _keep(self, exchange: Exchange, letter: Letter, answer: bytes, at: float) -> None:
        under_way = exchange.record
        if isinstance(under_way, _UnderWay):
            self._now = at
            usage = under_way.adapter.read_reply(answer).usage
            cost = under_way.recorder.ping(under_way.call, usage, ttl=letter.ttl, block=letter.piece)
            if exchange.caller.key_id is not None:
                self._spent(exchange.caller.key_id, at, float(cost))

    def _settled(self, exchange: Exchange, under_way: _UnderWay) -> Reply | None:
        recorder, call = under_way.recorder, under_way.call
        reply, whole, failure = self._read(exchange, under_way.adapter)
        if reply is not None and whole:
            recorder.complete(call, reply)
            sent = reply.answering.tokens_sent
            if sent and call.prepared.tokens:
                under_way.shadow.tokens_factor = sent / call.prepared.tokens
        elif failure is not None:
            recorder.fail(call, failure.kind, _told_of(exchange, failure), reply)
        elif exchange.end == "cancelled":
            recorder.fail(call, "cancelled", "the client left before the end of the reply", reply)
        elif exchange.end == "whole":
            recorder.fail(call, "other", "the reply could not be read", reply)
        else:
            recorder.fail(call, "network", "the upstream ended before its reply was whole", reply)
        if reply is None or reply.usage == Usage():
            under_way.shadow.take_back(under_way.priced_number)
        if exchange.caller.key_id is not None and reply is not None:
            self._spent(
                exchange.caller.key_id, call.started_at, float(recorder.cost_of(call, billed(call, reply.usage)))
            )
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


def _said(exchange: Exchange, wire: WireRequest, body: bytes) -> Said:
    clues, mount, caller = clues_in(body, exchange.headers), exchange.target.mount, exchange.caller
    if clues.session is not None:
        clues = msgspec.structs.replace(clues, session=_short(clues.session.encode("utf-8", "surrogatepass")))
    scope = f"{mount} {caller.account}"
    return Said(scope, _head_of(wire), _blocks_of(wire), clues, wider_scope(mount, caller.key_id))


def _trace(mount: str, said: Said, found: Found) -> Trace:
    return Trace(mount, said.head, found.kept, said.blocks[found.kept :], said.clues.session, said.clues.because)


def _short(said: bytes) -> str:
    return digest(said)[:DIGEST_CHARS]


def _head_of(wire: WireRequest) -> str:
    """What stays the same even where a head is badly kept: names of tools, and how the first text begins."""
    tools = sorted(tool.name for tool in wire.prompt.tools)
    texts = (text.text for segment in wire.prompt.segments for text in segment.system)
    return _short(msgspec.json.encode((wire.parameters.model, tools, next(texts, "")[:HEAD_CHARS])))


def _blocks_of(wire: WireRequest) -> tuple[str, ...]:
    passages = wire.prompt.passages
    return tuple(
        _short(msgspec.json.encode((passage.role, block))) for passage in passages for block in passage.content
    )
