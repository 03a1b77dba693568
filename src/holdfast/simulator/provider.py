"""Simulates the providers' APIs and their prompt caches in one object, without a socket.

Output is never cut at `max_tokens` and stop sequences are ignored: a reply is exactly what the script contains.
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
FAILING_TURNS_MAX = 10_000  # Bounds the memory of a long-running simulator.
PATH_CHARS_MAX = 80
_numbers = count(1)


class SimulatedProvider:
    """Every provider's API with its cache. Any API key is accepted; each key is its own workspace.

    Deterministic: the same clock, script and requests give the same responses, byte for byte.
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
        self._explicit_caches = NamedCaches()
        self._past_requests = AnsweredRequests()
        self._failures: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._count = TokenCounts()
        self._dialects = all_dialects()
        self._reply_ids = {dialect.reply_id_prefix: CountedIds(dialect.reply_id_prefix) for dialect in self._dialects}
        self._request_ids = CountedIds("req_sim")
        self.account = f"simulator {next(_numbers)}"

    def wire(self, models: Models | None = None, *, provider: str = anthropic.name) -> SimulatedWire:
        """An in-process transport to this provider; `models` applies unless the provider was created with its own."""
        if self._models is None:
            self._models = models
        return SimulatedWire(self, provider_named(provider))

    def _known(self) -> Models:
        return shipped_models() if self._models is None else self._models

    def now(self) -> float:
        return self._clock() + self._advanced_seconds

    def advance(self, seconds: float) -> float:
        """Move the provider's clock forward; returns its new time."""
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
        """The cache entries that can be read now."""
        return self._entries.live(at=self.now())

    @property
    def named_caches(self) -> tuple[NamedCache, ...]:
        """The live explicit caches of all API keys."""
        return tuple(content.cache for content in self._explicit_caches.live(at=self.now()))

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
        request = Asked(method, path, headers, body, query)
        try:
            response = self._answer(request)
        except ProviderError as error:
            response = self._refuse(request, error)
        except UserError as error:
            # The cache orders breakpoints in its own way, and web search can make that differ from the request's order.
            response = self._refuse(request, refuse(str(error)))
        self._requests.add(RecordedRequest(at, method, path, response.status, body, response.model, response.reply))
        return response

    def _refuse(self, request: Asked, error: ProviderError) -> Answer:
        """An error response in the dialect that the request uses."""
        dialect = refusing_dialect(request, self._dialects)
        status, body = dialect.refusal(error)
        return self._respond_json(dialect, body, status=status)

    def _answer(self, http_request: Asked) -> Answer:
        dialect = dialect_of(http_request, self._dialects)
        if dialect is None:
            # The base URL is the usual cause, so it comes first: clients cut the message after a line or two.
            raise refuse(
                f"no such endpoint: {http_request.method} {http_request.path[:PATH_CHARS_MAX]}; "
                f"base URLs end in the port for Anthropic and Gemini, in /v1 for OpenAI, in /api/v1 for "
                f"OpenRouter. There are {known_routes(self._dialects)}",
                status=404,
            )
        # Providers isolate caches by workspace; here each API key is one. Only a digest of the key is kept.
        workspace = digest(_read_api_key(http_request.headers, dialect.key_header).encode(errors="replace"))[:16]
        fault_header = header(http_request.headers, FAULT_HEADER)
        fault = None if fault_header is None else _parse_fault_header(fault_header)
        if isinstance(fault, StatusFault):
            return self._fail(dialect, fault)
        request = dialect.understand(
            http_request, Setting(self._known(), workspace, self.now(), self._count, self._explicit_caches)
        )
        if isinstance(request, bytes):
            return self._respond_json(dialect, request)
        return self._reply_to(dialect, request, fault)

    def _reply_to(
        self, dialect: Dialect, request: Understood, requested_fault: DeliveryFault | RefusalFault | None
    ) -> Answer:
        scripted = self._next_scripted(request)
        fault = requested_fault or (None if request.prewarmed else self._next_fault(request, scripted))
        if isinstance(fault, StatusFault):
            return self._fail(dialect, fault)
        if isinstance(fault, RefusalFault):
            if objects(fault, request):
                raise objection_to(request, fault, dialect.provider)
            fault = None
        outcome, self._entries = begin(request.model.cache, self._entries, request.call)
        reply = self._reply(dialect, request, scripted, outcome)
        encoded = dialect.spell(reply, request)
        if isinstance(encoded, bytes):
            response = self._respond_json(dialect, encoded, begins=outcome)
        else:
            headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
            response = Answer(200, headers | self._request_id(dialect), self._publish_on_read(outcome, encoded))
        model_id = f"{dialect.provider}:{request.parameters.model}"
        response = msgspec.structs.replace(response, model=model_id, reply=reply)
        return spoiled(response, fault, streamed=request.parameters.stream) if fault else response

    def _next_scripted(self, request: Understood) -> ScriptedReply:
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
            usage=msgspec.structs.replace(outcome.usage, output=self._count_tokens(request, content)),
            model=request.parameters.model,
            id=id,
            stop_sequence=next(iter(stops), None) if stop_reason == "stop_sequence" else None,
            diagnosis=self._diagnose(request, outcome, id),
        )

    def _diagnose(self, request: Understood, outcome: Outcome, reply_id: str) -> Diagnosis | None:
        """The cache diagnosis, if the request asks for one; the request is remembered for later comparisons."""
        fingerprint, wish = request.fingerprint, request.wish
        if fingerprint is None:
            return None
        diagnosis = self._past_requests.diagnose(wish, fingerprint, request.call, outcome.usage) if wish else None
        self._past_requests.remember(reply_id, fingerprint, request.call, outcome.usage)
        return diagnosis

    def _publish_on_read(self, outcome: Outcome, chunks: Iterable[bytes]) -> Iterator[bytes]:
        # A cache entry becomes readable when the response that wrote it begins, so not before the first chunk is read.
        self._entries = publish(self._entries, outcome)
        yield from chunks

    def _count_tokens(self, request: Understood, content: Sequence[Block]) -> int:
        factor = request.model.tokens_factor
        return sum(self._count(spell_block(block), factor) for block in content)

    def _next_fault(self, request: Understood, scripted: ScriptedReply) -> Fault | None:
        """The next fault that the script puts before this reply; each occurs once per conversation.

        A refusal repeats until the request no longer contains what the provider objects to.
        """
        keys = [(conversation, request.turn) for conversation in request.conversations]
        key = next((candidate for candidate in keys if candidate in self._failures), keys[0])
        for index in range(self._failures.get(key, 0), len(scripted.faults)):
            fault = scripted.faults[index]
            repeats = isinstance(fault, RefusalFault) and fault.objection != "unpaired"
            if isinstance(fault, RefusalFault) and not objects(fault, request):
                continue
            # An unpaired tool call is refused once; other objections as long as their cause is in the request.
            self._failures[key] = index if repeats else index + 1
            if len(self._failures) > FAILING_TURNS_MAX:
                self._failures.popitem(last=False)
            return fault
        return None

    def _fail(self, dialect: Dialect, fault: StatusFault) -> Answer:
        failure = ProviderError(kind_of(fault.status, ""), "this failure was ordered", status=fault.status)
        status, body = dialect.refusal(failure)
        pause = fault.retry_after_seconds
        headers = {} if pause is None else {"retry-after": f"{pause:g}"}
        return self._respond_json(dialect, body, status=status, headers=headers)

    def _respond_json(
        self,
        dialect: Dialect,
        body: bytes,
        *,
        status: int = 200,
        headers: Mapping[str, str] = _NOTHING,
        begins: Outcome | None = None,
    ) -> Answer:
        all_headers = {"content-type": "application/json", **headers, **self._request_id(dialect)}
        return Answer(status, all_headers, self._publish_on_read(begins, [body]) if begins else (body,))

    def _request_id(self, dialect: Dialect) -> dict[str, str]:
        return {dialect.request_id_header: self._request_ids(self.now())}


def _read_api_key(headers: Mapping[str, str], expected: str) -> str:
    """Any key is accepted, in the header of any provider."""
    scheme, _, token = (header(headers, "authorization") or "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    key = header(headers, "x-api-key") or header(headers, "x-goog-api-key") or bearer
    if not key:
        raise ProviderError(
            "auth", f"{expected} header is required; any key will do, also as Authorization: Bearer", status=401
        )
    return key


def _parse_fault_header(text: str) -> Fault:
    try:
        return parse_fault(text)
    except UserError as error:
        raise refuse(f"{FAULT_HEADER}: {error}") from error
