"""Parses and validates a request as Anthropic does: what the model and the cache see of it."""

from holdfast.cachemodel.values import Scope
from holdfast.canonical.transcript import messages_of
from holdfast.providers.adapter import WireRequest
from holdfast.providers.anthropic import anthropic
from holdfast.simulator.anthropic.blocks import cache_call
from holdfast.simulator.anthropic.checks import (
    check_output,
    check_tools,
    check_transcript,
    check_window,
    drops_mismatches,
    marked,
)
from holdfast.simulator.anthropic.diagnosing import fingerprint_of, wish_of
from holdfast.simulator.anthropic.thinking import admit
from holdfast.simulator.blocks import conversations_of, sent_blocks
from holdfast.simulator.dialect import Setting, Understood, model_named


def understand(wire: WireRequest, setting: Setting, *, counting: bool = False) -> Understood:
    """Raises `ProviderError` for what the provider refuses. With `counting`, output limits are not checked."""
    parameters = wire.parameters
    model = model_named(parameters.model, setting.models, provider=anthropic.name)
    check_transcript(wire.prompt.passages, model.cache)
    sent = sent_blocks(anthropic, wire)
    check_tools(sent, parameters, model.cache)
    if not counting:
        check_output(parameters, model)
    admitted = admit(
        marked(sent, parameters, model.cache),
        model=parameters.model,
        rules=model.cache,
        drops_mismatches=drops_mismatches(parameters),
    )
    scope = Scope(setting.workspace, parameters.model)
    call = cache_call(admitted.blocks, parameters, model=model, scope=scope, at=setting.at, count=setting.count)
    check_window(call.tokens, model)
    return Understood(
        model=model,
        parameters=parameters,
        messages=messages_of(wire.prompt.passages),
        call=call,
        conversations=conversations_of(setting.workspace, sent),
        prefix=admitted.prefix,
        dropped=admitted.dropped,
        # A prewarming request gets no content and the stop reason `max_tokens`.
        prewarmed="max_tokens" if parameters.output_tokens_max == 0 else None,
        fingerprint=fingerprint_of(sent, parameters, model.cache),
        wish=None if counting else wish_of(parameters, model.cache),
    )
