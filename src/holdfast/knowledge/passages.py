"""Which passages of a project's files fit a question: an index that is kept beside them and never changes them.

The index holds what was read with the digest of its file; a passage whose file has changed since is not told.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from holdfast.canonical.encoding import canonical_json
from holdfast.knowledge.folder import Disk
from holdfast.knowledge.screening import holds_secret
from holdfast.retrieval.index import Index
from holdfast.retrieval.units import Unit
from holdfast.sources.files import Stamp
from holdfast.sources.project import ProjectFile, read_project_file, walk_project

logger = logging.getLogger(__name__)

INDEX = "index.jsonl"
FILE_BYTES_MAX = 400_000
TEXT_BYTES_MAX = 50_000_000
PASSAGE_LINES = 40
PASSAGE_CHARACTERS_MAX = 4_000
PASSAGES_TOLD = 4
TOLD_BYTES_MAX = 6_000
_VERSION = 1

OPENING = "Passages of project files that may fit the question; the files themselves are what counts."


class Lines(msgspec.Struct, frozen=True):
    """A passage: from its first line to its last, both counted from one."""

    first: int
    last: int
    text: str


class IndexedFile(msgspec.Struct, frozen=True):
    path: str
    sha256: str
    stamp: Stamp
    passages: tuple[Lines, ...]


class _Kept(msgspec.Struct, frozen=True):
    version: int
    files: tuple[IndexedFile, ...]


class Indexed(msgspec.Struct, frozen=True):
    """What was done to bring an index up to date; `left_out` passages may hold a secret."""

    files: int
    passages: int
    read: int
    unchanged: int
    removed: int
    left_out: int


class FoundPassage(msgspec.Struct, frozen=True):
    path: str
    first: int
    last: int
    sha256: str
    score: float
    text: str


class PassageIndex:
    """What is kept, ready to be asked."""

    def __init__(self, files: Iterable[IndexedFile]) -> None:
        self.files = {one.path: one for one in files}
        self._passages = {
            f"{file.path}:{lines.first}": (file, lines) for file in self.files.values() for lines in file.passages
        }
        self._index = Index(
            Unit(name, name=file.path, content=lines.text) for name, (file, lines) in self._passages.items()
        )

    def query(self, root: Path, question: str, *, limit: int = PASSAGES_TOLD) -> tuple[FoundPassage, ...]:
        """The best passages whose files are still what they were, best first."""
        found: list[FoundPassage] = []
        fresh: dict[str, bool] = {}
        for one in self._index.search(question, limit=limit * 3).found:
            file, lines = self._passages[one.id]
            if file.path not in fresh:
                now = read_project_file(root, file.path, FILE_BYTES_MAX)
                fresh[file.path] = now is not None and now.sha256 == file.sha256
            if fresh[file.path] and len(found) < limit:
                found.append(FoundPassage(file.path, lines.first, lines.last, file.sha256, one.score, lines.text))
        return tuple(found)


def update_index(disk: Disk, root: Path) -> Indexed:
    """Read what is new or other, forget what is gone; written in one step, and only where something changed."""
    with disk.locked():
        before = {one.path: one for one in read_files(disk) or ()}
        files: list[IndexedFile] = []
        read = unchanged = left_out = size = 0
        for found in walk_project(root):
            known = before.get(found.path)
            if known is not None and known.stamp == found.stamp:
                unchanged += 1
            else:
                known, without = _read(root, found, known)
                left_out += without
                read += 1
            if known is None:
                continue
            size += sum(len(one.text) for one in known.passages)
            if size > TEXT_BYTES_MAX:
                logger.warning("the index is full: files behind %d are left out", len(files))
                break
            files.append(known)
        removed = len(before.keys() - {one.path for one in files})
        disk.replace(INDEX, canonical_json(_Kept(_VERSION, tuple(files))))
    return Indexed(len(files), sum(len(one.passages) for one in files), read, unchanged, removed, left_out)


def read_files(disk: Disk) -> tuple[IndexedFile, ...] | None:
    """None where there is no index, or none that can be used: it is made anew then."""
    raw = disk.read(INDEX)
    if raw is None:
        return None
    try:
        kept = msgspec.json.decode(raw, type=_Kept)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        logger.warning("the index of project files cannot be read; `holdfast rag index` makes it anew")
        return None
    return kept.files if kept.version == _VERSION else None


def render_passages(found: Sequence[FoundPassage], *, bytes_max: int = TOLD_BYTES_MAX) -> str:
    """Each with its path, its lines and the digest of its file; what does not fit is left out whole."""
    parts, size = [OPENING], len(OPENING)
    for one in found:
        part = f"## {one.path} lines {one.first}-{one.last} (sha256 {one.sha256[:12]})\n{one.text}"
        size += len(part.encode()) + 2
        if size <= bytes_max:
            parts.append(part)
    return "\n\n".join(parts) if len(parts) > 1 else ""


def _read(root: Path, found: ProjectFile, known: IndexedFile | None) -> tuple[IndexedFile | None, int]:
    file = read_project_file(root, found.path, FILE_BYTES_MAX)
    if file is None:
        return None, 0
    if known is not None and known.sha256 == file.sha256:
        return msgspec.structs.replace(known, stamp=found.stamp), 0
    cut = _cut(file.text)
    kept = tuple(one for one in cut if not holds_secret(one.text))
    return IndexedFile(found.path, file.sha256, found.stamp, kept), len(cut) - len(kept)


def _cut(text: str) -> tuple[Lines, ...]:
    """Pieces of so many lines, cut at an empty line where there is one in the second half."""
    lines = text.removesuffix("\n").split("\n")
    pieces, start = [], 0
    while start < len(lines):
        end = min(start + PASSAGE_LINES, len(lines))
        if end < len(lines):
            gaps = (at for at in range(end - 1, start + PASSAGE_LINES // 2, -1) if not lines[at].strip())
            end = next(gaps, end - 1) + 1
        said = "\n".join(lines[start:end])[:PASSAGE_CHARACTERS_MAX].rstrip()
        if said.strip():
            pieces.append(Lines(start + 1, end, said))
        start = end
    return tuple(pieces)
