"""Parses and validates a request as Gemini does: what the model and the cache see of it."""

from collections.abc import Mapping

from msgspec.structs import replace

from holdfast.canonical.transcript import messages_of
from holdfast.catalog.rows import Model
from holdfast.providers.gemini.opening import CACHE
from holdfast.simulator.blocks import conversation_so_far, conversations_of
from holdfast.simulator.dialect import Setting, Understood, refuse
from holdfast.simulator.gemini.blocks import cache_call, sent_parts
from holdfast.simulator.gemini.body import CONTENTS, HEAD_NAMES, joined, members_of, read, text_in
from holdfast.simulator.gemini.caches import cache_named
from holdfast.simulator.gemini.checks import (
    check_calls,
    check_contents,
    check_output,
    check_tools,
    check_window,
    model_named,
)
from holdfast.simulator.gemini.thinking import check_thoughts
from holdfast.simulator.named import KeptContent

AS_ARRAY = "alt"
"""Marks a request whose stream is returned as one JSON array."""

_COUNTED = "generateContentRequest"
_KNOWN = frozenset(
    {*HEAD_NAMES, CONTENTS, CACHE, "generationConfig", "labels", "model", "safetySettings", "serviceTier", "store"}
)


def understand(body: bytes, name: str, action: str, setting: Setting) -> Understood:
    """Raises `ProviderError` for what the provider refuses."""
    model = model_named(name, setting.models, method=action)
    members = members_of(body, _KNOWN)
    _check_model(members, name)
    understood = _understand(members, model, setting, action=action)
    check_output(understood.parameters, model)
    check_calls(understood.messages)
    check_thoughts(understood.messages)
    return understood


def as_array(request: Understood) -> Understood:
    """The same request with its stream returned as a JSON array."""
    parameters = request.parameters
    extra = (*parameters.extra, (AS_ARRAY, '"json"'))
    return replace(request, parameters=replace(parameters, stream=False, extra=extra))


def count(body: bytes, name: str, setting: Setting) -> dict[str, int]:
    model = model_named(name, setting.models, method="countTokens")
    members = members_of(body, {CONTENTS, _COUNTED})
    if _COUNTED in members:
        if CONTENTS in members:
            raise refuse(f"contents and {_COUNTED} cannot both be set.")
        members = members_of(members[_COUNTED], _KNOWN)
        _check_model(members, name)
    call = _understand(members, model, setting).call
    cached = {"cachedContentTokenCount": call.named_tokens} if call.named_tokens else {}
    return {"totalTokens": call.tokens, **cached}


def _understand(
    members: Mapping[str, bytes], model: Model, setting: Setting, *, action: str = "generateContent"
) -> Understood:
    wire = read(members, model.name, action)
    check_contents(wire.prompt.passages)
    cached = _referenced_cache(members, model, setting)
    if cached is not None:
        wire = read(joined(cached.members, members), model.name, action)
    sent = sent_parts(wire)
    check_tools(sent, wire.parameters)
    named_tokens = cached.cache.tokens if cached else 0
    call = cache_call(sent, wire.parameters, model=model, setting=setting, named_tokens=named_tokens)
    check_window(call.tokens, model)
    return Understood(
        model=model,
        parameters=wire.parameters,
        messages=messages_of(wire.prompt.passages),
        call=call,
        conversations=conversations_of(setting.workspace, sent),
        prefix=conversation_so_far(sent),
    )


def _check_model(members: Mapping[str, bytes], name: str) -> None:
    """The path determines the model; the body may only repeat it."""
    body_model = text_in(members, "model")
    if body_model is not None and body_model.removeprefix("models/") != name:
        raise refuse("The model in the request is another than the model in the path.")


def _referenced_cache(members: Mapping[str, bytes], model: Model, setting: Setting) -> KeptContent | None:
    name = text_in(members, CACHE)
    if name is None:
        return None
    cached = cache_named(name, setting)
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
