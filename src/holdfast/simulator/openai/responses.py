"""OpenAI's Responses API in the simulator, over HTTP and WebSocket, and the list of OpenAI's models."""

import datetime
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.catalog.lookup import Models
from holdfast.catalog.schema import Model
from holdfast.providers.json_splice import decode_json_or_none, decode_or_none, extra_field, nested_field
from holdfast.providers.openai_responses import openai_responses
from holdfast.providers.openai_responses.items import make_signature
from holdfast.providers.wire_request import order_opaque_members
from holdfast.simulator.exchange import SimulatedResponse
from holdfast.simulator.openai.request import OpenAIInterface, parse_openai_request
from holdfast.simulator.openai.validation import OPENAI, check_responses_calls, find_openai_model
from holdfast.simulator.provider_api import (
    NAME_SHOWN_CHARS_MAX,
    AcceptedRequest,
    ProviderApi,
    RequestContext,
    SimulatedRequest,
    is_model_request,
    parse_model_name,
    refuse,
)
from holdfast.simulator.request_blocks import SentBlock
from holdfast.simulator.signatures import digest_thought, read_seal, write_seal
from holdfast.types.blocks import Block, Json, Opaque, RedactedThinking, Thinking
from holdfast.types.json_encoding import encode_json, sha256_hex
from holdfast.types.prompt import Parameters

RESPONSES_PATH = "/v1/responses"
CONNECTION_SECONDS_MAX = 3_600.0
"""OpenAI ends a WebSocket after 60 minutes."""

LANES_MAX = 64
_COUNT = "/v1/responses/input_tokens"
_MODELS = "/v1/models"


def check_openai_reasoning(blocks: Sequence[SentBlock]) -> None:
    """Raises `ProviderError` for encrypted content that is not ours, or does not match its summary."""
    for sent in blocks:
        summary: str | None = None
        match sent.block:
            case Thinking(text=text, signature=signature):
                summary, encoded = text, signature
            case Opaque(kind="reasoning", raw=raw):
                encoded = raw.decode(errors="replace")
            case _:
                continue
        encrypted = nested_field(decode_json_or_none(encoded), "encrypted_content")
        if encrypted is None:
            continue
        seal = read_seal(encrypted) if isinstance(encrypted, str) else None
        if seal is None or (summary is not None and seal.thought_digest != digest_thought(summary)):
            raise refuse(
                f"The encrypted content of the reasoning item at {sent.path} could not be verified; send it as it came."
            )


_INTERFACE = OpenAIInterface(
    adapter=openai_responses,
    prompt_name="input",
    cache_options=frozenset({"mode", "ttl", "prewarm", "comparison_response_id"}),
    check_calls=check_responses_calls,
    check_thinking=check_openai_reasoning,
)


class OpenAIResponsesApi(ProviderApi):
    adapter = openai_responses
    routes: tuple[str, ...] = (
        f"POST {RESPONSES_PATH}",
        f"WebSocket {RESPONSES_PATH}",
        f"POST {_COUNT}",
        f"GET {_MODELS}",
        f"GET {_MODELS}/ID",
    )
    reply_id_prefix = "resp_sim"

    def accepts(self, http_request: SimulatedRequest) -> bool:
        if http_request.method == "POST":
            return http_request.path in (RESPONSES_PATH, _COUNT)
        return is_model_request(http_request, _MODELS)

    def parse_request(self, http_request: SimulatedRequest, context: RequestContext) -> AcceptedRequest | bytes:
        if http_request.path == _MODELS:
            return encode_json(list_openai_models(context.models))
        if name := parse_model_name(http_request.path, _MODELS):
            return encode_json(describe_openai_model(find_openai_model(name, context.models)))
        wire = order_opaque_members(openai_responses.decode_request(http_request.body, http_request.headers))
        _check_state(wire.parameters)
        counting = http_request.path == _COUNT
        generates = http_request.generates
        accepted = parse_openai_request(wire, context, _INTERFACE, counting=counting, generates=generates)
        _check_reasoning_options(wire.parameters, accepted.model)
        if counting:
            return encode_json({"object": "response.input_tokens", "input_tokens": accepted.call.tokens})
        return accepted

    def sign_thinking(self, content: Sequence[Block], request: AcceptedRequest) -> tuple[Block, ...]:
        return sign_openai_reasoning(content, model=request.parameters.model, prefix=request.prefix)


def _check_reasoning_options(parameters: Parameters, model: Model) -> None:
    """A model without reasoning takes neither an effort nor a request for encrypted reasoning."""
    if model.has_reasoning:
        return
    if parameters.thinking_json is not None:
        raise refuse("Unsupported parameter: 'reasoning.effort' is not supported with this model.")
    # Decoding drops the value that our adapter always sends, so a missing extra field means that value.
    if "reasoning.encrypted_content" in dict(parameters.extra).get("include", "reasoning.encrypted_content"):
        raise refuse("Encrypted content is not supported with this model.")


def _check_state(parameters: Parameters) -> None:
    """The simulator stores no responses, so state from earlier ones cannot be referenced."""
    for name in ("previous_response_id", "conversation"):
        if extra_field(parameters, name) is not None:
            raise refuse(f"'{name}' was not found: nothing is stored; send the whole input.")


