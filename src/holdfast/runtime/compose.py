"""Composes a session: chooses its dependencies from the caller's options and the configuration."""

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from holdfast.catalog import lookup
from holdfast.catalog.schema import Model
from holdfast.clock import new_ulid, system_clock
from holdfast.engine.conversation import Dependencies, KeepAlive, VolatileSource
from holdfast.engine.snapshot import StateSnapshot, load_state
from holdfast.engine.state import SessionState
from holdfast.engine.tools.delegate import Delegation
from holdfast.engine.tools.dispatch import Toolbox
from holdfast.errors import UserError
from holdfast.events.log import EventBus, EventLog
from holdfast.events.payloads.session import EpochOpened, SessionStarted, SkillLoaded
from holdfast.events.payloads.union import AnyPayload
from holdfast.layers.system_prompt import clean_text, render_instructions, render_settings, split_at_boundary
from holdfast.planning.explicit_cache import ExplicitCacheConfig
from holdfast.planning.learned import LearningScope
from holdfast.providers.adapter import model_capabilities
from holdfast.providers.claude_code.subprocess import CommandTransport, split_command
from holdfast.providers.registry import Provider, get_provider
from holdfast.providers.wire_request import CONCURRENT_REQUESTS_MAX, Transport
from holdfast.runtime.compaction import compaction_config, overflow_steps
from holdfast.runtime.config import Config, load_config
from holdfast.runtime.knowledge import knowledge_layer, knowledge_refresh, knowledge_user
from holdfast.runtime.learned import load_learned, provider_route, with_learned_floor
from holdfast.runtime.options import Options, TransportProvider, request_parameters
from holdfast.runtime.padding import (
    PaddingDecision,
    PaddingInputs,
    decide_padding,
    forecast_calls,
)
from holdfast.runtime.shared import account_name, controls_reader, response_cache_of, single_flight_of
from holdfast.runtime.skills import SessionSkills, load_session_skills
from holdfast.runtime.tools import build_toolbox, missing_tools_hint, session_delegation
from holdfast.runtime.volatile_context import KnowledgeLayers, volatile_source
from holdfast.sources.instruction_files import read_instructions, read_named_text
from holdfast.stores.open import open_store
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.prompt import LayerText, View

logger = logging.getLogger(__name__)

TURN_IN_PROGRESS = (
    "a turn is in progress in this session; wait for it, or use a second session "
    "(a stream that was left early stays in progress until it is closed: wrap it in contextlib.aclosing)"
)

# Options that are also settings: an option overrides the environment and the configuration files.
_SETTINGS = (
    *("model", "layout", "profile", "padding", "diagnostics", "output_tokens_max", "steps_max", "spend_max_usd"),
    *("keep_alive", "keep_alive_usd_max", "cache_ttl_seconds", "cache_over_an_hour", "also_skills"),
    *("skills_mode", "digest_refresh", "compaction_tokens", "command_variables"),
)
EXAMPLE_TOKENS = 10_000
"""The prompt size for which the error about an uncached model shows the price."""

_LOOPBACK_URLS = ("http://127.0.0.1", "http://localhost", "http://[::1]")


class Composition(msgspec.Struct, frozen=True):
    """The composed session: its dependencies, the pinned layers of its first epoch, and what it has to close."""

    deps: Dependencies
    config: Config
    pinned: tuple[LayerText, ...]
    padding: str | None
    skills: tuple[str, ...]
    preloaded: tuple[SkillLoaded, ...]
    volatile_source_for: Callable[[Model], VolatileSource]
    owns_transport: bool
    owns_log: bool
    knowledge_layers: KnowledgeLayers
    delegation: Delegation | None = None


def load_session_config(options: Options, *, workspace: str | None = None) -> Config:
    """The configuration, with the session's options as its flags."""
    flags: dict[str, object] = {key: options.get(key) for key in _SETTINGS}
    if isinstance(mode := options.get("compaction"), str):
        flags["compaction"] = mode
    folder = options.get("workspace") or workspace
    return load_config(os.environ, workspace=Path(folder) if folder else None, flags=flags)


def load_models(config: Config) -> lookup.Models:
    """The catalog with the configured overrides."""
    return lookup.apply_model_overrides(lookup.shipped_models(), config.models)


def new_event_bus(options: Options) -> EventBus:
    """A new event bus, with the listener of the session's instructions if they have one."""
    bus = EventBus()
    if "instructions" in options and (listener := options["instructions"].listener) is not None:
        bus.subscribe(listener)
    return bus


