"""Hosts in the simulator that serve other companies' models: Bedrock, Vertex, Azure and OpenAI-compatible ones."""

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from holdfast.catalog.lookup import find_model_or_none
from holdfast.errors import ProviderError
from holdfast.providers.bedrock import EVENT_STREAM_TYPE, encode_chunk_frame
from holdfast.providers.json_splice import decode_or_none, join_object, split_object
from holdfast.providers.tolerant_decode import add_missing_fields
from holdfast.simulator.anthropic.api import AnthropicApi
from holdfast.simulator.openai.chat_completions import OpenAIChatApi
from holdfast.simulator.openai.responses import OpenAIResponsesApi
from holdfast.simulator.provider_api import (
    EMPTY,
    AcceptedRequest,
    RequestContext,
    SimulatedRequest,
    refuse,
)
from holdfast.types.json_encoding import encode_json
from holdfast.types.reply import Reply

STAND_IN = "gpt-5.4-mini"
"""The model that answers for deployments and for models of hosts that the catalog does not know: an implicit cache."""

_BEDROCK = re.compile(r"/model/(?P<id>.+)/invoke(?P<stream>-with-response-stream)?")
_BEDROCK_ID = re.compile(r"(?:.*\.)?anthropic\.(?P<name>.+?)(?:-v\d+)?(?::\d+)*")
_VERTEX = re.compile(r"/v1/.+/publishers/anthropic/models/(?P<name>[^/:]+):(?P<verb>rawPredict|streamRawPredict)")
_AZURE_CHAT = re.compile(r"/openai/(?:deployments/(?P<name>[^/]+)|v1)/chat/completions")
_AZURE_RESPONSES = re.compile(r"/openai/(?:v1/)?responses")
_HOST_CHAT = re.compile(
    r"/(?P<host>deepseek|xai|mistral|groq|together|fireworks|moonshot|cerebras)(?:/.*)?/chat/completions"
)
_MESSAGES = "/v1/messages"
_EVENT = re.compile(rb"^data: (.*)$", re.MULTILINE)


class BedrockApi(AnthropicApi):
    routes = ("POST /model/ID/invoke", "POST /model/ID/invoke-with-response-stream")
    key_header = "authorization"
    request_id_header = "x-amzn-requestid"
    stream_type = EVENT_STREAM_TYPE

    def accepts(self, http_request: SimulatedRequest) -> bool:
        return http_request.method == "POST" and _BEDROCK.fullmatch(http_request.path) is not None

    def parse_request(self, http_request: SimulatedRequest, context: RequestContext) -> AcceptedRequest | bytes:
        address = _BEDROCK.fullmatch(http_request.path)
        assert address is not None, "`accepts` has matched it"
        members = decode_or_none(msgspec.json.decode, http_request.body)
        if isinstance(members, dict):
            if "anthropic_version" not in members:
                raise refuse("anthropic_version: Field required")
            if extra := members.keys() & {"model", "stream"}:
                raise refuse(f"{min(extra)}: Extra inputs are not permitted")
        known = _BEDROCK_ID.fullmatch(address["id"])
        fields: dict[str, str | bool] = {"model": known["name"] if known else address["id"]}
        if address["stream"]:
            fields["stream"] = True
        betas = members.get("anthropic_beta") if isinstance(members, dict) else None
        headers = {"anthropic-beta": ",".join(map(str, betas))} if isinstance(betas, list) else EMPTY
        body = add_missing_fields(http_request.body, fields)
        return super().parse_request(SimulatedRequest("POST", _MESSAGES, headers, body), context)

    def encode_reply(self, reply: Reply, request: AcceptedRequest) -> bytes | Iterable[bytes]:
        encoded = super().encode_reply(reply, request)
        return encoded if isinstance(encoded, bytes) else _frame_events(encoded, reply)

    def reply_headers(self, reply: Reply) -> Mapping[str, str]:
        usage = reply.usage
        return {
            "x-amzn-bedrock-input-token-count": str(usage.input),
            "x-amzn-bedrock-output-token-count": str(usage.output),
            "x-amzn-bedrock-cache-read-input-token-count": str(usage.cache_read),
            "x-amzn-bedrock-cache-write-input-token-count": str(usage.cache_write),
        }

    def encode_error(self, error: ProviderError) -> tuple[int, bytes]:
        status, _ = super().encode_error(error)
        return status, encode_json({"message": str(error)})


def _frame_events(events: Iterable[bytes], reply: Reply) -> Iterator[bytes]:
    usage = reply.usage
    metrics = {
        "inputTokenCount": usage.input,
        "outputTokenCount": usage.output,
        "cacheReadInputTokenCount": usage.cache_read,
        "cacheWriteInputTokenCount": usage.cache_write,
    }
    for event in events:
        data = b"\n".join(_EVENT.findall(event))
        if b'"message_stop"' in data:
            members = split_object(data) | {"amazon-bedrock-invocationMetrics": encode_json(metrics)}
            data = join_object(members)
        yield encode_chunk_frame(data)


