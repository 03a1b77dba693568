"""Gemini's API in the simulator: its endpoints, errors and replies."""

import re
from collections.abc import Iterable, Sequence

from holdfast.providers.errors import get_header
from holdfast.providers.gemini import gemini
from holdfast.providers.json_splice import extra_field
from holdfast.simulator.gemini.body import describe_gemini_model, list_gemini_models
from holdfast.simulator.gemini.cached_content import COLLECTION, handle_cache_request
from holdfast.simulator.gemini.request import AS_ARRAY, count_gemini_tokens, parse_gemini_request, request_json_array
from holdfast.simulator.gemini.validation import find_gemini_model, sign_gemini_thoughts
from holdfast.simulator.provider_api import AcceptedRequest, ProviderApi, RequestContext, SimulatedRequest, refuse
from holdfast.types.blocks import Block
from holdfast.types.json_encoding import encode_json
from holdfast.types.reply import Reply

# google-genai 3.x calls /v1, earlier versions /v1beta.
_ACTION = re.compile(r"/v1(?:beta)?/models/([^/:]+):(generateContent|streamGenerateContent|countTokens)")
_MODELS = re.compile(r"/v1(beta)?/models(?:/([^/:]+))?")
_CACHES = re.compile(rf"/v1(?:beta)?/{COLLECTION}(?:/([^/:]+))?")
_METHODS_OF_ONE = ("GET", "PATCH", "DELETE")


class GeminiApi(ProviderApi):
    adapter = gemini
    routes = (
        "POST /v1/models/ID:generateContent",
        "POST /v1/models/ID:streamGenerateContent",
        "POST /v1/models/ID:countTokens",
        f"POST /v1/{COLLECTION}",
        f"GET /v1/{COLLECTION}",
        *(f"{method} /v1/{COLLECTION}/ID" for method in _METHODS_OF_ONE),
    )
    key_header = "x-goog-api-key"
    reply_id_prefix = "gemini_sim"

    def accepts(self, http_request: SimulatedRequest) -> bool:
        if http_request.method == "POST" and _ACTION.fullmatch(http_request.path):
            return True
        if http_request.method == "GET" and (models := _MODELS.fullmatch(http_request.path)):
            # Other providers list their models at the same path; only Gemini's clients send this header.
            return bool(models[1]) or get_header(http_request.headers, self.key_header) is not None
        caches = _CACHES.fullmatch(http_request.path)
        return caches is not None and http_request.method in (_METHODS_OF_ONE if caches[1] else ("GET", "POST"))

    def parse_request(self, http_request: SimulatedRequest, context: RequestContext) -> AcceptedRequest | bytes:
        if caches := _CACHES.fullmatch(http_request.path):
            return handle_cache_request(http_request, caches[1], context)
        if action := _ACTION.fullmatch(http_request.path):
            return _parse_action(http_request, action[1], action[2], context)
        models = _MODELS.fullmatch(http_request.path)
        if models is None or models[2] is None:
            return encode_json(list_gemini_models(context.models, http_request.query))
        return encode_json(describe_gemini_model(find_gemini_model(models[2], context.models, method="getModel")))

    def sign_thinking(self, content: Sequence[Block], request: AcceptedRequest) -> tuple[Block, ...]:
        return sign_gemini_thoughts(content, model=request.parameters.model, prefix=request.prefix)

    def encode_reply(self, reply: Reply, request: AcceptedRequest) -> bytes | Iterable[bytes]:
        if extra_field(request.parameters, AS_ARRAY) is None:
            return super().encode_reply(reply, request)
        chunks = (event.removeprefix(b"data: ").strip() for event in gemini.encode_stream(reply))
        return b"[" + b",\r\n".join(chunks) + b"]"


def _parse_action(
    http_request: SimulatedRequest, name: str, action: str, context: RequestContext
) -> AcceptedRequest | bytes:
    if action == "countTokens":
        return encode_json(count_gemini_tokens(http_request.body, name, context))
    accepted = parse_gemini_request(http_request.body, name, action, context)
    format = http_request.query.get("alt", "json")
    if format not in ("json", "sse") or (format == "sse" and not accepted.parameters.stream):
        raise refuse("Invalid value at 'alt': json is taken everywhere, and sse by streamGenerateContent.")
    return request_json_array(accepted) if accepted.parameters.stream and format == "json" else accepted