def compose_session(
    options: Options, state: SessionState, *, log: EventLog, bus: EventBus, owns_log: bool, messages: int | None
) -> Composition:
    """Compose a session of so many user messages (None: unknown), or a stored one if `state` holds its events."""
    config = load_session_config(options, workspace=state.workspace_path)
    models = load_models(config)
    model = lookup.find_model(state.model or config.model, models)
    if state.model:
        _check_unchanged(options, state)
        _check_workspace(options, state)
    elif not options.get("allow_uncached"):
        check_caching(model, options.get("clock", system_clock)())
    provider = get_provider(model.provider)
    stable_prompt, volatile_prompt = split_at_boundary(options.get("system_prompt", ""))
    # A stored session continues in its own workspace unless the caller names another one.
    folder = options.get("workspace") or state.workspace_path
    workspace, home = Path(folder) if folder else None, Path(config.home)
    skills = load_session_skills(options, config, state, workspace=workspace)
    delegation = session_delegation(options)
    extra = (delegation.tool,) if delegation else ()
    toolbox = build_toolbox(options, state, log, workspace=workspace, config=config, skills=skills, extra=extra)
    _check_tools(state, toolbox)
    scope = LearningScope(model.id, provider_route(options, config, provider), workspace_hash(workspace))
    learned = load_learned(log, scope, session_id=state.session_id)
    model = with_learned_floor(model, learned)
    knowledge = KnowledgeLayers(options, config, workspace, user=knowledge_user(options, state))
    name = state.name if state.model else clean_text(options.get("name", ""))
    volatile_for = partial(
        volatile_source, options, volatile_prompt, workspace=workspace, home=home, name=name, knowledge=knowledge
    )
    keep_alive = KeepAlive(config.keep_alive_usd_max, options.get("sleep", asyncio.sleep))
    transport, owns_transport = _choose_transport(options, config, models, provider)
    profile = state.profile if state.model else config.profile
    deps = Dependencies(
        log=log,
        transport=transport,
        adapter=provider.adapter,
        model=model,
        pricing_version=lookup.pricing_version(models),
        toolbox=toolbox,
        volatile=volatile_for(model),
        parameters=request_parameters(options, config, model, adapter=provider.adapter, stored=state.parameters),
        clock=options.get("clock", system_clock),
        new_id=options.get("new_id", new_ulid),
        bus=bus,
        steps_max=config.steps_max,
        explicit_cache=ExplicitCacheConfig(config.cache_ttl_seconds, always=profile == "seed"),
        # The caller's limit; else the stored session's; else the configured one.
        spend_max_usd=state.spend_max_usd if state.model and "spend_max_usd" not in options else config.spend_max_usd,
        learned=learned,
        learning_scope=scope,
        keep_alive=keep_alive if config.keep_alive else None,
        single_flight=single_flight_of(options),
        account=account_name(transport),
        diagnoses_misses=config.diagnostics == "auto",
        response_cache=response_cache_of(options),
        simulated=state.simulated if state.model else _is_simulated(options),
        controls=controls_reader(log),
        compaction=compaction_config(options, config),
        overflow_steps=overflow_steps(options, config),
        prefix_refresh=knowledge_refresh(options, config, state, workspace=workspace),
    )
    # A stored session keeps the layers that its epoch pinned: rendering them again could change the cached prefix.
    first = (
        None if state.model else _first_epoch(options, config, deps, stable_prompt, skills=skills, messages=messages)
    )
    pinned, padding = first or ((), None)
    return Composition(
        deps,
        config,
        pinned,
        padding=padding.reason if padding else None,
        skills=tuple(skill.name for skill in skills.skills),
        preloaded=skills.preloaded_events(padding.skill_names) if padding else (),
        volatile_source_for=volatile_for,
        owns_transport=owns_transport,
        owns_log=owns_log,
        knowledge_layers=knowledge,
        delegation=delegation,
    )


def _choose_transport(
    options: Options, config: Config, models: lookup.Models, provider: Provider
) -> tuple[Transport, bool]:
    """The transport that requests are sent through, and whether the session has to close it."""
    transport = options.get("transport")
    if transport is None:
        return open_transport(options, config, provider), True
    if isinstance(transport, TransportProvider):
        return transport.create_transport(models, provider=provider.adapter.name), False
    return transport, False


def _is_simulated(options: Options) -> bool:
    """What a simulated provider answers costs nothing, unless a test declares that it does."""
    return options.get("simulated", isinstance(options.get("transport"), TransportProvider))


