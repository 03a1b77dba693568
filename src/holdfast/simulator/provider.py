"""Simulates the providers' APIs and their prompt caches in one object, without a socket.

Output is never cut at `max_tokens` and stop sequences are ignored: a reply is exactly what the script contains.
"""

import asyncio
import math
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

import msgspec

from holdfast.cachemodel.machine import begin_cache_call, publish_entries
from holdfast.cachemodel.values import CacheEntries, CacheEntry, CacheOutcome
from holdfast.catalog.lookup import Models, shipped_models
from holdfast.clock import Clock, CountingIds, system_clock
from holdfast.errors import ProviderError, UserError
from holdfast.providers.adapter import Endpoint, ExplicitCacheEntry
from holdfast.providers.anthropic import anthropic
from holdfast.providers.anthropic.blocks import encode_anthropic_block
from holdfast.providers.errors import classify_status, get_header
from holdfast.providers.registry import Provider, get_provider
from holdfast.providers.retry import retry_delay
from holdfast.providers.wire_request import OnRetry
from holdfast.simulator.anthropic.api import AnthropicApi
from holdfast.simulator.anthropic.validation import check_anthropic_window
from holdfast.simulator.cache_diagnostics import AnsweredRequests
from holdfast.simulator.exchange import ConnectionCut, Pause, RecordedRequest, RequestRing, SimulatedResponse
from holdfast.simulator.explicit_caches import SimulatedExplicitCaches
from holdfast.simulator.faults import DeliveryFault, Fault, RefusalFault, StatusFault, apply_delivery_fault, parse_fault
from holdfast.simulator.gemini.api import GeminiApi
from holdfast.simulator.gemini.validation import check_gemini_window
from holdfast.simulator.hosts import AzureChatApi, AzureResponsesApi, BedrockApi, HostChatApi, VertexApi
from holdfast.simulator.openai.chat_completions import OpenAIChatApi
from holdfast.simulator.openai.responses import OpenAIResponsesApi
from holdfast.simulator.openai.validation import check_openai_window
from holdfast.simulator.openrouter.api import OpenRouterApi
from holdfast.simulator.provider_api import (
    EMPTY,
    AcceptedRequest,
    ProviderApi,
    RequestContext,
    SimulatedRequest,
    refuse,
)
from holdfast.simulator.request_blocks import TokenCounts
from holdfast.simulator.script import (
    ReplyFunction,
    Script,
    ScriptedReply,
    build_reply_content,
    choose_stop_reason,
    parse_script,
)
from holdfast.types.blocks import Block, is_thinking
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.reply import CacheDiagnosis, Reply
from holdfast.types.usage import Usage

FAULT_HEADER = "x-holdfast-fault"
ADVANCE_SECONDS_MAX = 10 * 365 * 24 * 3_600.0
FAILING_TURNS_MAX = 10_000  # Bounds the memory of a long-running simulator.
PATH_CHARS_MAX = 80
_numbers = count(1)

_WINDOW_CHECKS = {"anthropic": check_anthropic_window, "gemini": check_gemini_window}

_ERROR_TEXTS = {
    "anthropic": {
        "ttl": "system.0.cache_control.ephemeral.ttl: Extra inputs are not permitted",
        "thinking": "messages.1.content.0: Invalid `signature` in `thinking` block",
        "unpaired": "messages.2: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1. "
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
    },
    "gemini": {
        "thinking": "Thought signature is not valid.",
        "unpaired": "Please ensure that function response turn comes immediately after a function call turn.",
    },
}
_OPENAI_TEXTS = {
    "ttl": "Invalid value for 'prompt_cache_breakpoint': ttl is not supported.",
    "thinking": "The encrypted content of the reasoning item at input.1 could not be verified; send it as it came.",
    "unpaired": "No tool output found for function call 'call_1'.",
}


class RequestHandler(Protocol):
    @property
    def account(self) -> str: ...

    def handle(
        self, method: str, path: str, *, headers: Mapping[str, str], body: bytes, query: Mapping[str, str]
    ) -> SimulatedResponse: ...


class SimulatedTransport:
    """Replaces the network transport: it retries after the same failures, but without waiting."""

    def __init__(self, simulator: RequestHandler, provider: Provider, *, api_key: str = "simulated") -> None:
        self._simulator = simulator
        self._adapter = provider.adapter
        self._prefix = provider.path_prefix
        self._credentials = provider.adapter.credentials(api_key)
        self._closed = False

    @property
    def account(self) -> str:
        """All transports to one simulator share one API key."""
        return self._simulator.account

    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        if self._closed:
            raise ProviderError("network", "the connection to the simulator was closed")
        headers = {**dict(endpoint.headers), **self._credentials}
        attempt = 1
        address = urlsplit(self._prefix + endpoint.path)
        query = dict(parse_qsl(address.query))
        while (
            response := self._simulator.handle(endpoint.method, address.path, headers=headers, body=body, query=query)
        ).status >= 400:
            failure = self._adapter.decode_error(response.status, response.headers, response.read_body())
            # The delay is not waited for; a fixed jitter keeps the transport deterministic.
            if retry_delay(attempt, failure, 0.5) is None:
                raise failure
            if on_retry is not None:
                on_retry(attempt, failure)
            attempt += 1
        for chunk in response.chunks:
            match chunk:
                case Pause(seconds=seconds):
                    await asyncio.sleep(seconds)
                case ConnectionCut():
                    raise ProviderError("network", "the simulated connection was cut")
                case bytes():
                    yield chunk

    async def aclose(self) -> None:
        self._closed = True