class VertexApi(AnthropicApi):
    routes = ("POST /v1/projects/.../publishers/anthropic/models/NAME:rawPredict",)
    key_header = "authorization"

    def accepts(self, http_request: SimulatedRequest) -> bool:
        return http_request.method == "POST" and _VERTEX.fullmatch(http_request.path) is not None

    def parse_request(self, http_request: SimulatedRequest, context: RequestContext) -> AcceptedRequest | bytes:
        address = _VERTEX.fullmatch(http_request.path)
        assert address is not None, "`accepts` has matched it"
        is_count = address["name"] == "count-tokens"
        body = http_request.body if is_count else add_missing_fields(http_request.body, {"model": address["name"]})
        path = f"{_MESSAGES}/count_tokens" if is_count else _MESSAGES
        return super().parse_request(SimulatedRequest("POST", path, http_request.headers, body), context)


class AzureChatApi(OpenAIChatApi):
    """A deployment whose name is not a model's serves `STAND_IN`; as at Azure, only the response says which model."""

    routes = ("POST /openai/deployments/NAME/chat/completions", "POST /openai/v1/chat/completions")
    key_header = "api-key"

    def accepts(self, http_request: SimulatedRequest) -> bool:
        return http_request.method == "POST" and _AZURE_CHAT.fullmatch(http_request.path) is not None

    def parse_request(self, http_request: SimulatedRequest, context: RequestContext) -> AcceptedRequest | bytes:
        address = _AZURE_CHAT.fullmatch(http_request.path)
        assert address is not None, "`accepts` has matched it"
        deployment = address["name"] or _name_in_body(http_request.body)
        return super().parse_request(_with_model(http_request, _find_stand_in("openai", deployment, context)), context)


class AzureResponsesApi(OpenAIResponsesApi):
    routes = ("POST /openai/v1/responses",)
    key_header = "api-key"

    def accepts(self, http_request: SimulatedRequest) -> bool:
        return http_request.method == "POST" and _AZURE_RESPONSES.fullmatch(http_request.path) is not None

    def parse_request(self, http_request: SimulatedRequest, context: RequestContext) -> AcceptedRequest | bytes:
        model = _find_stand_in("openai", _name_in_body(http_request.body), context)
        request = _with_model(http_request, model)
        return super().parse_request(replace(request, path="/v1/responses"), context)


class HostChatApi(OpenAIChatApi):
    """Any model name is accepted, and has the cache of `STAND_IN`; DeepSeek has usage fields of its own."""

    routes = ("POST /HOST/v1/chat/completions",)

    def accepts(self, http_request: SimulatedRequest) -> bool:
        return http_request.method == "POST" and _HOST_CHAT.fullmatch(http_request.path) is not None

    def parse_request(self, http_request: SimulatedRequest, context: RequestContext) -> AcceptedRequest | bytes:
        address = _HOST_CHAT.fullmatch(http_request.path)
        assert address is not None, "`accepts` has matched it"
        name = _name_in_body(http_request.body)
        own_cache = replace(context, workspace=f"{address['host']} {context.workspace}")
        accepted = super().parse_request(_with_model(http_request, STAND_IN), own_cache)
        if isinstance(accepted, bytes):
            return accepted
        extra = (*accepted.parameters.extra, (_HOST_FIELD, encode_json(address["host"]).decode()))
        return replace(accepted, parameters=replace(accepted.parameters, model=name, extra=extra))

    def encode_reply(self, reply: Reply, request: AcceptedRequest) -> bytes | Iterable[bytes]:
        encoded = super().encode_reply(reply, request)
        if (_HOST_FIELD, '"deepseek"') not in request.parameters.extra:
            return encoded
        if isinstance(encoded, bytes):
            return _count_hits(encoded)
        return (_EVENT.sub(lambda event: b"data: " + _count_hits(event[1]), chunk) for chunk in encoded)


_HOST_FIELD = ":host"


def _count_hits(body: bytes) -> bytes:
    """A body with DeepSeek's counters in place of OpenAI's details."""
    members = split_object(body) if body.startswith(b"{") else {}
    usage = decode_or_none(msgspec.json.decode, members.get("usage"))
    if not isinstance(usage, dict):
        return body
    hit = usage.pop("prompt_tokens_details", {}).get("cached_tokens", 0)
    usage |= {"prompt_cache_hit_tokens": hit, "prompt_cache_miss_tokens": usage["prompt_tokens"] - hit}
    return join_object(members | {"usage": encode_json(usage)})


def _name_in_body(body: bytes) -> str:
    members = decode_or_none(msgspec.json.decode, body)
    return str(members.get("model") or "") if isinstance(members, dict) else ""


def _find_stand_in(provider: str, name: str, context: RequestContext) -> str:
    return name if name and find_model_or_none(f"{provider}:{name}", context.models) else STAND_IN


def _with_model(http_request: SimulatedRequest, model: str) -> SimulatedRequest:
    members = decode_or_none(msgspec.json.decode, http_request.body)
    if not isinstance(members, dict):
        return http_request
    return replace(http_request, body=encode_json({**members, "model": model}))