def first_events(options: Options, composition: Composition) -> tuple[AnyPayload, ...]:
    """The events with which the log of a new session starts."""
    config, deps = composition.config, composition.deps
    workspace = options.get("workspace")
    started = SessionStarted(
        model=deps.model.id,
        workspace_path=str(Path(workspace).resolve()) if workspace else None,
        workspace_hash=deps.learning_scope.workspace_hash,
        name=clean_text(options["name"]) if "name" in options else None,
        profile=config.profile,
        # The seed profile implies the seed layout.
        layout="seed" if config.profile == "seed" else config.layout,
        spend_max_usd=config.spend_max_usd,
        parameters=deps.parameters,
        simulated=deps.simulated,
        user_id=clean_text(options["user_id"]) if "user_id" in options else None,
        team_id=clean_text(options["team_id"]) if "team_id" in options else None,
    )
    skills, padding = composition.skills, composition.padding
    opened = EpochOpened(1, composition.pinned, deps.toolbox.specs, skills=skills, padding=padding)
    return started, opened, *composition.preloaded


def workspace_hash(workspace: Path | None) -> str | None:
    """A digest of the workspace's path, by which learned parameters are looked up."""
    return sha256_hex(str(workspace.resolve()).encode()) if workspace else None


def _check_unchanged(options: Options, state: SessionState) -> None:
    """Refuse a changed value of an option that is fixed at creation; passing the same value again is fine."""
    pinned = {text.layer: text.text for text in state.pinned}
    fixed: dict[str, object] = {
        "model": state.model,
        "system_prompt": pinned.get("preset", ""),
        "persona": pinned.get("persona", ""),
        "layout": state.layout,
        "profile": state.profile,
        "name": state.name,
        "user_id": state.user_id,
        "team_id": state.team_id,
    }
    for key, stored in fixed.items():
        passed = options.get(key, stored)
        # Compared in the form in which they were pinned: cleaned, and without the volatile part of the prompt.
        if key in ("system_prompt", "persona") and isinstance(passed, str):
            passed = clean_text(split_at_boundary(passed)[0] if key == "system_prompt" else passed)
        if passed != stored:
            # Prompts are not quoted: they are long, and an error may end up in a log.
            detail = f": this one has {stored!r}" if key in ("model", "layout", "profile", "name") else ""
            raise UserError(f"{key} is fixed when a session is created{detail}; leave it out to resume")


def _check_workspace(options: Options, state: SessionState) -> None:
    """Refuse another workspace unless the caller confirms it: the history describes files of the first one."""
    folder = options.get("workspace")
    if folder is None or options.get("another_workspace"):
        return
    requested = str(Path(folder).resolve())
    if requested != state.workspace_path:
        stored = "no workspace" if state.workspace_path is None else repr(state.workspace_path)
        raise UserError(
            f"session {state.session_id} works in {stored}, not in {requested!r}; leave out workspace to continue "
            "there, or pass another_workspace=True to use the other one"
        )


def check_caching(model: Model, at: float) -> None:
    """Refuse a model without prompt caching, which is expensive in a way that is easily overlooked."""
    if model_capabilities(model).supports_prompt_caching:
        return
    price = lookup.price_at(model, lookup.utc_date(at), EXAMPLE_TOKENS)
    dollars = price.input * EXAMPLE_TOKENS / 1_000_000
    # Some providers cache by routes that we do not rely on (OpenRouter): the catalog turns caching off, a user can
    # turn it on.
    turned_off = model.cache.kind != "none" and not model.supports_prompt_caching
    hint = f', or turn it on: [models."{model.id}"] supports_prompt_caching = true' if turned_off else ""
    claim = "is not known to cache" if turned_off else "does not cache"
    raise UserError(
        f"{model.id} {claim} prompts: every call may be charged for its whole prompt, ${dollars:.4f} for "
        f"each {EXAMPLE_TOKENS} tokens; pass allow_uncached=True to use it anyway{hint}"
    )


def _check_tools(state: SessionState, toolbox: Toolbox) -> None:
    """Check that every tool of a stored session has a function.

    The stored definitions stay in the prompt even if the code changed: tools are the first bytes of the prefix.
    """
    current = {spec.name: spec for spec in toolbox.specs}
    missing = sorted(spec.name for spec in state.tools if spec.name not in current)
    if missing:
        names, hint = ", ".join(missing), missing_tools_hint(missing)
        raise UserError(f"this session has tools whose functions are missing: {names}; {hint}")
    stored_names = {spec.name for spec in state.tools}
    if state.model and (added := sorted(current.keys() - stored_names)):
        logger.warning("tools added after the session was created are not shown to the model: %s", ", ".join(added))
    changed = sorted(spec.name for spec in state.tools if current[spec.name] != spec)
    if changed:
        warning = "the model still sees the definitions from when the session was created for these tools: %s"
        logger.warning(warning, ", ".join(changed))


