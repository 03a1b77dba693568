"""What a provider would answer, and what its cache would keep: all of them in one object, without a socket.

Output is never cut at `max_tokens`, and stop sequences are not looked for: a reply is what the script says.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count

import msgspec

from holdfast.cachemodel.machine import begin, publish
from holdfast.cachemodel.values import Entries, Entry, Outcome
from holdfast.canonical.blocks import Block
from holdfast.canonical.diagnosis import Diagnosis
from holdfast.canonical.encoding import digest
from holdfast.canonical.reply import Reply
from holdfast.catalog.lookup import Models, shipped_models
from holdfast.clock import Clock, CountedIds, system_clock
from holdfast.errors import ProviderError, UserError
from holdfast.providers.anthropic import anthropic
from holdfast.providers.anthropic.blocks import spell_block
from holdfast.providers.failures import header, kind_of
from holdfast.providers.keeping import NamedCache
from holdfast.providers.registry import provider_named
from holdfast.simulator.answer import Answer
from holdfast.simulator.blocks import TokenCounts
from holdfast.simulator.diagnosing import AnsweredRequests
from holdfast.simulator.dialect import NOTHING as _NOTHING
from holdfast.simulator.dialect import Asked, Dialect, Setting, Understood, refuse
from holdfast.simulator.dialects import all_dialects, dialect_of, known_routes, refusing_dialect
from holdfast.simulator.faults import DeliveryFault, Fault, RefusalFault, StatusFault, parse_fault, spoiled
from holdfast.simulator.named import NamedCaches
from holdfast.simulator.objections import objection_to, objects
from holdfast.simulator.records import RecordedRequest, RequestRing
from holdfast.simulator.reply import reply_content, stop_reason_of
from holdfast.simulator.script import Improvise, Script, ScriptedReply, parse_script
from holdfast.simulator.wire import SimulatedWire

FAULT_HEADER = "x-holdfast-fault"
ADVANCE_SECONDS_MAX = 10 * 365 * 24 * 3_600.0
FAILING_TURNS_MAX = 10_000
PATH_CHARS_MAX = 80
_numbers = count(1)


class SimulatedProvider:
    """Every provider's API, its cache included. Any key is accepted; one key is one workspace.

    Same clock, same script, same requests: same answers, byte for byte.
    """

    def __init__(
        self,
        *,
        clock: Clock = system_clock,
        script: Script | Improvise | str | bytes | None = None,
        models: Models | None = None,
        requests: RequestRing | None = None,
    ) -> None:
        self._clock = clock
        self._advanced_seconds = 0.0
        self._script = parse_script(script) if isinstance(script, str | bytes) else script or Script()
        self._models = models
        self._requests = requests or RequestRing()
        self._entries = Entries()
        self._named = NamedCaches()
        self._answered = AnsweredRequests()
        self._failures: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._count = TokenCounts()
        self._dialects = all_dialects()
        self._reply_ids = {each.reply_id_prefix: CountedIds(each.reply_id_prefix) for each in self._dialects}
        self._request_ids = CountedIds("req_sim")
        self.account = f"simulator {next(_numbers)}"

    def wire(self, models: Models | None = None, *, provider: str = anthropic.name) -> SimulatedWire:
        """A way to reach this provider without a socket; it knows these models, unless it was told its own."""
        if self._models is None:
            self._models = models
        return SimulatedWire(self, provider_named(provider))

    def _known(self) -> Models:
        return shipped_models() if self._models is None else self._models

    def now(self) -> float:
        return self._clock() + self._advanced_seconds

    def advance(self, seconds: float) -> float:
        """Move the provider's time on; returns what time it is there then."""
        if not (math.isfinite(seconds) and 0 <= seconds <= ADVANCE_SECONDS_MAX):
            raise UserError(f"cannot advance by {seconds} s; give 0 to {ADVANCE_SECONDS_MAX:.0f} seconds")
        self._advanced_seconds += seconds
        return self.now()

    @property
    def requests(self) -> tuple[RecordedRequest, ...]:
        """The latest requests, oldest first."""
        return self._requests.newest()

    @property
    def cache(self) -> tuple[Entry, ...]:
        """What can be read from the cache now."""
        return self._entries.live(at=self.now())

    @property
    def named_caches(self) -> tuple[NamedCache, ...]:
        """The caches that were made under a name, of all keys."""
        return tuple(kept.cache for kept in self._named.live(at=self.now()))

    def answer(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] = _NOTHING,
        body: bytes = b"",
        query: Mapping[str, str] = _NOTHING,
    ) -> Answer:
        at = self.now()
        asked = Asked(method, path, headers, body, query)
        try:
            answer = self._answer(asked)
        except ProviderError as error:
            answer = self._refusal(asked, error)
        except UserError as error:
            # The cache sees marks in its own order, which web search can make another than the wire's.
            answer = self._refusal(asked, refuse(str(error)))
        self._requests.add(RecordedRequest(at, method, path, answer.status, body, answer.model, answer.reply))
        return answer

    def _refusal(self, asked: Asked, error: ProviderError) -> Answer:
        """What the provider that was asked says when it refuses."""
        dialect = refusing_dialect(asked, self._dialects)
        status, body = dialect.refusal(error)
        return self._whole(dialect, body, status=status)

    def _answer(self, asked: Asked) -> Answer:
        dialect = dialect_of(asked, self._dialects)
        if dialect is None:
            # The address is most often what is wrong, and the client's message is cut after a line or two.
            raise refuse(
                f"no such endpoint: {asked.method} {asked.path[:PATH_CHARS_MAX]}; base URLs end in the port for "
                f"Anthropic and Gemini, in /v1 for OpenAI, in /api/v1 for OpenRouter. There are "
                f"{known_routes(self._dialects)}",
                status=404,
            )
        workspace = digest(_key_in(asked.headers, dialect.key_header).encode(errors="replace"))[:16]
        ordered = header(asked.headers, FAULT_HEADER)
        fault = None if ordered is None else _fault_ordered(ordered)
        if isinstance(fault, StatusFault):
            return self._fail(dialect, fault)
        request = dialect.understand(asked, Setting(self._known(), workspace, self.now(), self._count, self._named))
        if isinstance(request, bytes):
            return self._whole(dialect, request)
        return self._reply_to(dialect, request, fault)

    def _reply_to(self, dialect: Dialect, request: Understood, ordered: DeliveryFault | RefusalFault | None) -> Answer:
        scripted = self._scripted(request)
        fault = ordered or (None if request.prewarmed else self._next_fault(request, scripted))
        if isinstance(fault, StatusFault):
            return self._fail(dialect, fault)
        if isinstance(fault, RefusalFault):
            if objects(fault, request):
                raise objection_to(request, fault, dialect.provider)
            fault = None
        outcome, self._entries = begin(request.model.cache, self._entries, request.call)
        reply = self._reply(dialect, request, scripted, outcome)
        spelled = dialect.spell(reply, request)
        if isinstance(spelled, bytes):
            answer = self._whole(dialect, spelled, begins=outcome)
        else:
            headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
            answer = Answer(200, headers | self._request_id(dialect), self._begun(outcome, spelled))
        asked = f"{dialect.provider}:{request.parameters.model}"
        answer = msgspec.structs.replace(answer, model=asked, reply=reply)
        return spoiled(answer, fault, streamed=request.parameters.stream) if fault else answer

    def _scripted(self, request: Understood) -> ScriptedReply:
        script = self._script
        return script.reply_to(request.turn) if isinstance(script, Script) else script(request.messages)

    def _reply(self, dialect: Dialect, request: Understood, scripted: ScriptedReply, outcome: Outcome) -> Reply:
        content: tuple[Block, ...] = ()
        if not request.prewarmed:
            written = reply_content(
                scripted, request.messages, prefix=request.prefix, call_id_prefix=dialect.call_id_prefix
            )
            content = dialect.sealed(written, request)
        stop_reason = request.prewarmed or stop_reason_of(scripted, content)
        stops = request.parameters.stop_sequences
        id = self._reply_ids[dialect.reply_id_prefix](request.call.at)
        return Reply(
            content=content,
            stop_reason=stop_reason,
            usage=msgspec.structs.replace(outcome.usage, output=self._tokens(request, content)),
            model=request.parameters.model,
            id=id,
            stop_sequence=next(iter(stops), None) if stop_reason == "stop_sequence" else None,
            diagnosis=self._diagnosed(request, outcome, id),
        )

    def _diagnosed(self, request: Understood, outcome: Outcome, reply_id: str) -> Diagnosis | None:
        """What the request is told of its cache, if it asked; later ones may be compared with it."""
        fingerprint, wish = request.fingerprint, request.wish
        if fingerprint is None:
            return None
        told = self._answered.diagnose(wish, fingerprint, request.call, outcome.usage) if wish else None
        self._answered.remember(reply_id, fingerprint, request.call, outcome.usage)
        return told

    def _begun(self, outcome: Outcome, chunks: Iterable[bytes]) -> Iterator[bytes]:
        self._entries = publish(self._entries, outcome)
        yield from chunks

    def _tokens(self, request: Understood, content: Sequence[Block]) -> int:
        factor = request.model.tokens_factor
        return sum(self._count(spell_block(block), factor) for block in content)

    def _next_fault(self, request: Understood, scripted: ScriptedReply) -> Fault | None:
        """The next of the failures that the script puts before this reply; each comes once in a conversation.

        What a provider objects to it refuses until it is gone.
        """
        known_by = [(conversation, request.turn) for conversation in request.conversations]
        turn = next((one for one in known_by if one in self._failures), known_by[0])
        for failed in range(self._failures.get(turn, 0), len(scripted.faults)):
            fault = scripted.faults[failed]
            lasting = isinstance(fault, RefusalFault) and fault.objection != "unpaired"
            if isinstance(fault, RefusalFault) and not objects(fault, request):
                continue
            self._failures[turn] = failed if lasting else failed + 1
            if len(self._failures) > FAILING_TURNS_MAX:
                self._failures.popitem(last=False)
            return fault
        return None

    def _fail(self, dialect: Dialect, fault: StatusFault) -> Answer:
        failure = ProviderError(kind_of(fault.status, ""), "this failure was ordered", status=fault.status)
        status, body = dialect.refusal(failure)
        pause = fault.retry_after_seconds
        headers = {} if pause is None else {"retry-after": f"{pause:g}"}
        return self._whole(dialect, body, status=status, headers=headers)

    def _whole(
        self,
        dialect: Dialect,
        body: bytes,
        *,
        status: int = 200,
        headers: Mapping[str, str] = _NOTHING,
        begins: Outcome | None = None,
    ) -> Answer:
        told = {"content-type": "application/json", **headers, **self._request_id(dialect)}
        return Answer(status, told, self._begun(begins, [body]) if begins else (body,))

    def _request_id(self, dialect: Dialect) -> dict[str, str]:
        return {dialect.request_id_header: self._request_ids(self.now())}


def _key_in(headers: Mapping[str, str], expected: str) -> str:
    """Any key is good, in the header of any provider."""
    scheme, _, token = (header(headers, "authorization") or "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    key = header(headers, "x-api-key") or header(headers, "x-goog-api-key") or bearer
    if not key:
        raise ProviderError(
            "auth", f"{expected} header is required; any key will do, also as Authorization: Bearer", status=401
        )
    return key


def _fault_ordered(text: str) -> Fault:
    try:
        return parse_fault(text)
    except UserError as error:
        raise refuse(f"{FAULT_HEADER}: {error}") from error