class SimulatedProvider:
    """Every provider's API with its cache. Any API key is accepted; each key is its own workspace.

    Deterministic: the same clock, script and requests give the same responses, byte for byte. `cache` has entries of
    an earlier provider, to continue with.
    """

    def __init__(
        self,
        *,
        clock: Clock = system_clock,
        script: Script | ReplyFunction | str | bytes | None = None,
        models: Models | None = None,
        requests: RequestRing | None = None,
        cache: Sequence[CacheEntry] = (),
    ) -> None:
        self._clock = clock
        self._advanced_seconds = 0.0
        self._script = parse_script(script) if isinstance(script, str | bytes) else script or Script()
        self._models = models
        self._requests = requests or RequestRing()
        self._entries = CacheEntries({(entry.scope, entry.digest): entry for entry in cache})
        self._explicit_caches = SimulatedExplicitCaches()
        self._past_requests = AnsweredRequests()
        self._failures: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._count = TokenCounts()
        self._reply_ids = {api.reply_id_prefix: CountingIds(api.reply_id_prefix) for api in APIS}
        self._request_ids = CountingIds("req_sim")
        self.account = f"simulator {next(_numbers)}"

    def create_transport(self, models: Models | None = None, *, provider: str = anthropic.name) -> SimulatedTransport:
        """An in-process transport to this provider; `models` applies unless the provider was created with its own."""
        if self._models is None:
            self._models = models
        return SimulatedTransport(self, get_provider(provider))

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
        return self._requests.list_requests()

    @property
    def cache(self) -> tuple[CacheEntry, ...]:
        """The cache entries that can be read now."""
        return self._entries.live_entries(at=self.now())

    @property
    def explicit_caches(self) -> tuple[ExplicitCacheEntry, ...]:
        """The live explicit caches of all API keys."""
        return tuple(content.cache for content in self._explicit_caches.list_live(at=self.now()))

    def handle(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] = EMPTY,
        body: bytes = b"",
        query: Mapping[str, str] = EMPTY,
    ) -> SimulatedResponse:
        return self.answer_request(SimulatedRequest(method, path, headers, body, query))

    def answer_request(self, request: SimulatedRequest, message: bytes | None = None) -> SimulatedResponse:
        """`message` is the WebSocket message that the request was made from, if any; it is what the record holds."""
        at = self.now()
        answered = _collapse_slashes(request)
        try:
            response = self._answer(answered)
        except ProviderError as error:
            response = self._refuse(answered, error)
        except UserError as error:
            # The cache orders breakpoints in its own way, and web search can make that differ from the request's order.
            response = self._refuse(answered, refuse(str(error)))
        method, body = (request.method, request.body) if message is None else ("WEBSOCKET", message)
        recorded = RecordedRequest(at, method, request.path, response.status, body, response.model, response.reply)
        self._requests.add(recorded)
        return response

    def _refuse(self, request: SimulatedRequest, error: ProviderError) -> SimulatedResponse:
        api, status, body = encode_refusal(request, error)
        return self._respond_json(api, body, status=status)

    def _answer(self, http_request: SimulatedRequest) -> SimulatedResponse:
        api = find_api(http_request)
        if api is None:
            routes = dict.fromkeys(route for known in APIS for route in known.routes)
            # The base URL is the usual cause, so it comes first: clients cut the message after a line or two.
            raise refuse(
                f"no such endpoint: {http_request.method} {http_request.path[:PATH_CHARS_MAX]}; "
                f"base URLs end in the port for Anthropic and Gemini, in /v1 for OpenAI, in /api/v1 for "
                f"OpenRouter. There are {', '.join(routes)}",
                status=404,
            )
        # Providers isolate caches by workspace; here each API key is one. Only a digest of the key is kept.
        workspace = sha256_hex(read_api_key(http_request.headers, api.key_header).encode(errors="replace"))[:16]
        fault_header = get_header(http_request.headers, FAULT_HEADER)
        fault = None if fault_header is None else _parse_fault_header(fault_header)
        if isinstance(fault, StatusFault):
            return self._fail(api, fault)
        models = shipped_models() if self._models is None else self._models
        context = RequestContext(models, workspace, self.now(), self._count, self._explicit_caches)
        request = api.parse_request(http_request, context)
        if isinstance(request, bytes):
            return self._respond_json(api, request)
        if not http_request.generates:
            # OpenAI's guide: a warm-up has no output. It says nothing of tokens or caches, so none are counted here.
            reply = Reply(
                (), "end_turn", Usage(), request.parameters.model, self._reply_ids[api.reply_id_prefix](context.at)
            )
            return SimulatedResponse(200, self._request_id(api), api.adapter.encode_stream(reply))
        return self._reply_to(api, request, fault)

    def _reply_to(
        self, api: ProviderApi, request: AcceptedRequest, requested_fault: DeliveryFault | RefusalFault | None
    ) -> SimulatedResponse:
        if isinstance(self._script, Script):
            scripted = self._script.find_reply(request.assistant_turns)
        else:
            scripted = self._script(request.messages)
        fault = requested_fault or (None if request.prewarm_stop_reason else self._next_fault(request, scripted))
        if isinstance(fault, StatusFault):
            return self._fail(api, fault)
        if isinstance(fault, RefusalFault):
            if _is_refusal_due(fault, request):
                raise _make_refusal(request, fault, api.provider)
            fault = None
        outcome, self._entries = begin_cache_call(request.model.cache, self._entries, request.call)
        reply = self._reply(api, request, scripted, outcome)
        encoded = api.encode_reply(reply, request)
        if isinstance(encoded, bytes):
            response = self._respond_json(api, encoded, headers=api.reply_headers(reply), begins=outcome)
        else:
            headers = {"content-type": api.stream_type, "cache-control": "no-cache"}
            response = SimulatedResponse(200, headers | self._request_id(api), self._publish_on_read(outcome, encoded))
        model_id = f"{api.provider}:{request.parameters.model}"
        response = msgspec.structs.replace(response, model=model_id, reply=reply)
        return apply_delivery_fault(response, fault, streamed=request.parameters.stream) if fault else response

    def _reply(
        self, api: ProviderApi, request: AcceptedRequest, scripted: ScriptedReply, outcome: CacheOutcome
    ) -> Reply:
        content: tuple[Block, ...] = ()
        if not request.prewarm_stop_reason:
            prefix, id_prefix = request.prefix, api.call_id_prefix
            written = build_reply_content(scripted, request.messages, prefix=prefix, call_id_prefix=id_prefix)
            content = api.sign_thinking(written, request)
        stop_reason = request.prewarm_stop_reason or choose_stop_reason(scripted, content)
        stops, factor = request.parameters.stop_sequences, request.model.tokens_factor
        output = sum(self._count(encode_anthropic_block(block), factor) for block in content)
        id = self._reply_ids[api.reply_id_prefix](request.call.at)
        return Reply(
            content=content,
            stop_reason=stop_reason,
            usage=msgspec.structs.replace(outcome.usage, output=output),
            model=request.parameters.model,
            id=id,
            stop_sequence=next(iter(stops), None) if stop_reason == "stop_sequence" else None,
            diagnosis=self._diagnose(request, outcome, id),
        )

    def _diagnose(self, request: AcceptedRequest, outcome: CacheOutcome, reply_id: str) -> CacheDiagnosis | None:
        """The cache diagnosis, if the request asks for one; the request is remembered for later comparisons."""
        fingerprint, comparison = request.fingerprint, request.diagnosis_request
        if fingerprint is None:
            return None
        past, usage = self._past_requests, outcome.usage
        diagnosis = past.diagnose(comparison, fingerprint, request.call, usage) if comparison else None
        past.remember(reply_id, fingerprint, request.call, usage)
        return diagnosis

    def _publish_on_read(self, outcome: CacheOutcome, chunks: Iterable[bytes]) -> Iterator[bytes]:
        # A cache entry becomes readable when the response that wrote it begins, so not before the first chunk is read.
        self._entries = publish_entries(self._entries, outcome)
        yield from chunks

    def _next_fault(self, request: AcceptedRequest, scripted: ScriptedReply) -> Fault | None:
        """The next fault that the script puts before this reply; each occurs once per conversation.

        A refusal repeats until the request no longer contains what the provider objects to.
        """
        keys = [(conversation, request.assistant_turns) for conversation in request.conversations]
        key = next((candidate for candidate in keys if candidate in self._failures), keys[0])
        for index in range(self._failures.get(key, 0), len(scripted.faults)):
            fault = scripted.faults[index]
            repeats = isinstance(fault, RefusalFault) and fault.objection != "unpaired"
            if isinstance(fault, RefusalFault) and not _is_refusal_due(fault, request):
                continue
            # An unpaired tool call is refused once; other objections as long as their cause is in the request.
            self._failures[key] = index if repeats else index + 1
            if len(self._failures) > FAILING_TURNS_MAX:
                self._failures.popitem(last=False)
            return fault
        return None

    def _fail(self, api: ProviderApi, fault: StatusFault) -> SimulatedResponse:
        failure = ProviderError(classify_status(fault.status, ""), "this failure was ordered", status=fault.status)
        status, body = api.encode_error(failure)
        pause = fault.retry_after_seconds
        headers = {} if pause is None else {"retry-after": f"{pause:g}"}
        return self._respond_json(api, body, status=status, headers=headers)

    def _respond_json(
        self,
        api: ProviderApi,
        body: bytes,
        *,
        status: int = 200,
        headers: Mapping[str, str] = EMPTY,
        begins: CacheOutcome | None = None,
    ) -> SimulatedResponse:
        all_headers = {"content-type": "application/json", **headers, **self._request_id(api)}
        return SimulatedResponse(status, all_headers, self._publish_on_read(begins, [body]) if begins else (body,))

    def _request_id(self, api: ProviderApi) -> dict[str, str]:
        return {api.request_id_header: self._request_ids(self.now())}


