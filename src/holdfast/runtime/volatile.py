"""What the volatile layers say now, asked anew before every call."""

import asyncio
import datetime
import os
from collections.abc import Awaitable, Sequence
from pathlib import Path

from holdfast.canonical.view import LayerText
from holdfast.catalog.rows import Model
from holdfast.clock import Clock, system_clock
from holdfast.engine.conversation import VolatileTexts
from holdfast.errors import UserError
from holdfast.layers.builder import sendable
from holdfast.layers.render import render_environment, render_project_context, render_session
from holdfast.layers.standard import VOLATILE
from holdfast.runtime.dimensions import MemoryDimensions
from holdfast.runtime.options import Options
from holdfast.runtime.toolbox import memory_files
from holdfast.sources.environment import read_environment
from holdfast.sources.git import read_git_state
from holdfast.sources.memory import MemoryFile, render_memory

_MEMORY_LAYERS = {"USER.md": "user_memory", "MEMORY.md": "memory"}


def volatile_texts(
    options: Options,
    split_off: str,
    model: Model,
    *,
    workspace: Path | None,
    home: Path,
    name: str | None = None,
    chosen: MemoryDimensions | None = None,
) -> VolatileTexts:
    """`split_off` is what stood behind the boundary of the caller's system prompt.

    A layer of which nothing was given is left out, and then says neither something new nor that it is empty.
    """
    clock = options.get("clock", system_clock)
    remembered = memory_files(workspace, home) if options.get("memory") else ()

    async def ask() -> tuple[LayerText, ...]:
        texts = []
        if "system_prompt_volatile" in options or split_off:
            own = await _own_text(options)
            texts.append(LayerText("volatile", "\n\n".join(part for part in (split_off, own) if part.strip())))
        if workspace is not None:
            texts += await asyncio.to_thread(_project, model, workspace, clock)
        if remembered:
            texts += await asyncio.to_thread(_memory, remembered)
        if chosen is not None:
            texts += await asyncio.to_thread(chosen.texts)
        own_layers = await _own_layers(options)
        if name and not any(one.layer == "metadata" for one in own_layers):
            texts.append(LayerText("metadata", render_session(name)))
        texts += own_layers
        return tuple(LayerText(one.layer, sendable(one.text), one.ephemeral) for one in texts)

    return ask


def _project(model: Model, workspace: Path, clock: Clock) -> list[LayerText]:
    at = clock()
    zone = datetime.datetime.fromtimestamp(at).astimezone().tzinfo or datetime.UTC
    environment = read_environment(model.id, workspace, at, os.environ, zone=zone)
    git = read_git_state(workspace, environ=os.environ)
    return [
        LayerText("environment", render_environment(environment)),
        LayerText("git", render_project_context(git) if git else ""),
    ]


def _memory(files: Sequence[MemoryFile]) -> list[LayerText]:
    return [LayerText(_MEMORY_LAYERS[file.name], render_memory(file)) for file in files]


async def _own_text(options: Options) -> str:
    given = options.get("system_prompt_volatile", "")
    said = given() if callable(given) else given
    text: object = await said if isinstance(said, Awaitable) else said
    if not isinstance(text, str):
        raise UserError(f"system_prompt_volatile must give text, not {type(text).__name__}")
    return text


async def _own_layers(options: Options) -> Sequence[LayerText]:
    given = options.get("volatile", ())
    said = given() if callable(given) else given
    layers: object = await said if isinstance(said, Awaitable) else said
    if not isinstance(layers, Sequence) or not all(isinstance(one, LayerText) for one in layers):
        raise UserError("volatile must give a list of LayerText")
    if strange := next((one.layer for one in layers if one.layer not in VOLATILE), None):
        raise UserError(f"unknown volatile layer {strange!r}; known layers: {', '.join(VOLATILE)}")
    if options.get("memory") and (
        twice := next((one.layer for one in layers if one.layer in _MEMORY_LAYERS.values()), "")
    ):
        raise UserError(f"the layer {twice!r} is that of the memory files; leave it out, or leave out memory=True")
    return layers
