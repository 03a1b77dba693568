"""Composes a session: chooses its dependencies from the caller's options and the configuration."""

import asyncio
import logging
import os
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path

import msgspec

from holdfast.canonical.encoding import digest
from holdfast.canonical.view import LayerText, View
from holdfast.catalog.lookup import Models, find_model, price_at, pricing_version, shipped_models, utc_date
from holdfast.catalog.overrides import with_overrides
from holdfast.catalog.rows import Model
from holdfast.clock import new_ulid, system_clock
from holdfast.economics.padding import Outlook
from holdfast.engine.builtin.recalling import recall_tool
from holdfast.engine.conversation import KeepAlive, Parts, VolatileTexts
from holdfast.engine.delegating import Delegation
from holdfast.engine.dispatch import Toolbox
from holdfast.engine.state import State
from holdfast.errors import UserError
from holdfast.events.bus import Bus
from holdfast.events.log import Log
from holdfast.events.payloads import AnyPayload, EpochOpened, SessionStarted, SkillLoaded
from holdfast.layers.builder import sendable, split_at_boundary
from holdfast.layers.render import render_instructions, render_settings
from holdfast.planning.explicit import Keeping
from holdfast.planning.lessons import Scene
from holdfast.providers.capabilities import capabilities_of
from holdfast.providers.claude_code.command import CommandWire, split_command
from holdfast.providers.registry import Provider, provider_named
from holdfast.providers.transport import HttpWire
from holdfast.providers.wire import REQUESTS_MAX, Wire
from holdfast.runtime.compacting import compaction_of, overflow_steps_of
from holdfast.runtime.config import Config, load_config
from holdfast.runtime.controls import controls_of
from holdfast.runtime.dimensions import MemoryDimensions
from holdfast.runtime.gates import account_of, completions_of, gate_of
from holdfast.runtime.knowing import adopting_of, knowledge_layer
from holdfast.runtime.learning import learned_in, route_of, with_learned_floor
from holdfast.runtime.options import Options, ProvidesWire
from holdfast.runtime.padding import CALLS_EXPECTED, GROWTH_TOKENS_EXPECTED, Decision, Occasion, decide_padding
from holdfast.runtime.parameters import parameters_of
from holdfast.runtime.skills import SessionSkills, session_skills
from holdfast.runtime.toolbox import Where, delegation_of, missing_tools_hint, toolbox_of
from holdfast.runtime.volatile import volatile_texts
from holdfast.sources.instructions import read_instructions
from holdfast.sources.named_texts import named_text

logger = logging.getLogger(__name__)

# Options that are also settings: an option overrides the environment and the configuration files.
_SETTINGS = (
    "model",
    "layout",
    "profile",
    "padding",
    "diagnostics",
    "output_tokens_max",
    "steps_max",
    "spend_max_usd",
    "keep_alive",
    "keep_alive_usd_max",
    "cache_ttl_seconds",
    "cache_over_an_hour",
    "also_skills",
    "digest_refresh",
)
EXAMPLE_TOKENS = 10_000
"""The prompt size for which the error about an uncached model shows the price."""

_LOOPBACK_URLS = ("http://127.0.0.1", "http://localhost", "http://[::1]")


class Pieces(msgspec.Struct, frozen=True):
    """The composed session: its dependencies, the pinned layers of its first epoch, and what it has to close."""

    parts: Parts
    config: Config
    pinned: tuple[LayerText, ...]
    padding: str | None
    skills: tuple[str, ...]
    preloaded: tuple[SkillLoaded, ...]
    volatile_for: Callable[[Model], VolatileTexts]
    owns_wire: bool
    owns_log: bool
    dimensions: MemoryDimensions
    delegation: Delegation | None = None


def config_of(options: Options, *, workspace: str | None = None) -> Config:
    """The configuration, with the session's options as its flags."""
    flags: dict[str, object] = {key: options.get(key) for key in _SETTINGS}
    folder = options.get("workspace") or workspace
    return load_config(os.environ, workspace=Path(folder) if folder else None, flags=flags)


