"""Which parts a session is made of, picked from what the caller gave and what is configured."""

import asyncio
import os
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TypedDict

import msgspec

from holdfast.canonical.encoding import digest
from holdfast.canonical.prompt import Parameters
from holdfast.canonical.view import LayerText, Layout
from holdfast.catalog.lookup import find_model, pricing_version, shipped_models
from holdfast.catalog.overrides import with_overrides
from holdfast.catalog.rows import Model
from holdfast.clock import Clock, NewId, new_ulid, system_clock
from holdfast.engine.conversation import Parts, VolatileTexts
from holdfast.engine.state import State
from holdfast.engine.tools import Tool, Toolbox, ToolFunction
from holdfast.errors import UserError
from holdfast.events.bus import Bus
from holdfast.events.log import Log
from holdfast.events.payloads import EpochOpened, SessionStarted
from holdfast.layers.builder import split_at_boundary
from holdfast.layers.render import render_environment, render_instructions, render_project_context
from holdfast.planning.marks import Profile
from holdfast.providers.adapter import Adapter
from holdfast.providers.registry import adapter_for
from holdfast.providers.transport import HttpWire
from holdfast.providers.wire import Wire
from holdfast.runtime.config import Config, load_config
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.wire import SimulatedWire
from holdfast.sources.environment import read_environment
from holdfast.sources.git import read_git_state
from holdfast.sources.instructions import read_instructions

VolatileText = str | Callable[[], str]


class Options(TypedDict, total=False):
    """What a caller may give to `Session.create` and `Session.resume`; everything has a default.

    `system_prompt` never changes within a session; `system_prompt_volatile` may change on every call, and may be
    a function. `workspace` adds the project's instruction files, its git state and the date. `wire` replaces the
    network, for example by a simulator; `store` is a path, a URL or a store.
    """

    model: str
    system_prompt: str
    system_prompt_volatile: VolatileText
    persona: str
    volatile: Sequence[LayerText] | Callable[[], Sequence[LayerText]]
    tools: Sequence[Tool | ToolFunction]
    workspace: str | Path
    name: str
    profile: Profile
    layout: Layout
    spend_max_usd: Decimal | str | float
    output_tokens_max: int
    steps_max: int
    thinking: dict[str, object]
    betas: Sequence[str]
    stop_sequences: Sequence[str]
    temperature: float
    store: Log | str | Path
    wire: Wire | SimulatedProvider
    base_url: str
    api_key: str
    clock: Clock
    new_id: NewId


class Pieces(msgspec.Struct, frozen=True):
    """The parts, what was pinned for the first epoch, and what has to be closed with the session."""

    parts: Parts
    config: Config
    pinned: tuple[LayerText, ...]
    owns_wire: bool
    owns_log: bool


def config_of(options: Options) -> Config:
    flags = {
        key: options.get(key)
        for key in ("model", "layout", "profile", "output_tokens_max", "steps_max", "spend_max_usd")
    }
    flags["anthropic_base_url"] = options.get("base_url")
    workspace = options.get("workspace")
    return load_config(os.environ, workspace=Path(workspace) if workspace else None, flags=flags)


def compose(options: Options, state: State, *, log: Log, bus: Bus, owns_log: bool) -> Pieces:
    """All parts of a new session, or of a stored one whose state is given."""
    config = config_of(options)
    clock = options.get("clock", system_clock)
    models = with_overrides(shipped_models(), config.models)
    model = find_model(state.model or config.model, models)
    adapter = adapter_for(model.provider)
    stable, split_off = split_at_boundary(options.get("system_prompt", ""))
    workspace = options.get("workspace") or state.workspace_path
    pinned = _pinned(options, stable, Path(workspace) if workspace else None, Path(config.home))
    given = options.get("wire")
    wire = SimulatedWire(given) if isinstance(given, SimulatedProvider) else given
    parts = Parts(
        log=log,
        wire=wire or _network(options, config, adapter),
        adapter=adapter,
        model=model,
        pricing_version=pricing_version(models),
        toolbox=Toolbox(options.get("tools", ()), clock=clock),
        volatile=_volatile(options, split_off, model, Path(workspace) if workspace else None),
        parameters=_parameters(options, config, model),
        clock=clock,
        new_id=options.get("new_id", new_ulid),
        bus=bus,
        steps_max=config.steps_max,
    )
    return Pieces(parts, config, pinned, owns_wire=wire is None, owns_log=owns_log)


