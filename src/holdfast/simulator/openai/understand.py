"""Parses and validates a request as OpenAI does: what the model and the cache see of it."""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.canonical.transcript import messages_of
from holdfast.providers.adapter import Adapter, WireRequest
from holdfast.simulator.blocks import SentBlock, conversation_so_far, conversations_of, sent_blocks
from holdfast.simulator.diagnosing import Wish
from holdfast.simulator.dialect import Setting, Understood, refuse
from holdfast.simulator.openai.blocks import cache_call
from holdfast.simulator.openai.checks import (
    CheckCalls,
    check_marks,
    check_output,
    check_tools,
    check_types,
    check_window,
    model_named,
)
from holdfast.simulator.openai.diagnosing import fingerprint_of
from holdfast.simulator.openai.options import cache_options

PROVIDER = "openai"
"""The catalog provider of the models, for both APIs."""


class Interface(msgspec.Struct, frozen=True):
    """The differences between OpenAI's two APIs: field names, cache options and checks."""

    adapter: Adapter
    prompt_name: str
    output_tokens_unlimited: int
    cache_options: frozenset[str]
    check_calls: CheckCalls
    check_thinking: Callable[[Sequence[SentBlock]], None]


def understand(wire: WireRequest, setting: Setting, interface: Interface, *, counting: bool = False) -> Understood:
    """Raises `ProviderError` for what the provider refuses. With `counting`, output limits are not checked."""
    parameters = wire.parameters
    model = model_named(parameters.model, setting.models, provider=PROVIDER)
    messages = messages_of(wire.prompt.passages)
    if not messages:
        raise refuse(f"Invalid '{interface.prompt_name}': it holds nothing to answer to.")
    check_types(parameters)
    if not counting:
        check_output(parameters, model, unlimited=interface.output_tokens_unlimited)
    interface.check_calls(messages)
    sent = sent_blocks(interface.adapter, wire)
    check_tools(sent, parameters)
    check_marks(sent, model)
    interface.check_thinking(sent)
    options = cache_options(parameters, model.cache, known=interface.cache_options)
    call = cache_call(sent, parameters, model=model, options=options, setting=setting)
    check_window(call.tokens, model)
    return Understood(
        model=model,
        parameters=parameters,
        messages=messages,
        call=call,
        conversations=conversations_of(setting.workspace, sent),
        prefix=conversation_so_far(sent),
        # A prewarming request gets no output.
        prewarmed="end_turn" if options.prewarms else None,
        fingerprint=fingerprint_of(sent, parameters, model.cache),
        wish=None if options.comparison is None else Wish(options.comparison),
    )
