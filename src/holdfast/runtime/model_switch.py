"""Switches an open session to another model: quotes the cost, checks consent, records the switch."""

import msgspec

from holdfast.catalog.lookup import find_model
from holdfast.catalog.schema import Model
from holdfast.engine.cache.explicit_cache import delete_explicit_cache
from holdfast.engine.cache.plan import record_learned
from holdfast.engine.conversation import Conversation, Dependencies
from holdfast.engine.model_switch import SwitchQuote, quote_switch
from holdfast.errors import UserError
from holdfast.events.payloads.calls import ModelSwitched
from holdfast.planning.learned import LearningScope
from holdfast.providers.registry import Provider, get_provider
from holdfast.providers.wire_request import Transport
from holdfast.runtime.compose import Composition, load_models, open_transport
from holdfast.runtime.config import Config
from holdfast.runtime.learned import load_learned, provider_route, with_learned_floor
from holdfast.runtime.options import Options, TransportProvider
from holdfast.runtime.shared import account_name
from holdfast.types.prompt import Parameters


def find_switch_target(config: Config, model: str) -> tuple[Model, Provider]:
    """The catalog row and the provider of a model to switch to. Raises UserError for an unknown model."""
    row = find_model(model, load_models(config))
    return row, get_provider(row.provider)


def quote_session_switch(composition: Composition, conversation: Conversation, model: str) -> SwitchQuote:
    """What it would cost to continue the conversation with the model."""
    row, provider = find_switch_target(composition.config, model)
    return quote_switch(conversation, row, provider.adapter)


async def switch_session(
    composition: Composition, conversation: Conversation, model: str, *, options: Options, allow_uncached: bool
) -> Composition:
    """Switch the conversation to the model and return its new composition; a transport no longer needed is closed."""
    new_model, provider = find_switch_target(composition.config, model)
    quoted = quote_switch(conversation, new_model, provider.adapter)
    if not quoted.supports_prompt_caching and not allow_uncached:
        raise UserError(f"{quoted}; pass allow_uncached=True to switch anyway")
    before = conversation.base_deps
    parameters = _transfer_parameters(before.parameters, composition.config, before.model, new_model)
    # Raises for parameters that the provider does not support now, and not in the middle of a turn.
    provider.adapter.request_head(parameters)
    transport, owns_transport = _choose_transport(options, composition, provider)
    route = provider_route(options, composition.config, provider) if transport else before.learning_scope.route
    # What was learned (cache floor, idle times) belongs to a model and route, so it is loaded again.
    scope = LearningScope(new_model.id, route, before.learning_scope.workspace_hash)
    learned = load_learned(before.log, scope, session_id=conversation.state.session_id)
    deps: Dependencies = msgspec.structs.replace(
        before,
        adapter=provider.adapter,
        model=with_learned_floor(new_model, learned),
        learned=learned,
        learning_scope=scope,
        parameters=parameters,
        transport=transport or before.transport,
        account=account_name(transport) if transport else before.account,
        volatile=composition.volatile_source_for(new_model),
    )
    switched = ModelSwitched(
        before=before.model.id,
        after=new_model.id,
        parameters=parameters,
        prompt_tokens=quoted.prompt_tokens,
        cache_miss_cost_usd=quoted.cold_usd,
        dropped=quoted.dropped,
        reworded_entries=quoted.reworded,
    )
    # Everything that can fail comes before the conversation changes: on an error it continues with the old model.
    try:
        await delete_explicit_cache(conversation, f"{new_model.id} has another cache")
        await record_learned(conversation)
        await conversation.record("user", switched)
    except BaseException:
        if transport is not None and owns_transport:
            await transport.aclose()
        raise
    conversation.switch_deps(deps)
    if transport is not None and composition.owns_transport:
        await before.transport.aclose()
    owns_transport = owns_transport if transport is not None else composition.owns_transport
    return msgspec.structs.replace(composition, deps=deps, owns_transport=owns_transport)


def _transfer_parameters(before: Parameters, config: Config, old: Model, new: Model) -> Parameters:
    """The parameters for the new model. Thinking, betas and extra fields are provider-specific and do not transfer."""
    same = old.provider == new.provider
    return msgspec.structs.replace(
        before,
        model=new.name,
        output_tokens_max=min(max(before.output_tokens_max, 1), new.output_tokens_max),
        thinking_json=before.thinking_json if same and new.has_reasoning else None,
        betas=before.betas if same else (),
        extra=before.extra if same else (),
    )


def _choose_transport(options: Options, composition: Composition, provider: Provider) -> tuple[Transport | None, bool]:
    """The transport to the other provider, or None to keep the current one; and whether the session has to close it."""
    transport = options.get("transport")
    if isinstance(transport, TransportProvider):
        return transport.create_transport(load_models(composition.config), provider=provider.adapter.name), True
    if transport is not None:
        return transport, False
    has_endpoint = bool(options.get("base_url") or options.get("api_key"))
    if provider.adapter is composition.deps.adapter and not has_endpoint:
        return None, False
    if not composition.owns_transport and not has_endpoint:
        raise UserError(
            f"this session was created with a transport to {composition.deps.adapter.name}; pass one to "
            f"{provider.adapter.name} too: switch_model(..., transport=...)"
        )
    return open_transport(options, composition.config, provider), True