def first_events(options: Options, pieces: Pieces) -> tuple[SessionStarted, EpochOpened]:
    """What a new session records before anything else."""
    config, parts = pieces.config, pieces.parts
    workspace = options.get("workspace")
    path = str(Path(workspace).resolve()) if workspace else None
    started = SessionStarted(
        model=parts.model.id,
        workspace_path=path,
        workspace_hash=digest(path.encode()) if path else None,
        name=options.get("name"),
        profile=config.profile,
        layout="seed" if config.profile == "seed" else config.layout,
        spend_max_usd=config.spend_max_usd,
    )
    return started, EpochOpened(1, pieces.pinned, parts.toolbox.specs)


def _pinned(options: Options, system_prompt: str, workspace: Path | None, home: Path) -> tuple[LayerText, ...]:
    texts = [LayerText("preset", system_prompt), LayerText("persona", options.get("persona", ""))]
    if workspace is not None:
        texts.append(LayerText("project", render_instructions(read_instructions(workspace, home=home))))
    return tuple(one for one in texts if one.text.strip())


def _volatile(options: Options, split_off: str, model: Model, workspace: Path | None) -> VolatileTexts:
    """What the volatile layers say, asked anew before every call."""
    given = options.get("system_prompt_volatile", "")
    others = options.get("volatile", ())
    clock = options.get("clock", system_clock)

    def read() -> tuple[LayerText, ...]:
        own = given() if callable(given) else given
        texts = [LayerText("volatile", "\n\n".join(part for part in (split_off, own) if part.strip()))]
        if workspace is not None:
            environment = read_environment(model.id, workspace, clock(), os.environ)
            git = read_git_state(workspace, environ=os.environ)
            said = [render_environment(environment)] + ([render_project_context(git)] if git else [])
            texts.append(LayerText("environment", "\n\n".join(said)))
        return (*texts, *(others() if callable(others) else others))

    async def ask() -> tuple[LayerText, ...]:
        # Files and git are read off the loop; a caller's own function alone needs no thread.
        return await asyncio.to_thread(read) if workspace is not None else read()

    return ask


def _parameters(options: Options, config: Config, model: Model) -> Parameters:
    thinking = options.get("thinking")
    return Parameters(
        model=model.name,
        output_tokens_max=min(config.output_tokens_max, model.output_tokens_max),
        stream=True,
        stop_sequences=tuple(options.get("stop_sequences", ())),
        temperature=options.get("temperature"),
        thinking_json=msgspec.json.encode(thinking).decode() if thinking is not None else None,
        betas=tuple(options.get("betas", ())),
    )


_KEY_VARIABLES = {"anthropic": "ANTHROPIC_API_KEY"}
_LOOPBACK = ("http://127.0.0.1", "http://localhost", "http://[::1]")


def _network(options: Options, config: Config, adapter: Adapter) -> Wire:
    base_url = config.anthropic_base_url
    variable = _KEY_VARIABLES[adapter.name]
    api_key = options.get("api_key") or os.environ.get(variable)
    if not api_key:
        if not base_url.startswith(_LOOPBACK):
            raise UserError(
                f"no key for {adapter.name}: set {variable}, or run `holdfast simulate` and pass its address as "
                f"base_url"
            )
        api_key = "simulated"
    return HttpWire(adapter, base_url, api_key)