def list_openai_models(models: Models) -> dict[str, object]:
    rows = [describe_openai_model(row) for row in models.values() if row.provider == OPENAI]
    return {"object": "list", "data": rows}


def describe_openai_model(row: Model) -> dict[str, object]:
    return {"id": row.name, "object": "model", "created": find_release_timestamp(row), "owned_by": "openai"}


def find_release_timestamp(row: Model) -> int:
    """The release date in seconds since the Unix epoch; 0 if unknown."""
    if row.released is None:
        return 0
    return int(datetime.datetime.combine(row.released, datetime.time(), datetime.UTC).timestamp())


_ID_CHARS = 24


def sign_openai_reasoning(content: Sequence[Block], *, model: str, prefix: str) -> tuple[Block, ...]:
    """The blocks of a reply, thinking with an id and encrypted content; redacted thinking has no summary."""
    blocks: list[Block] = []
    for index, block in enumerate(content):
        if isinstance(block, Thinking | RedactedThinking):
            text = block.text if isinstance(block, Thinking) else ""
            id = f"rs_{sha256_hex(f'{prefix}/{index}'.encode())[:_ID_CHARS]}"
            encrypted_content = write_seal(model, prefix, digest_thought(text))
            block = Thinking(text, make_signature(encrypted_content, id, (text,) if text else ()))
        blocks.append(block)
    return tuple(blocks)


class SocketRequest(msgspec.Struct, frozen=True):
    """A WebSocket message as an HTTP request with the whole input."""

    http_request: SimulatedRequest
    items: list[Json]
    stream_id: str = ""
    previous_response_id: str | None = None


class ResponsesSocket:
    """One WebSocket of the Responses API: makes HTTP requests of its messages, and events of the responses.

    Nothing is stored, so a message can only continue the latest response of a lane (`stream_id`) of its connection
    (OpenAI's "WebSocket mode" guide, for `store: false`). A failed turn drops the response that it continued.
    """

    def __init__(self, headers: Mapping[str, str], opened_at: float) -> None:
        self._headers = headers
        self._opened_at = opened_at
        self._latest: dict[str, tuple[str, list[Json]]] = {}

    def parse_message(self, raw: bytes, at: float) -> SocketRequest | bytes:
        """The request, or the error event for a message that is refused."""
        message = decode_or_none(msgspec.json.decode, raw)
        if not isinstance(message, dict):
            return encode_error_event("Invalid JSON: expected a text message with a 'response.create' event.")
        stream_id = message.pop("stream_id", None) or ""
        if not isinstance(stream_id, str) or (stream_id not in self._latest and len(self._latest) >= LANES_MAX):
            return encode_error_event(f"Invalid 'stream_id': expected a string, and at most {LANES_MAX} of them.")
        if at - self._opened_at > CONNECTION_SECONDS_MAX:
            reason = "Responses websocket connection limit reached (60 minutes). Create a new websocket connection."
            return encode_error_event(reason, stream_id, code="websocket_connection_limit_reached")
        if message.pop("type", None) != "response.create":
            return encode_error_event("Invalid value for 'type': supported is 'response.create'.", stream_id)
        if message.pop("background", False):
            return encode_error_event("Unsupported parameter: 'background'.", stream_id)
        generates, previous = message.pop("generate", True) is not False, message.pop("previous_response_id", None)
        own = message.get("input") or []
        items: list[Json] = own if isinstance(own, list) else [{"role": "user", "content": own}]
        if previous is not None:
            earlier = next((items for id, items in self._latest.values() if id == previous), None)
            if earlier is None:
                reason = f"Previous response with id '{str(previous)[:NAME_SHOWN_CHARS_MAX]}' not found."
                return encode_error_event(reason, stream_id, code="previous_response_not_found")
            items = [*earlier, *items]
        body = encode_json({**message, "input": items, "stream": True})
        request = SimulatedRequest("POST", RESPONSES_PATH, self._headers, body, generates=generates)
        return SocketRequest(request, items, stream_id, previous)

    def encode_event(self, request: SocketRequest, data: bytes) -> bytes:
        """The event as it is sent. The last one of a response makes that the latest of its lane."""
        event = decode_or_none(msgspec.json.decode, data)
        if not isinstance(event, dict):
            return data  # A fault has garbled it.
        completed = event.get("response") if event.get("type") == "response.completed" else None
        if completed is not None:
            self._latest[request.stream_id] = (completed["id"], [*request.items, *completed["output"]])
        return encode_json({**event, "stream_id": request.stream_id}) if request.stream_id else data

    def encode_failure(self, request: SocketRequest, response: SimulatedResponse) -> bytes:
        """The error event of a request that was refused."""
        previous = request.previous_response_id
        self._latest = {lane: latest for lane, latest in self._latest.items() if latest[0] != previous}
        error = msgspec.json.decode(response.read_body())
        lane = {"stream_id": request.stream_id} if request.stream_id else {}
        return encode_json({"type": "error", "status": response.status, **error, **lane})


def encode_error_event(reason: str, stream_id: str = "", *, code: str | None = None) -> bytes:
    status, body = openai_responses.encode_error("invalid_request", reason, status=400)
    error = msgspec.json.decode(body)["error"]
    lane = {"stream_id": stream_id} if stream_id else {}
    return encode_json({"type": "error", "status": status, "error": {**error, "code": code}, **lane})