def read_api_key(headers: Mapping[str, str], expected: str) -> str:
    """Any key is accepted, in the header of any provider."""
    scheme, _, token = (get_header(headers, "authorization") or "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    if scheme.startswith("AWS4-"):
        # The id of the key that signed the request; the rest differs from request to request.
        bearer = token.partition("Credential=")[2].partition("/")[0]
    named = (get_header(headers, name) for name in ("x-api-key", "x-goog-api-key", "api-key"))
    key = next((value for value in named if value), bearer)
    if not key:
        reason = f"{expected} header is required; any key will do, also as Authorization: Bearer"
        raise ProviderError("auth", reason, status=401)
    return key


def _parse_fault_header(text: str) -> Fault:
    try:
        return parse_fault(text)
    except UserError as error:
        raise refuse(f"{FAULT_HEADER}: {error}") from error


APIS: tuple[ProviderApi, ...] = (
    *(AnthropicApi(), OpenRouterApi(), GeminiApi(), OpenAIChatApi(), OpenAIResponsesApi()),
    *(BedrockApi(), VertexApi(), AzureChatApi(), AzureResponsesApi(), HostChatApi()),
)
"""The first that takes a request answers it, so APIs that recognise a header come before those that do not."""


def find_api(http_request: SimulatedRequest) -> ProviderApi | None:
    return next((api for api in APIS if api.accepts(http_request)), None)


def _collapse_slashes(request: SimulatedRequest) -> SimulatedRequest:
    """OpenAI answers a path with doubled slashes as one without them; Anthropic answers 404 (both measured in 2026)."""
    if "//" not in request.path:
        return request
    collapsed = msgspec.structs.replace(request, path=re.sub("/+", "/", request.path))
    return collapsed if isinstance(find_api(collapsed), OpenAIChatApi | OpenAIResponsesApi) else request


def encode_refusal(http_request: SimulatedRequest, error: ProviderError) -> tuple[ProviderApi, int, bytes]:
    """The error response of the API that the request uses, or of the first one if no API takes the request."""
    api = find_api(http_request) or APIS[0]
    return api, *api.encode_error(error)


def _is_refusal_due(fault: RefusalFault, request: AcceptedRequest) -> bool:
    match fault.objection:
        case "window":
            return request.call.tokens > fault.limit
        case "breakpoints":
            return len(request.call.breakpoints) > fault.limit
        case "ttl":
            ttls = request.model.cache.ttls_seconds
            shortest = min(ttls.values(), default=0)
            return any(ttls.get(breakpoint.ttl, 0) > shortest for breakpoint in request.call.breakpoints)
        case "thinking":
            return any(is_thinking(block) for message in request.messages for block in message.content)
        case "unpaired":
            return True


def _make_refusal(request: AcceptedRequest, fault: RefusalFault, provider: str) -> ProviderError:
    """The provider's error for a request that it objects to."""
    match fault.objection:
        case "window":
            smaller = msgspec.structs.replace(request.model, context_tokens_max=fault.limit)
            try:
                _WINDOW_CHECKS.get(provider, check_openai_window)(request.call.tokens, smaller)
            except ProviderError as error:
                return error
            return refuse("prompt is too long")
        case "breakpoints" if provider == "anthropic":
            count = len(request.call.breakpoints)
            return refuse(f"A maximum of {fault.limit} blocks with cache_control may be provided. Found {count}.")
        case "breakpoints":
            return refuse("Unsupported parameter: 'prompt_cache_breakpoint' is not supported with this model.")
        case objection:
            return refuse(_ERROR_TEXTS.get(provider, _OPENAI_TEXTS).get(objection, _OPENAI_TEXTS[objection]))
