"""Renders the volatile layers of a session, again before every call."""

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
    volatile_prompt: str,
    model: Model,
    *,
    workspace: Path | None,
    home: Path,
    name: str | None = None,
    knowledge: MemoryDimensions | None = None,
) -> VolatileTexts:
    """A function that renders the current volatile layers.

    `volatile_prompt` is the text after the boundary in the caller's system prompt. A layer without a source is left
    out, so that it is neither updated nor sent as empty.
    """
    clock = options.get("clock", system_clock)
    memory = memory_files(workspace, home) if options.get("memory") else ()

    async def render() -> tuple[LayerText, ...]:
        texts = []
        if "system_prompt_volatile" in options or volatile_prompt:
            own = await _own_text(options)
            texts.append(LayerText("volatile", "\n\n".join(part for part in (volatile_prompt, own) if part.strip())))
        # In threads: git and the files may be slow, and other sessions share the event loop.
        if workspace is not None:
            texts += await asyncio.to_thread(_project, model, workspace, clock)
        if memory:
            texts += await asyncio.to_thread(_memory, memory)
        if knowledge is not None:
            texts += await asyncio.to_thread(knowledge.texts)
        own_layers = await _own_layers(options)
        # The caller's own metadata layer replaces ours.
        if name and not any(layer.layer == "metadata" for layer in own_layers):
            texts.append(LayerText("metadata", render_session(name)))
        texts += own_layers
        return tuple(LayerText(text.layer, sendable(text.text), text.ephemeral) for text in texts)

    return render


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
    option = options.get("system_prompt_volatile", "")
    value = option() if callable(option) else option
    text: object = await value if isinstance(value, Awaitable) else value
    if not isinstance(text, str):
        raise UserError(f"system_prompt_volatile must return text, not {type(text).__name__}")
    return text


async def _own_layers(options: Options) -> Sequence[LayerText]:
    option = options.get("volatile", ())
    value = option() if callable(option) else option
    layers: object = await value if isinstance(value, Awaitable) else value
    if not isinstance(layers, Sequence) or not all(isinstance(layer, LayerText) for layer in layers):
        raise UserError("volatile must return a list of LayerText")
    if unknown := next((layer.layer for layer in layers if layer.layer not in VOLATILE), None):
        raise UserError(f"unknown volatile layer {unknown!r}; known layers: {', '.join(VOLATILE)}")
    if options.get("memory") and (
        duplicate := next((layer.layer for layer in layers if layer.layer in _MEMORY_LAYERS.values()), "")
    ):
        raise UserError(f"the layer {duplicate!r} is used by the memory files; leave it out, or leave out memory=True")
    return layers