def models_of(config: Config) -> Models:
    """The catalog with the configured overrides."""
    return with_overrides(shipped_models(), config.models)


def bus_of(options: Options) -> Bus:
    """A new event bus, with the listener of the session's instructions if they have one."""
    bus = Bus()
    if "instructions" in options and (listener := options["instructions"].listener) is not None:
        bus.subscribe(listener)
    return bus


def compose(options: Options, state: State, *, log: Log, bus: Bus, owns_log: bool) -> Pieces:
    """Compose a new session, or a stored one if `state` holds its events."""
    config = config_of(options, workspace=state.workspace_path)
    models = models_of(config)
    model = _checked_model(options, state, find_model(state.model or config.model, models))
    provider = provider_named(model.provider)
    stable_prompt, volatile_prompt = split_at_boundary(options.get("system_prompt", ""))
    # A stored session continues in its own workspace unless the caller names another one.
    folder = options.get("workspace") or state.workspace_path
    workspace, home = Path(folder) if folder else None, Path(config.home)
    skills = session_skills(options, config, state, workspace=workspace)
    delegation = delegation_of(options)
    toolbox = _checked_toolbox(
        options, state, Where(state.session_id, workspace, home), skills=skills, delegation=delegation, log=log
    )
    scene = Scene(model.id, route_of(options, config, provider), workspace_hash(workspace))
    learned = learned_in(log, scene, session_id=state.session_id)
    model = with_learned_floor(model, learned)
    dimensions = MemoryDimensions(options, config, workspace)
    volatile_for = _volatile_for(options, volatile_prompt, state, workspace=workspace, home=home, knowledge=dimensions)
    wire, owns_wire = _choose_wire(options, config, models, provider)
    parts = Parts(
        log=log,
        wire=wire,
        adapter=provider.adapter,
        model=model,
        pricing_version=pricing_version(models),
        toolbox=toolbox,
        volatile=volatile_for(model),
        parameters=parameters_of(options, config, model, adapter=provider.adapter, stored=state.parameters),
        clock=options.get("clock", system_clock),
        new_id=options.get("new_id", new_ulid),
        bus=bus,
        steps_max=config.steps_max,
        keeping=Keeping(config.cache_ttl_seconds, always=(state.profile if state.model else config.profile) == "seed"),
        spend_max_usd=_spend_max(options, config, state),
        learned=learned,
        scene=scene,
        keep_alive=_keep_alive(options, config),
        gate=gate_of(options),
        account=account_of(wire),
        asks_for_diagnosis=config.diagnostics == "auto",
        completions=completions_of(options),
        simulated=state.simulated if state.model else options.get("simulated", False),
        controls=controls_of(log),
        compaction=compaction_of(options),
        overflow_steps=overflow_steps_of(options),
        adopting=adopting_of(options, config, state, workspace=workspace),
    )
    # A stored session keeps the layers that its epoch pinned: rendering them again could change the cached prefix.
    pinned, padding = (
        ((), None) if state.model else _first_epoch(options, config, parts, stable=stable_prompt, skills=skills)
    )
    return Pieces(
        parts,
        config,
        pinned,
        padding=padding.reason if padding else None,
        skills=tuple(skill.name for skill in skills.skills),
        preloaded=skills.preloaded_events(padding.names) if padding else (),
        volatile_for=volatile_for,
        owns_wire=owns_wire,
        owns_log=owns_log,
        dimensions=dimensions,
        delegation=delegation,
    )


def _volatile_for(
    options: Options,
    volatile_prompt: str,
    state: State,
    *,
    workspace: Path | None,
    home: Path,
    knowledge: MemoryDimensions,
) -> Callable[[Model], VolatileTexts]:
    name = state.name if state.model else sendable(options.get("name", ""))
    return partial(
        volatile_texts, options, volatile_prompt, workspace=workspace, home=home, name=name, knowledge=knowledge
    )


