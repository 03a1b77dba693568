"""Volatile layers from project knowledge: the active files of a preset, the notes on them, and retrieved passages.

Every layer is rendered again before each call. A layer that is turned off or has no source is left out.
"""

import logging
import os
from pathlib import Path

from holdfast.canonical.blocks import Block, text_of
from holdfast.canonical.view import LayerText
from holdfast.errors import UserError
from holdfast.knowledge.curation import Slice, active_preset, read_preset, render_preset
from holdfast.knowledge.folder import KnowledgeFolder, knowledge_folder
from holdfast.knowledge.notes import read_notes
from holdfast.knowledge.passages import INDEX, PassageIndex, read_files, render_passages
from holdfast.knowledge.switches import switched
from holdfast.runtime.config import Config
from holdfast.runtime.options import Options
from holdfast.sources.files import Stamp, stamp_of

logger = logging.getLogger(__name__)


class MemoryDimensions:
    """`asked` is the text of the newest user message, which passages are retrieved for."""

    def __init__(self, options: Options, config: Config, workspace: Path | None) -> None:
        self._flag = options.get("rag")
        self._config = config
        self._curation = options.get("curation", config.curation or None)
        self._workspace = workspace
        self._stamp: Stamp | None = None
        self._index: PassageIndex | None = None
        self._emitted_layers: set[str] = set()
        self.asked = ""

    def hear(self, content: tuple[Block, ...]) -> None:
        self.asked = text_of(content)

    def texts(self) -> list[LayerText]:
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
        name = active_preset(folder) if self._curation is None else self._curation
        if not name:
            return []
        slices = read_preset(folder, name).slices
        notes = self._notes(workspace, slices)
        texts = [LayerText("active_files", render_preset(workspace, name, slices))] if slices else []
        return [*texts, LayerText("file_details", notes)] if notes else texts

    def _notes(self, workspace: Path, slices: tuple[Slice, ...]) -> str:
        paths = {os.path.normpath(slice_.path).replace(os.sep, "/") for slice_ in slices}
        sections = []
        for notes in read_notes(knowledge_folder(workspace, workspace)):
            lines = [f"- {item.text}" for _, item in notes.page.items if not item.held_back]
            if notes.path in paths and lines:
                sections.append("\n".join((f"## Notes on {notes.path}", *lines)))
        return "\n\n".join(sections)

    def _retrieved(self, workspace: Path) -> list[LayerText]:
        stamp = _stamp(rag_folder(workspace))
        if stamp is None or not self.asked.strip():
            return []
        if not switched(self._flag, self._config.rag, present=True).on:
            return []
        if stamp != self._stamp:
            files = read_files(rag_folder(workspace))
            # Building the index reads every indexed file, so it is done only when the index file changed.
            self._index, self._stamp = PassageIndex(files) if files is not None else None, stamp
        if self._index is None:
            return []
        text = render_passages(self._index.query(workspace, self.asked))
        return [LayerText("rag-context", text)] if text else []


def rag_folder(workspace: Path) -> KnowledgeFolder:
    return KnowledgeFolder(workspace, (".holdfast", "rag"))


def curation_folder(workspace: Path) -> KnowledgeFolder:
    return KnowledgeFolder(workspace, (".holdfast", "curation"))


def _stamp(folder: KnowledgeFolder) -> Stamp | None:
    try:
        return stamp_of(os.stat(folder.path / INDEX, follow_symlinks=False))
    except OSError:
        return None
