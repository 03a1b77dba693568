"""Gemini's API in the simulator: its endpoints, errors and replies, and requests as its model and cache see them."""

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from holdfast.catalog.schema import Model
from holdfast.providers.errors import get_header
from holdfast.providers.gemini import gemini
from holdfast.providers.gemini.encode import CACHED_CONTENT
from holdfast.providers.json_splice import extra_field
from holdfast.simulator.explicit_caches import CachedContent
from holdfast.simulator.gemini import validation
from holdfast.simulator.gemini.body import (
    CONTENTS,
    HEAD_NAMES,
    decode_gemini_members,
    describe_gemini_model,
    join_cached_content,
    list_gemini_models,
    list_sent_parts,
    make_gemini_cache_call,
    read_text_member,
    split_gemini_body,
)
from holdfast.simulator.gemini.cached_content import COLLECTION, find_cached_content, handle_cache_request
from holdfast.simulator.gemini.validation import find_gemini_model, sign_gemini_thoughts
from holdfast.simulator.provider_api import AcceptedRequest, ProviderApi, RequestContext, SimulatedRequest, refuse
from holdfast.simulator.request_blocks import digest_conversation, digest_conversation_starts
from holdfast.types.blocks import Block
from holdfast.types.json_encoding import encode_json
from holdfast.types.reply import Reply
from holdfast.types.transcript import merge_into_messages

AS_ARRAY = "alt"
"""Marks a request whose stream is returned as one JSON array."""

_COUNTED = "generateContentRequest"
_OPTIONAL_NAMES = ("generationConfig", "labels", "model", "safetySettings", "serviceTier", "store")
_KNOWN = frozenset({*HEAD_NAMES, CONTENTS, CACHED_CONTENT, *_OPTIONAL_NAMES})


def parse_gemini_request(body: bytes, name: str, action: str, context: RequestContext) -> AcceptedRequest:
    """Raises `ProviderError` for what the provider refuses."""
    model = validation.find_gemini_model(name, context.models, method=action)
    members = split_gemini_body(body, _KNOWN)
    _check_model(members, name)
    accepted = _parse_members(members, model, context, action=action)
    validation.check_gemini_output(accepted.parameters, model)
    validation.check_gemini_calls(accepted.messages)
    validation.check_gemini_thoughts(accepted.messages)
    return accepted


def request_json_array(request: AcceptedRequest) -> AcceptedRequest:
    """The same request with its stream returned as a JSON array."""
    parameters = request.parameters
    extra = (*parameters.extra, (AS_ARRAY, '"json"'))
    return replace(request, parameters=replace(parameters, stream=False, extra=extra))


def count_gemini_tokens(body: bytes, name: str, context: RequestContext) -> dict[str, int]:
    model = validation.find_gemini_model(name, context.models, method="countTokens")
    members = split_gemini_body(body, {CONTENTS, _COUNTED})
    if _COUNTED in members:
        if CONTENTS in members:
            raise refuse(f"contents and {_COUNTED} cannot both be set.")
        members = split_gemini_body(members[_COUNTED], _KNOWN)
        _check_model(members, name)
    call = _parse_members(members, model, context).call
    cached = {"cachedContentTokenCount": call.explicit_cache_tokens} if call.explicit_cache_tokens else {}
    return {"totalTokens": call.tokens, **cached}


def _parse_members(
    members: Mapping[str, bytes], model: Model, context: RequestContext, *, action: str = "generateContent"
) -> AcceptedRequest:
    wire = decode_gemini_members(members, model.name, action)
    validation.check_gemini_contents(wire.prompt.entries)
    cached = _referenced_cache(members, model, context)
    if cached is not None:
        wire = decode_gemini_members(join_cached_content(cached.members, members), model.name, action)
    sent = list_sent_parts(wire)
    validation.check_gemini_tools(sent, wire.parameters)
    cached_tokens = cached.cache.tokens if cached else 0
    call = make_gemini_cache_call(sent, wire.parameters, model=model, context=context, cached_tokens=cached_tokens)
    validation.check_gemini_window(call.tokens, model)
    return AcceptedRequest(
        model=model,
        parameters=wire.parameters,
        messages=merge_into_messages(wire.prompt.entries),
        call=call,
        conversations=digest_conversation_starts(context.workspace, sent),
        prefix=digest_conversation(sent),
    )


def _check_model(members: Mapping[str, bytes], name: str) -> None:
    """The path determines the model; the body may only repeat it."""
    body_model = read_text_member(members, "model")
    if body_model is not None and body_model.removeprefix("models/") != name:
        raise refuse("The model in the request is another than the model in the path.")


def _referenced_cache(members: Mapping[str, bytes], model: Model, context: RequestContext) -> CachedContent | None:
    name = read_text_member(members, CACHED_CONTENT)
    if name is None:
        return None
    cached = find_cached_content(name, context)
    # The cache is an immutable prefix, so a request cannot set what comes before its contents.
    if any(field in members for field in HEAD_NAMES):
        raise refuse(
            "CachedContent can not be used with GenerateContent request setting system_instruction, tools or "
            "tool_config. Proposed fix: move those values to CachedContent from GenerateContent request."
        )
    if cached.cache.model != model.name:
        raise refuse(
            f"Model used by GenerateContent request (models/{model.name}) and CachedContent "
            f"(models/{cached.cache.model}) has to be the same."
        )
    return cached


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
