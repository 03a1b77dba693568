"""Parses and validates a request as OpenRouter does: it forwards, so the rules of the serving provider apply."""

from collections.abc import Sequence

import msgspec

from holdfast.cachemodel.values import Call, Scope
from holdfast.canonical.transcript import messages_of
from holdfast.catalog.lookup import Models, find_model
from holdfast.catalog.rows import Model
from holdfast.errors import UserError
from holdfast.providers.adapter import WireRequest
from holdfast.providers.openai_chat.parameters import OUTPUT_TOKENS_DEFAULT
from holdfast.providers.openrouter import openrouter
from holdfast.simulator.anthropic.blocks import cache_call as anthropic_cache_call
from holdfast.simulator.anthropic.checks import marked
from holdfast.simulator.anthropic.thinking import admit
from holdfast.simulator.blocks import SentBlock, conversations_of, sent_blocks
from holdfast.simulator.dialect import Setting, Understood, refuse
from holdfast.simulator.openai.blocks import cache_call
from holdfast.simulator.openai.checks import check_chat_calls, check_output, check_tools, check_types, check_window
from holdfast.simulator.openai.options import CacheOptions

_NAME_SHOWN_CHARS_MAX = 120


def understand(wire: WireRequest, setting: Setting) -> Understood:
    """Raises `ProviderError` for what OpenRouter or the serving provider refuses."""
    parameters = wire.parameters
    model = model_named(parameters.model, setting.models)
    messages = messages_of(wire.prompt.passages)
    if not messages:
        raise refuse("Input required: specify messages")
    check_types(parameters)
    check_output(parameters, model, unlimited=OUTPUT_TOKENS_DEFAULT)
    check_chat_calls(messages)
    sent = sent_blocks(openrouter, wire)
    check_tools(sent, parameters)
    placed = marked(sent, parameters, model.cache) if model.cache.kind == "marks" else _convert_breakpoints(sent, model)
    admitted = admit(placed, model=parameters.model, rules=model.cache)
    call = _cache_call(admitted.blocks, wire, model, setting)
    check_window(call.tokens, model)
    return Understood(
        model=model,
        parameters=parameters,
        messages=messages,
        call=call,
        conversations=conversations_of(setting.workspace, sent),
        prefix=admitted.prefix,
        dropped=admitted.dropped,
    )


def model_named(name: str, models: Models) -> Model:
    try:
        return find_model(f"{openrouter.name}:{name}", models)
    except UserError as error:
        raise refuse(f"No endpoints found for {name[:_NAME_SHOWN_CHARS_MAX]}.", status=404) from error


def _convert_breakpoints(blocks: Sequence[SentBlock], model: Model) -> tuple[SentBlock, ...]:
    """Breakpoints converted to those of the serving provider; dropped if it has none."""
    # OpenRouter converts `cache_control` and `prompt_cache_breakpoint` into each other, as the provider needs it.
    ttls = model.cache.ttls_seconds if model.cache.kind == "breakpoints" else {}
    ttl = "30m" if "30m" in ttls else None
    return tuple(msgspec.structs.replace(sent, ttl=ttl) if sent.ttl is not None else sent for sent in blocks)


def _cache_call(blocks: Sequence[SentBlock], wire: WireRequest, model: Model, setting: Setting) -> Call:
    if model.cache.kind != "marks":
        return cache_call(blocks, wire.parameters, model=model, options=CacheOptions(), setting=setting)
    scope = Scope(setting.workspace, wire.parameters.model)
    return anthropic_cache_call(blocks, wire.parameters, model=model, scope=scope, at=setting.at, count=setting.count)
