"""What Anthropic would answer, and what its cache would keep: a provider in one object, without a socket.

Output is never cut at `max_tokens`, and stop sequences are not looked for: a reply is what the script says.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from holdfast.cachemodel.machine import begin, publish
from holdfast.cachemodel.values import Entries, Entry, Outcome
from holdfast.canonical.blocks import Block
from holdfast.canonical.encoding import digest, plain_json
from holdfast.canonical.reply import Reply
from holdfast.catalog.lookup import Models, shipped_models
from holdfast.clock import Clock, CountedIds, system_clock
from holdfast.errors import ProviderError, UserError
from holdfast.providers.adapter import WireRequest
from holdfast.providers.anthropic import anthropic
from holdfast.providers.anthropic.blocks import spell_block
from holdfast.providers.failures import header
from holdfast.providers.registry import provider_named
from holdfast.simulator.answer import Answer
from holdfast.simulator.blocks import TokenCounts
from holdfast.simulator.checks import BINDING_BETA, refuse
from holdfast.simulator.faults import DeliveryFault, Fault, StatusFault, parse_fault, spoiled
from holdfast.simulator.listing import describe, list_models
from holdfast.simulator.records import RecordedRequest, RequestRing
from holdfast.simulator.reply import (
    reply_content,
    stop_reason_of,
    stream_with_input_transformations,
    with_input_transformations,
)
from holdfast.simulator.script import Script, ScriptedReply, parse_script
from holdfast.simulator.thinking import sealed
from holdfast.simulator.understand import Understood, model_named, understand
from holdfast.simulator.wire import SimulatedWire

API_VERSIONS = ("2023-06-01", "2026-10-21")
FAULT_HEADER = "x-holdfast-fault"
ADVANCE_SECONDS_MAX = 10 * 365 * 24 * 3_600.0
FAILING_TURNS_MAX = 10_000

_MESSAGES = "/v1/messages"
_COUNT = "/v1/messages/count_tokens"
_MODELS = "/v1/models"
_ROUTES = (("POST", _MESSAGES), ("POST", _COUNT), ("GET", _MODELS))
_NOTHING: Mapping[str, str] = MappingProxyType({})


class SimulatedProvider:
    """Anthropic's API, its cache included. Any key is accepted; one key is one workspace.

    Same clock, same script, same requests: same answers, byte for byte.
    """

    def __init__(
        self,
        *,
        clock: Clock = system_clock,
        script: Script | str | bytes | None = None,
        models: Models | None = None,
        requests: RequestRing | None = None,
    ) -> None:
        self._clock = clock
        self._advanced_seconds = 0.0
        self._script = parse_script(script) if isinstance(script, str | bytes) else script or Script()
        self._models = models
        self._requests = requests or RequestRing()
        self._entries = Entries()
        self._failures: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._count = TokenCounts()
        self._message_ids = CountedIds("msg_sim")
        self._request_ids = CountedIds("req_sim")

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
        try:
            answer = self._answer(method, path, headers, body=body, query=query)
        except ProviderError as error:
            answer = self._refusal(error)
        except UserError as error:
            # The cache sees marks in its own order, which web search can make another than the wire's.
            answer = self._refusal(refuse(str(error)))
        self._requests.add(RecordedRequest(at, method, path, answer.status, body))
        return answer

    def _answer(
        self, method: str, path: str, headers: Mapping[str, str], *, body: bytes, query: Mapping[str, str]
    ) -> Answer:
        named = method == "GET" and path.startswith(f"{_MODELS}/")
        model_name = path.removeprefix(f"{_MODELS}/") if named else ""
        if not model_name and (method, path) not in _ROUTES:
            raise refuse(
                f"no such endpoint; there are POST {_MESSAGES}, POST {_COUNT}, GET {_MODELS} and GET {_MODELS}/ID",
                status=404,
            )
        workspace = digest(_key_in(headers).encode(errors="replace"))[:16]
        _check_version(headers)
        ordered = header(headers, FAULT_HEADER)
        fault = None if ordered is None else _fault_ordered(ordered)
        if isinstance(fault, StatusFault):
            return self._fail(fault)
        if model_name:
            return self._whole(plain_json(describe(model_named(model_name, self._known()))))
        if path == _MODELS:
            return self._whole(plain_json(list_models(self._known(), query)))
        if path == _COUNT:
            counted = self._understand(anthropic.read_count_request(body, headers), workspace, counting=True)
            return self._whole(plain_json({"input_tokens": counted.call.tokens}))
        return self._reply_to(self._understand(anthropic.read_request(body, headers), workspace), fault)

    def _understand(self, wire: WireRequest, workspace: str, *, counting: bool = False) -> Understood:
        return understand(
            wire,
            models=self._known(),
            workspace=workspace,
            at=self.now(),
            count=self._count,
            counting=counting,
        )

    def _reply_to(self, request: Understood, ordered: DeliveryFault | None) -> Answer:
        parameters, call = request.parameters, request.call
        prewarming = parameters.output_tokens_max == 0
        scripted = self._script.reply_to(request.turn)
        fault = ordered or (None if prewarming else self._next_fault(request, scripted))
        if isinstance(fault, StatusFault):
            return self._fail(fault)
        outcome, self._entries = begin(request.model.cache, self._entries, call)
        content: tuple[Block, ...] = ()
        if not prewarming:
            written = reply_content(scripted, request.messages, prefix=request.prefix)
            content = sealed(written, model=parameters.model, prefix=request.prefix)
        stop_reason = "max_tokens" if prewarming else stop_reason_of(scripted, content)
        reply = Reply(
            content=content,
            stop_reason=stop_reason,
            usage=msgspec.structs.replace(outcome.usage, output=self._tokens(request, content)),
            model=parameters.model,
            id=self._message_ids(call.at),
            stop_sequence=next(iter(parameters.stop_sequences), None) if stop_reason == "stop_sequence" else None,
        )
        answer = self._spelled(reply, request, outcome)
        return spoiled(answer, fault, streamed=parameters.stream) if fault else answer

    def _spelled(self, reply: Reply, request: Understood, outcome: Outcome) -> Answer:
        reports = BINDING_BETA in request.parameters.betas
        if not request.parameters.stream:
            body = anthropic.write_reply(reply)
            body = with_input_transformations(body, request.dropped) if reports else body
            return self._whole(body, begins=outcome)
        events = iter(anthropic.write_stream(reply))
        events = stream_with_input_transformations(events, request.dropped) if reports else events
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        return Answer(200, headers | self._request_id(), self._begun(outcome, events))

    def _begun(self, outcome: Outcome, chunks: Iterable[bytes]) -> Iterator[bytes]:
        self._entries = publish(self._entries, outcome)
        yield from chunks

    def _tokens(self, request: Understood, content: Sequence[Block]) -> int:
        factor = request.model.tokens_factor
        return sum(self._count(spell_block(block), factor) for block in content)

    def _next_fault(self, request: Understood, scripted: ScriptedReply) -> Fault | None:
        """The next of the failures that the script puts before this reply; each comes once in a conversation."""
        known_by = [(conversation, request.turn) for conversation in request.conversations]
        turn = next((one for one in known_by if one in self._failures), known_by[0])
        failed = self._failures.get(turn, 0)
        if failed >= len(scripted.faults):
            return None
        self._failures[turn] = failed + 1
        if len(self._failures) > FAILING_TURNS_MAX:
            self._failures.popitem(last=False)
        return scripted.faults[failed]

    def _refusal(self, error: ProviderError) -> Answer:
        status, body = anthropic.write_error(error.kind, str(error), status=error.status)
        return self._whole(body, status=status)

    def _fail(self, fault: StatusFault) -> Answer:
        status, body = anthropic.write_error("other", "this failure was ordered", status=fault.status)
        pause = fault.retry_after_seconds
        return self._whole(body, status=status, headers={} if pause is None else {"retry-after": f"{pause:g}"})

    def _whole(
        self,
        body: bytes,
        *,
        status: int = 200,
        headers: Mapping[str, str] = _NOTHING,
        begins: Outcome | None = None,
    ) -> Answer:
        told = {"content-type": "application/json", **headers, **self._request_id()}
        return Answer(status, told, self._begun(begins, [body]) if begins else (body,))

    def _request_id(self) -> dict[str, str]:
        return {"request-id": self._request_ids(self.now())}


def _key_in(headers: Mapping[str, str]) -> str:
    scheme, _, token = (header(headers, "authorization") or "").partition(" ")
    key = header(headers, "x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")
    if not key:
        raise ProviderError(
            "auth", "x-api-key header is required; any key will do, also as Authorization: Bearer", status=401
        )
    return key


def _check_version(headers: Mapping[str, str]) -> None:
    version = header(headers, "anthropic-version")
    if version is not None and version not in API_VERSIONS:
        raise refuse(f"anthropic-version: must be one of {', '.join(API_VERSIONS)}")


def _fault_ordered(text: str) -> Fault:
    try:
        return parse_fault(text)
    except UserError as error:
        raise refuse(f"{FAULT_HEADER}: {error}") from error
