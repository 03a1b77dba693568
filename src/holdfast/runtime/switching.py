"""Switches an open session to another model: quotes the cost, checks consent, records the switch."""

from typing import TypedDict

import msgspec

from holdfast.canonical.prompt import Parameters
from holdfast.catalog.lookup import find_model, shipped_models
from holdfast.catalog.overrides import with_overrides
from holdfast.catalog.rows import Model
from holdfast.engine.conversation import Conversation, Parts
from holdfast.engine.keeping import let_go
from holdfast.engine.switch import SwitchQuote, quote_switch
from holdfast.engine.teaching import teach
from holdfast.errors import UserError
from holdfast.events.payloads import ModelSwitched
from holdfast.planning.lessons import Scene
from holdfast.providers.registry import Provider, provider_named
from holdfast.providers.wire import Wire
from holdfast.runtime.compose import Pieces, network
from holdfast.runtime.config import Config
from holdfast.runtime.gates import account_of
from holdfast.runtime.learning import learned_in, route_of, with_learned_floor
from holdfast.runtime.options import Options, ProvidesWire


class Reach(TypedDict, total=False):
    """The endpoint of the other provider, if it is not the configured one."""

    wire: Wire | ProvidesWire
    base_url: str
    api_key: str


def target(config: Config, model: str) -> tuple[Model, Provider]:
    """The catalog row and the provider of a model to switch to. Raises UserError for an unknown model."""
    row = find_model(model, with_overrides(shipped_models(), config.models))
    return row, provider_named(row.provider)


def quote(composition: Pieces, conversation: Conversation, model: str) -> SwitchQuote:
    """What it would cost to continue the conversation with the model."""
    row, provider = target(composition.config, model)
    return quote_switch(conversation, row, provider.adapter)


async def switch(
    composition: Pieces, conversation: Conversation, model: str, *, options: Options, allow_uncached: bool
) -> Pieces:
    """Switch the conversation to the model and return its new composition; a wire no longer needed is closed."""
    new_model, provider = target(composition.config, model)
    quoted = quote_switch(conversation, new_model, provider.adapter)
    if not quoted.supports_prompt_caching and not allow_uncached:
        raise UserError(f"{quoted}; pass allow_uncached=True to switch anyway")
    before = conversation.given
    parameters = _transfer_parameters(before.parameters, composition.config, before.model, new_model)
    # Raises for parameters that the provider does not support now, and not in the middle of a turn.
    provider.adapter.opening(parameters)
    wire, owns_wire = _choose_wire(options, composition, provider)
    route = route_of(options, composition.config, provider) if wire else before.scene.route
    # What was learned (cache floor, idle times) belongs to a model and route, so it is loaded again.
    scene = Scene(new_model.id, route, before.scene.workspace_hash)
    learned = learned_in(before.log, scene, session_id=conversation.state.session_id)
    parts: Parts = msgspec.structs.replace(
        before,
        adapter=provider.adapter,
        model=with_learned_floor(new_model, learned),
        learned=learned,
        scene=scene,
        parameters=parameters,
        wire=wire or before.wire,
        account=account_of(wire) if wire else before.account,
        volatile=composition.volatile_for(new_model),
    )
    switched = ModelSwitched(
        before=before.model.id,
        after=new_model.id,
        parameters=parameters,
        prompt_tokens=quoted.prompt_tokens,
        cold_cost_usd=quoted.cold_usd,
        dropped=quoted.dropped,
        reworded_passages=quoted.reworded,
    )
    # Everything that can fail comes before the conversation changes: on an error it continues with the old model.
    try:
        await let_go(conversation, f"{new_model.id} has another cache")
        await teach(conversation)
        await conversation.record("user", switched)
    except BaseException:
        if wire is not None and owns_wire:
            await wire.aclose()
        raise
    conversation.speak_through(parts)
    if wire is not None and composition.owns_wire:
        await before.wire.aclose()
    return msgspec.structs.replace(
        composition, parts=parts, owns_wire=owns_wire if wire is not None else composition.owns_wire
    )


def _transfer_parameters(before: Parameters, config: Config, old: Model, new: Model) -> Parameters:
    """The parameters for the new model. Thinking, betas and extra fields are provider-specific and do not transfer."""
    same = old.provider == new.provider
    return msgspec.structs.replace(
        before,
        model=new.name,
        output_tokens_max=min(max(before.output_tokens_max, 1), new.output_tokens_max),
        thinking_json=before.thinking_json if same and new.reasons else None,
        betas=before.betas if same else (),
        extra=before.extra if same else (),
    )


def _choose_wire(options: Options, composition: Pieces, provider: Provider) -> tuple[Wire | None, bool]:
    """The wire to the other provider, or None to keep the current one; and whether the session has to close it."""
    wire = options.get("wire")
    if isinstance(wire, ProvidesWire):
        models = with_overrides(shipped_models(), composition.config.models)
        return wire.wire(models, provider=provider.adapter.name), True
    if wire is not None:
        return wire, False
    has_endpoint = bool(options.get("base_url") or options.get("api_key"))
    if provider.adapter is composition.parts.adapter and not has_endpoint:
        return None, False
    if not composition.owns_wire and not has_endpoint:
        raise UserError(
            f"this session was created with a wire to {composition.parts.adapter.name}; pass one to "
            f"{provider.adapter.name} too: switch_model(..., wire=...)"
        )
    return network(options, composition.config, provider), True
