"""Renders the volatile layers of a session, again before every call; a layer without a source is left out."""

import asyncio
import datetime
import logging
import os
from collections.abc import Awaitable, Sequence
from pathlib import Path

from holdfast.catalog.schema import Model
from holdfast.clock import Clock, system_clock
from holdfast.engine.conversation import VolatileSource
from holdfast.errors import UserError
from holdfast.knowledge.curation import FileSlice, read_active_preset, read_preset, render_preset
from holdfast.knowledge.file_notes import read_notes
from holdfast.knowledge.folder import KnowledgeFolder, open_readable_folders
from holdfast.knowledge.rag_index import INDEX_FILE, RagIndex, read_rag_index, render_chunks
from holdfast.layers.assemble import VOLATILE_LAYERS
from holdfast.layers.system_prompt import clean_text, render_environment, render_project_context, render_session
from holdfast.runtime.config import Config, resolve_flag
from holdfast.runtime.options import Options
from holdfast.runtime.tools import memory_files
from holdfast.sources.environment import read_environment
from holdfast.sources.files import FileStamp, make_stamp
from holdfast.sources.git import read_git_state
from holdfast.sources.memory_files import MemoryFile, render_memory
from holdfast.types.prompt import LayerText

logger = logging.getLogger(__name__)
_MEMORY_LAYERS = {"USER.md": "user_memory", "MEMORY.md": "memory"}


def volatile_source(
    options: Options,
    volatile_prompt: str,
    model: Model,
    *,
    workspace: Path | None,
    home: Path,
    name: str | None = None,
    knowledge: "KnowledgeLayers | None" = None,
) -> VolatileSource:
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
            texts += await asyncio.to_thread(_project_layers, model, workspace, clock)
        if memory:
            texts += await asyncio.to_thread(_memory_layers, memory)
        if knowledge is not None:
            texts += await asyncio.to_thread(knowledge.render)
        own_layers = await _own_layers(options)
        # The caller's own metadata layer replaces ours.
        if name and not any(layer.layer == "metadata" for layer in own_layers):
            texts.append(LayerText("metadata", render_session(name)))
        texts += own_layers
        return tuple(LayerText(text.layer, clean_text(text.text), text.ephemeral) for text in texts)

    return render


def _project_layers(model: Model, workspace: Path, clock: Clock) -> list[LayerText]:
    at = clock()
    zone = datetime.datetime.fromtimestamp(at).astimezone().tzinfo or datetime.UTC
    environment = read_environment(model.id, workspace, at, os.environ, zone=zone)
    git = read_git_state(workspace, environ=os.environ)
    return [LayerText("environment", render_environment(environment)), LayerText("git", render_project_context(git))]


def _memory_layers(files: Sequence[MemoryFile]) -> list[LayerText]:
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
    if unknown := next((layer.layer for layer in layers if layer.layer not in VOLATILE_LAYERS), None):
        raise UserError(f"unknown volatile layer {unknown!r}; known layers: {', '.join(VOLATILE_LAYERS)}")
    duplicate = next((layer.layer for layer in layers if layer.layer in _MEMORY_LAYERS.values()), "")
    if options.get("memory") and duplicate:
        raise UserError(f"the layer {duplicate!r} is used by the memory files; leave it out, or leave out memory=True")
    return layers


class KnowledgeLayers:
    """Layers from project knowledge: the active files of a preset, the notes on them, and retrieved passages.

    `query` is the text of the newest user message, which passages are retrieved for.
    """

    def __init__(self, options: Options, config: Config, workspace: Path | None, *, user: str | None) -> None:
        self._user = user
        self._flag = options.get("rag")
        self._config = config
        self._curation = options.get("curation", config.curation or None)
        self._workspace = workspace
        self._stamp: FileStamp | None = None
        self._index: RagIndex | None = None
        self._emitted_layers: set[str] = set()
        self.query = ""

    def render(self) -> list[LayerText]:
        """Render the layers from files; a layer whose files are invalid is logged and left out."""
        if self._workspace is None:
            return []
        texts: list[LayerText] = []
        for render in (self._curated, self._retrieved):
            try:
                texts += render(self._workspace)
            except UserError as error:
                logger.warning("%s", error)
        self._emitted_layers |= {text.layer for text in texts}
        # A layer that had text before and has none now is sent as empty, so that the model drops the old text.
        emptied = self._emitted_layers - {text.layer for text in texts}
        return [*texts, *(LayerText(layer, "") for layer in sorted(emptied))]

    def _curated(self, workspace: Path) -> list[LayerText]:
        folder = curation_folder(workspace)
        name = read_active_preset(folder) if self._curation is None else self._curation
        if not name:
            return []
        slices = read_preset(folder, name).slices
        notes = self._notes(workspace, slices)
        texts = [LayerText("active_files", render_preset(workspace, name, slices))] if slices else []
        return [*texts, LayerText("file_details", notes)] if notes else texts

    def _notes(self, workspace: Path, slices: tuple[FileSlice, ...]) -> str:
        paths = {os.path.normpath(slice_.path).replace(os.sep, "/") for slice_ in slices}
        sections = []
        for folder in open_readable_folders(workspace, workspace, user=self._user):
            for notes in read_notes(folder):
                lines = [f"- {item.text}" for _, item in notes.page.items if not item.exclusion_reason]
                if notes.path in paths and lines:
                    sections.append("\n".join((f"## Notes on {notes.path}", *lines)))
        return "\n\n".join(sections)

    def _retrieved(self, workspace: Path) -> list[LayerText]:
        stamp = _stamp(rag_folder(workspace))
        is_enabled = resolve_flag(self._flag, self._config.rag, present=True)
        if stamp is None or not self.query.strip() or not is_enabled:
            return []
        if stamp != self._stamp:
            files = read_rag_index(rag_folder(workspace))
            # Building the index reads every indexed file, so it is done only when the index file changed.
            self._index, self._stamp = RagIndex(files) if files is not None else None, stamp
        if self._index is None:
            return []
        text = render_chunks(self._index.query(workspace, self.query))
        return [LayerText("rag-context", text)] if text else []


def rag_folder(workspace: Path) -> KnowledgeFolder:
    return KnowledgeFolder(workspace, (".holdfast", "rag"))


def curation_folder(workspace: Path) -> KnowledgeFolder:
    return KnowledgeFolder(workspace, (".holdfast", "curation"))


def _stamp(folder: KnowledgeFolder) -> FileStamp | None:
    try:
        return make_stamp(os.stat(folder.path / INDEX_FILE, follow_symlinks=False))
    except OSError:
        return None
