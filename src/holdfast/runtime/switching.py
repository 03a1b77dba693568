"""How a session goes on with another model: quoted, agreed to, recorded."""

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
    """How the other provider is reached, where that is not configured."""

    wire: Wire | ProvidesWire
    base_url: str
    api_key: str


def target(config: Config, model: str) -> tuple[Model, Provider]:
    row = find_model(model, with_overrides(shipped_models(), config.models))
    return row, provider_named(row.provider)


def quote(pieces: Pieces, talk: Conversation, model: str) -> SwitchQuote:
    row, provider = target(pieces.config, model)
    return quote_switch(talk, row, provider.adapter)


async def switch(pieces: Pieces, talk: Conversation, model: str, *, options: Options, allow_uncached: bool) -> Pieces:
    """The pieces to go on with; the wire that is no longer needed is closed."""
    row, provider = target(pieces.config, model)
    told = quote_switch(talk, row, provider.adapter)
    if not told.supports_prompt_caching and not allow_uncached:
        raise UserError(f"{told}; say allow_uncached=True to switch all the same")
    before = talk.given
    parameters = _carried_parameters(before.parameters, pieces.config, before.model, row)
    # Whatever the provider has no words for is refused now and not in the middle of a turn.
    provider.adapter.opening(parameters)
    wire, owned = _wire(options, pieces, provider)
    route = route_of(options, pieces.config, provider) if wire else before.scene.route
    scene = Scene(row.id, route, before.scene.workspace_hash)
    learned = learned_in(before.log, scene, session_id=talk.state.session_id)
    parts: Parts = msgspec.structs.replace(
        before,
        adapter=provider.adapter,
        model=with_learned_floor(row, learned),
        learned=learned,
        scene=scene,
        parameters=parameters,
        wire=wire or before.wire,
        account=account_of(wire) if wire else before.account,
        volatile=pieces.volatile_for(row),
    )
    switched = ModelSwitched(
        before=before.model.id,
        after=row.id,
        parameters=parameters,
        prompt_tokens=told.prompt_tokens,
        cold_cost_usd=told.cold_usd,
        dropped=told.dropped,
        reworded_passages=told.reworded,
    )
    try:
        await let_go(talk, f"{row.id} has another cache")
        await teach(talk)
        await talk.record("user", switched)
    except BaseException:
        if wire is not None and owned:
            await wire.aclose()
        raise
    talk.speak_through(parts)
    if wire is not None and pieces.owns_wire:
        await before.wire.aclose()
    return msgspec.structs.replace(pieces, parts=parts, owns_wire=owned if wire is not None else pieces.owns_wire)


def _carried_parameters(before: Parameters, config: Config, old: Model, new: Model) -> Parameters:
    """How to think, and what is in beta, each provider says in words of its own."""
    same = old.provider == new.provider
    return msgspec.structs.replace(
        before,
        model=new.name,
        output_tokens_max=min(max(before.output_tokens_max, 1), new.output_tokens_max),
        thinking_json=before.thinking_json if same and new.reasons else None,
        betas=before.betas if same else (),
        extra=before.extra if same else (),
    )


def _wire(options: Options, pieces: Pieces, provider: Provider) -> tuple[Wire | None, bool]:
    """The wire to the other provider, if it takes another one, and whether it is ours to close."""
    given = options.get("wire")
    if isinstance(given, ProvidesWire):
        models = with_overrides(shipped_models(), pieces.config.models)
        return given.wire(models, provider=provider.adapter.name), True
    if given is not None:
        return given, False
    told = bool(options.get("base_url") or options.get("api_key"))
    if provider.adapter is pieces.parts.adapter and not told:
        return None, False
    if not pieces.owns_wire and not told:
        raise UserError(
            f"this session was given its wire to {pieces.parts.adapter.name}; give one to "
            f"{provider.adapter.name} too: switch_model(..., wire=...)"
        )
    return network(options, pieces.config, provider), True
