"""Gemini's API in the simulator: its endpoints, errors and replies."""

import re
from collections.abc import Iterable, Sequence

from holdfast.canonical.blocks import Block
from holdfast.canonical.encoding import plain_json
from holdfast.canonical.reply import Reply
from holdfast.errors import ProviderError
from holdfast.providers.failures import header
from holdfast.providers.fields import extra_field
from holdfast.providers.gemini import gemini
from holdfast.simulator.dialect import Asked, Setting, Understood, refuse, reported, spelled
from holdfast.simulator.gemini.caches import COLLECTION, answer_about_caches
from holdfast.simulator.gemini.checks import model_named
from holdfast.simulator.gemini.listing import describe, list_models
from holdfast.simulator.gemini.thinking import sealed_thoughts
from holdfast.simulator.gemini.understand import AS_ARRAY, as_array, count, understand

# google-genai 3.x calls /v1, earlier versions /v1beta.
_ACTION = re.compile(r"/v1(?:beta)?/models/([^/:]+):(generateContent|streamGenerateContent|countTokens)")
_MODELS = re.compile(r"/v1(beta)?/models(?:/([^/:]+))?")
_CACHES = re.compile(rf"/v1(?:beta)?/{COLLECTION}(?:/([^/:]+))?")
_METHODS_OF_ONE = ("GET", "PATCH", "DELETE")


class GeminiDialect:
    provider = gemini.name
    routes = (
        "POST /v1/models/ID:generateContent",
        "POST /v1/models/ID:streamGenerateContent",
        "POST /v1/models/ID:countTokens",
        f"POST /v1/{COLLECTION}",
        f"GET /v1/{COLLECTION}",
        *(f"{method} /v1/{COLLECTION}/ID" for method in _METHODS_OF_ONE),
    )
    key_header = "x-goog-api-key"
    request_id_header = "x-request-id"
    reply_id_prefix = "gemini_sim"
    call_id_prefix = "call_"

    def takes(self, http_request: Asked) -> bool:
        if http_request.method == "POST" and _ACTION.fullmatch(http_request.path):
            return True
        if http_request.method == "GET" and (models := _MODELS.fullmatch(http_request.path)):
            # Other providers list their models at the same path; only Gemini's clients send this header.
            return bool(models[1]) or header(http_request.headers, self.key_header) is not None
        caches = _CACHES.fullmatch(http_request.path)
        return caches is not None and http_request.method in (_METHODS_OF_ONE if caches[1] else ("GET", "POST"))

    def understand(self, http_request: Asked, setting: Setting) -> Understood | bytes:
        if caches := _CACHES.fullmatch(http_request.path):
            return answer_about_caches(http_request, caches[1], setting)
        if action := _ACTION.fullmatch(http_request.path):
            return _understand_action(http_request, action[1], action[2], setting)
        models = _MODELS.fullmatch(http_request.path)
        if models is None or models[2] is None:
            return plain_json(list_models(setting.models, http_request.query))
        return plain_json(describe(model_named(models[2], setting.models, method="getModel")))

    def sealed(self, content: Sequence[Block], request: Understood) -> tuple[Block, ...]:
        return sealed_thoughts(content, model=request.parameters.model, prefix=request.prefix)

    def spell(self, reply: Reply, request: Understood) -> bytes | Iterable[bytes]:
        if extra_field(request.parameters, AS_ARRAY) is None:
            return spelled(gemini, reply, stream=request.parameters.stream)
        chunks = (event.removeprefix(b"data: ").strip() for event in gemini.write_stream(reply))
        return b"[" + b",\r\n".join(chunks) + b"]"

    def refusal(self, error: ProviderError) -> tuple[int, bytes]:
        return reported(gemini, error)


def _understand_action(http_request: Asked, name: str, action: str, setting: Setting) -> Understood | bytes:
    if action == "countTokens":
        return plain_json(count(http_request.body, name, setting))
    understood = understand(http_request.body, name, action, setting)
    format = http_request.query.get("alt", "json")
    if format not in ("json", "sse") or (format == "sse" and not understood.parameters.stream):
        raise refuse("Invalid value at 'alt': json is taken everywhere, and sse by streamGenerateContent.")
    return as_array(understood) if understood.parameters.stream and format == "json" else understood
