"""Parses and validates a request as Gemini does: what the model and the cache see of it."""

from collections.abc import Mapping

from msgspec.structs import replace

from holdfast.catalog.schema import Model
from holdfast.providers.gemini.encode import CACHED_CONTENT
from holdfast.simulator.explicit_caches import CachedContent
from holdfast.simulator.gemini import validation
from holdfast.simulator.gemini.body import (
    CONTENTS,
    HEAD_NAMES,
    decode_gemini_members,
    join_cached_content,
    list_sent_parts,
    make_gemini_cache_call,
    read_text_member,
    split_gemini_body,
)
from holdfast.simulator.gemini.cached_content import find_cached_content
from holdfast.simulator.provider_api import AcceptedRequest, RequestContext, refuse
from holdfast.simulator.request_blocks import digest_conversation, digest_conversation_starts
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
