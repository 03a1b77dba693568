"""What a request means to the provider: whether it is taken, and what the model and the cache see of it."""

import msgspec

from holdfast.cachemodel.values import Call, Scope
from holdfast.canonical.blocks import Message
from holdfast.canonical.prompt import Parameters
from holdfast.canonical.transcript import messages_of
from holdfast.catalog.lookup import Models, find_model
from holdfast.catalog.rows import Model
from holdfast.errors import UserError
from holdfast.providers.adapter import WireRequest
from holdfast.providers.anthropic import anthropic
from holdfast.simulator.blocks import TokenCounts, cache_call, conversations_of, sent_blocks
from holdfast.simulator.checks import (
    check_output,
    check_tools,
    check_transcript,
    check_window,
    drops_mismatches,
    marked,
    refuse,
)
from holdfast.simulator.thinking import DroppedBlock, admit


class Understood(msgspec.Struct, frozen=True):
    """A request that the provider takes.

    `prefix` is what thinking in the reply is bound to. `dropped` are the blocks that the model does not see.
    """

    model: Model
    parameters: Parameters
    messages: tuple[Message, ...]
    call: Call
    conversations: tuple[str, ...]
    prefix: str
    dropped: tuple[DroppedBlock, ...]

    @property
    def turn(self) -> int:
        """How often the assistant has spoken; what it is to go on with does not count."""
        spoken = sum(message.role == "assistant" for message in self.messages)
        return spoken - (self.messages[-1].role == "assistant")


def understand(
    wire: WireRequest,
    *,
    models: Models,
    workspace: str,
    at: float,
    count: TokenCounts,
    counting: bool = False,
) -> Understood:
    """Raises `ProviderError` for what the provider refuses. Where tokens are only counted, none are asked for."""
    parameters = wire.parameters
    model = model_named(parameters.model, models)
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
    scope = Scope(workspace, parameters.model)
    call = cache_call(admitted.blocks, parameters, model=model, scope=scope, at=at, count=count)
    check_window(call.tokens, model)
    return Understood(
        model=model,
        parameters=parameters,
        messages=messages_of(wire.prompt.passages),
        call=call,
        conversations=conversations_of(workspace, sent),
        prefix=admitted.prefix,
        dropped=admitted.dropped,
    )


def model_named(name: str, models: Models) -> Model:
    try:
        return find_model(f"{anthropic.name}:{name}", models)
    except UserError as error:
        # The client knows its models without the provider in front.
        raise refuse(f"model: {str(error).replace(f'{anthropic.name}:', '')}", status=404) from error