def _choose_wire(options: Options, config: Config, models: Models, provider: Provider) -> tuple[Wire, bool]:
    """The wire that requests are sent through, and whether the session has to close it."""
    wire = options.get("wire")
    if wire is None:
        return network(options, config, provider), True
    return (wire.wire(models, provider=provider.adapter.name) if isinstance(wire, ProvidesWire) else wire), False


def _checked_toolbox(
    options: Options, state: State, where: Where, *, skills: SessionSkills, delegation: Delegation | None, log: Log
) -> Toolbox:
    """All tools of a session. Raises UserError if a stored session lacks the function of one of its tools."""
    extra = ((delegation.tool,) if delegation else ()) + ((recall_tool(log),) if options.get("recall_history") else ())
    toolbox = toolbox_of(options, where, skills=skills, extra=extra)
    _check_tools(state, toolbox)
    return toolbox


def _checked_model(options: Options, state: State, model: Model) -> Model:
    if state.model:
        _check_unchanged(options, state)
        _check_workspace(options, state)
    elif not options.get("allow_uncached"):
        check_caching(model, options.get("clock", system_clock)())
    return model


def first_events(options: Options, composition: Pieces) -> tuple[AnyPayload, ...]:
    """The events with which the log of a new session starts."""
    config, parts = composition.config, composition.parts
    workspace = options.get("workspace")
    started = SessionStarted(
        model=parts.model.id,
        workspace_path=str(Path(workspace).resolve()) if workspace else None,
        workspace_hash=parts.scene.workspace_hash,
        name=sendable(options["name"]) if "name" in options else None,
        profile=config.profile,
        # The seed profile implies the seed layout.
        layout="seed" if config.profile == "seed" else config.layout,
        spend_max_usd=config.spend_max_usd,
        parameters=parts.parameters,
        simulated=parts.simulated,
        user_id=_sendable_name(options.get("user_id")),
        team_id=_sendable_name(options.get("team_id")),
    )
    opened = EpochOpened(
        1, composition.pinned, parts.toolbox.specs, skills=composition.skills, padding=composition.padding
    )
    return started, opened, *composition.preloaded


def _sendable_name(name: str | None) -> str | None:
    return None if name is None else sendable(name)


def workspace_hash(workspace: Path | None) -> str | None:
    """A digest of the workspace's path, by which learned parameters are looked up."""
    return digest(str(workspace.resolve()).encode()) if workspace else None


def _check_unchanged(options: Options, state: State) -> None:
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
            passed = sendable(split_at_boundary(passed)[0] if key == "system_prompt" else passed)
        if passed != stored:
            # Prompts are not quoted: they are long, and an error may end up in a log.
            detail = f": this one has {stored!r}" if key in ("model", "layout", "profile", "name") else ""
            raise UserError(f"{key} is fixed when a session is created{detail}; leave it out to resume")


def _check_workspace(options: Options, state: State) -> None:
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
    if capabilities_of(model).supports_prompt_caching:
        return
    price = price_at(model, utc_date(at), EXAMPLE_TOKENS)
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


def _check_tools(state: State, toolbox: Toolbox) -> None:
    """Check that every tool of a stored session has a function.

    The stored definitions stay in the prompt even if the code changed: tools are the first bytes of the prefix.
    """
    current = {spec.name: spec for spec in toolbox.specs}
    missing = sorted(spec.name for spec in state.tools if spec.name not in current)
    if missing:
        raise UserError(
            f"this session has tools whose functions are missing: {', '.join(missing)}; {missing_tools_hint(missing)}"
        )
    stored_names = {spec.name for spec in state.tools}
    if state.model and (added := sorted(current.keys() - stored_names)):
        logger.warning("tools added after the session was created are not shown to the model: %s", ", ".join(added))
    changed = sorted(spec.name for spec in state.tools if current[spec.name] != spec)
    if changed:
        logger.warning(
            "the model still sees the definitions from when the session was created for these tools: %s",
            ", ".join(changed),
        )


