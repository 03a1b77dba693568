"""Gemini in the simulator: whose requests are its own, and how each is answered."""

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

    def takes(self, asked: Asked) -> bool:
        if asked.method == "POST" and _ACTION.fullmatch(asked.path):
            return True
        if asked.method == "GET" and (models := _MODELS.fullmatch(asked.path)):
            # Others list their models at the same place; only Gemini's clients send this header.
            return bool(models[1]) or header(asked.headers, self.key_header) is not None
        caches = _CACHES.fullmatch(asked.path)
        return caches is not None and asked.method in (_METHODS_OF_ONE if caches[1] else ("GET", "POST"))

    def understand(self, asked: Asked, setting: Setting) -> Understood | bytes:
        if caches := _CACHES.fullmatch(asked.path):
            return answer_about_caches(asked, caches[1], setting)
        if action := _ACTION.fullmatch(asked.path):
            return _asked_of_a_model(asked, action[1], action[2], setting)
        models = _MODELS.fullmatch(asked.path)
        if models is None or models[2] is None:
            return plain_json(list_models(setting.models, asked.query))
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


def _asked_of_a_model(asked: Asked, name: str, action: str, setting: Setting) -> Understood | bytes:
    if action == "countTokens":
        return plain_json(count(asked.body, name, setting))
    understood = understand(asked.body, name, action, setting)
    wanted = asked.query.get("alt", "json")
    if wanted not in ("json", "sse") or (wanted == "sse" and not understood.parameters.stream):
        raise refuse("Invalid value at 'alt': json is taken everywhere, and sse by streamGenerateContent.")
    return as_array(understood) if understood.parameters.stream and wanted == "json" else understood