def _pinned_layers(options: Options, preset: str, workspace: Path | None, config: Config) -> tuple[LayerText, ...]:
    home = Path(config.home)
    persona = options.get("persona", "")
    if "preset_name" in options:
        preset = read_named_text("presets", options["preset_name"], workspace=workspace, home=home)
    if "persona_name" in options:
        persona = read_named_text("personas", options["persona_name"], workspace=workspace, home=home)
    project = [options["instructions"].text if "instructions" in options else "", render_settings(config.project)]
    if workspace is not None:
        project.append(render_instructions(read_instructions(workspace, home=home)))
    texts = [
        LayerText("preset", preset),
        LayerText("persona", persona),
        LayerText("project", "\n\n".join(text for text in project if text)),
        *knowledge_layer(options, config, workspace=workspace, user=knowledge_user(options)),
    ]
    return tuple(LayerText(text.layer, clean_text(text.text)) for text in texts if clean_text(text.text).strip())


def _first_epoch(
    options: Options, config: Config, deps: Dependencies, stable: str, *, skills: SessionSkills, messages: int | None
) -> tuple[tuple[LayerText, ...], PaddingDecision]:
    """The layers that a new session pins for its first epoch, and the padding decision."""
    folder = options.get("workspace")
    pinned = _pinned_layers(options, stable, Path(folder) if folder else None, config)
    models = load_models(config)
    other_models = tuple(lookup.find_model(name, models) for name in options.get("models", ()))
    forecast = forecast_calls(
        deps.learned,
        calls=options.get("calls_expected"),
        messages=messages,
        has_tools=bool(deps.toolbox.specs),
        # The seed profile places no breakpoint after the stable prefix, so the cached part does not grow.
        grows=config.profile != "seed",
    )
    inputs = PaddingInputs(
        models=(deps.model, *(model for model in other_models if model.id != deps.model.id)),
        forecast=forecast,
        at=deps.clock(),
    )
    view = View(tools=deps.toolbox.specs, pinned=pinned + skills.index())
    padding = decide_padding(config.effective_padding, view, inputs, adapter=deps.adapter, bodies=skills.bodies)
    return pinned + skills.index(padding.skill_names) + padding.layers, padding


def open_transport(options: Options, config: Config, provider: Provider) -> Transport:
    """A transport to the provider, over HTTP or through its command. Raises UserError if there is no API key."""
    name = provider.adapter.name
    requests_max = config.requests_max.get(name, CONCURRENT_REQUESTS_MAX)
    if provider.is_command:
        return CommandTransport(provider.adapter, split_command(config.claude_code_command), requests_max=requests_max)
    base_url = options.get("base_url") or config.base_urls.get(name, provider.base_url)
    api_key = options.get("api_key") or os.environ.get(provider.key_variable)
    if not api_key:
        if not base_url.startswith(_LOOPBACK_URLS):
            simulate = "run `holdfast simulate` and pass its address as base_url"
            raise UserError(f"no key for {name}: set {provider.key_variable}, or {simulate}")
        # A local simulator accepts any key.
        api_key = "simulated"
    # Its HTTP client takes 140 ms to load, and a session with another transport does not need it.
    from holdfast.providers.transport import HttpTransport  # noqa: PLC0415

    return HttpTransport(provider.adapter, base_url, api_key, requests_max=requests_max)


def not_open_error(closed_id: str | None) -> UserError:
    """The error for using a session that was never entered, or that was closed and had this id."""
    if closed_id is None:
        return UserError("the session is not open: use it as `async with Session.create(...) as session`")
    return UserError(f"the session is not open: it was closed; continue it with `Session.resume({closed_id!r}, ...)`")


def load_session_state(
    log: EventLog, options: Options, resume: str | None
) -> tuple[SessionState, StateSnapshot | None]:
    """The state of the session to resume, with its stored snapshot, or that of a new one.

    Raises UserError if there is nothing to resume.
    """
    if resume is None:
        at = options.get("clock", system_clock)()
        return SessionState(session_id=options.get("new_id", new_ulid)(at)), None
    state, snapshot = load_state(log, resume)
    if not state.model:
        newest_ids = [row.id for row in log.sessions(limit=3)]
        hint = f"; the newest are {', '.join(newest_ids)}" if newest_ids else "; the store holds no session yet"
        raise UserError(f"there is no session {resume!r}{hint} (`holdfast sessions list` shows all)")
    if not state.epoch:
        reason = "it was recorded from a wrapped client or pruned"
        raise UserError(f"session {resume!r} has no prompt to continue: {reason}")
    return state, snapshot


def open_session_log(options: Options) -> tuple[EventLog, bool]:
    """The store to use, and whether the session has to close it."""
    store = options.get("store")
    if store is not None and not isinstance(store, str | Path):
        # A store object belongs to the caller, who may use it for other sessions: it is not closed with this one.
        return store, False
    config = load_session_config(options)
    address = config.db_path if store is None else str(store)
    return open_store(address, models=load_models(config)), True