def _pinned_layers(
    options: Options, system_prompt: str, workspace: Path | None, config: Config
) -> tuple[LayerText, ...]:
    home = Path(config.home)
    persona = options.get("persona", "")
    if "preset_name" in options:
        system_prompt = named_text("presets", options["preset_name"], workspace=workspace, home=home)
    if "persona_name" in options:
        persona = named_text("personas", options["persona_name"], workspace=workspace, home=home)
    project = [options["instructions"].text if "instructions" in options else "", render_settings(config.project)]
    if workspace is not None:
        project.append(render_instructions(read_instructions(workspace, home=home)))
    texts = [
        LayerText("preset", system_prompt),
        LayerText("persona", persona),
        LayerText("project", "\n\n".join(part for part in project if part)),
        *knowledge_layer(options, config, workspace=workspace),
    ]
    return tuple(LayerText(text.layer, sendable(text.text)) for text in texts if sendable(text.text).strip())


def _first_epoch(
    options: Options, config: Config, parts: Parts, *, stable: str, skills: SessionSkills
) -> tuple[tuple[LayerText, ...], Decision]:
    """The layers that a new session pins for its first epoch, and the padding decision."""
    folder = options.get("workspace")
    pinned = _pinned_layers(options, stable, Path(folder) if folder else None, config)
    padding = _padding(options, config, parts, pinned=pinned, skills=skills)
    return pinned + skills.index(padding.names) + padding.added, padding


def _padding(
    options: Options, config: Config, parts: Parts, *, pinned: tuple[LayerText, ...], skills: SessionSkills
) -> Decision:
    models = models_of(config)
    other_models = tuple(find_model(name, models) for name in options.get("models", ()))
    # The seed profile places no breakpoint after the stable prefix, so the cached part does not grow.
    growth_tokens = 0 if config.profile == "seed" else GROWTH_TOKENS_EXPECTED
    occasion = Occasion(
        models=(parts.model, *(model for model in other_models if model.id != parts.model.id)),
        ahead=Outlook(options.get("calls_expected", CALLS_EXPECTED), growth_tokens),
        at=parts.clock(),
    )
    view = View(tools=parts.toolbox.specs, pinned=pinned + skills.index())
    return decide_padding(config.padding_rule, view, occasion, adapter=parts.adapter, bodies=skills.bodies)


def _keep_alive(options: Options, config: Config) -> KeepAlive | None:
    if not config.keep_alive:
        return None
    return KeepAlive(config.keep_alive_usd_max, options.get("sleep", asyncio.sleep))


def _spend_max(options: Options, config: Config, state: State) -> Decimal | None:
    """The caller's limit; else the stored session's; else the configured one."""
    return state.spend_max_usd if state.model and "spend_max_usd" not in options else config.spend_max_usd


def network(options: Options, config: Config, provider: Provider) -> Wire:
    """A wire to the provider, over HTTP or through its command. Raises UserError if there is no API key."""
    name = provider.adapter.name
    requests_max = config.requests_max.get(name, REQUESTS_MAX)
    if provider.is_command:
        return CommandWire(provider.adapter, split_command(config.claude_code_command), requests_max=requests_max)
    base_url = options.get("base_url") or config.base_urls.get(name, provider.base_url)
    api_key = options.get("api_key") or os.environ.get(provider.key_variable)
    if not api_key:
        if not base_url.startswith(_LOOPBACK_URLS):
            raise UserError(
                f"no key for {name}: set {provider.key_variable}, or run `holdfast simulate` and pass its address as "
                f"base_url"
            )
        # A local simulator accepts any key.
        api_key = "simulated"
    return HttpWire(provider.adapter, base_url, api_key, requests_max=requests_max)
