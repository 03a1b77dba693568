"""The RAG index: which chunks of a project's files fit a question.

The index stores each chunk with the digest of its file; a chunk whose file has changed since is not returned.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from holdfast.knowledge.folder import KnowledgeFiles
from holdfast.knowledge.screening import contains_secret
from holdfast.retrieval.index import SearchIndex
from holdfast.retrieval.units import SearchUnit
from holdfast.sources.files import FileStamp
from holdfast.sources.project_files import ProjectFile, read_project_file, walk_project
from holdfast.types.json_encoding import canonical_json

logger = logging.getLogger(__name__)
INDEX_FILE = "index.jsonl"
FILE_BYTES_MAX = 400_000
TEXT_BYTES_MAX = 50_000_000
CHUNK_LINES = 40
CHUNK_CHARACTERS_MAX = 4_000
CHUNKS_RETURNED = 4
RAG_BYTES_MAX = 6_000
_VERSION = 1
RAG_PREAMBLE = "Passages of project files that may fit the question; the files themselves are what counts."


class FileChunk(msgspec.Struct, frozen=True):
    """A chunk of a file: first and last line, both inclusive and counted from 1."""

    first_line: int
    last_line: int
    text: str


class IndexedFile(msgspec.Struct, frozen=True):
    path: str
    sha256: str
    stamp: FileStamp
    chunks: tuple[FileChunk, ...]


class _StoredIndex(msgspec.Struct, frozen=True):
    version: int
    files: tuple[IndexedFile, ...]


class IndexUpdate(msgspec.Struct, frozen=True):
    """What an index update did; `left_out` chunks may contain a secret."""

    files: int
    chunks: int
    read: int
    unchanged: int
    removed: int
    left_out: int


class RetrievedChunk(msgspec.Struct, frozen=True):
    path: str
    first_line: int
    last_line: int
    sha256: str
    score: float
    text: str


class RagIndex:
    def __init__(self, files: Iterable[IndexedFile]) -> None:
        self.files = {file.path: file for file in files}
        chunks = [(file, lines) for file in self.files.values() for lines in file.chunks]
        self._chunks = {f"{file.path}:{lines.first_line}": (file, lines) for file, lines in chunks}
        named = self._chunks.items()
        self._index = SearchIndex(SearchUnit(id, name=file.path, content=lines.text) for id, (file, lines) in named)

    def query(self, root: Path, question: str, *, limit: int = CHUNKS_RETURNED) -> tuple[RetrievedChunk, ...]:
        """The best chunks whose files are unchanged, best first."""
        chunks: list[RetrievedChunk] = []
        fresh: dict[str, bool] = {}
        # Ask for more than needed, because chunks of changed files are skipped.
        for hit in self._index.search(question, limit=limit * 3).hits:
            file, lines = self._chunks[hit.id]
            if file.path not in fresh:
                current = read_project_file(root, file.path, FILE_BYTES_MAX)
                fresh[file.path] = current is not None and current.sha256 == file.sha256
            if fresh[file.path] and len(chunks) < limit:
                first, last = lines.first_line, lines.last_line
                chunks.append(RetrievedChunk(file.path, first, last, file.sha256, hit.score, lines.text))
        return tuple(chunks)


def update_rag_index(disk: KnowledgeFiles, root: Path) -> IndexUpdate:
    """Read new and changed files, drop deleted ones, and replace the stored index atomically."""
    with disk.lock():
        before = {file.path: file for file in read_rag_index(disk) or ()}
        files: list[IndexedFile] = []
        read = unchanged = left_out = size = 0
        for project_file in walk_project(root):
            indexed = before.get(project_file.path)
            if indexed is not None and indexed.stamp == project_file.stamp:
                unchanged += 1
            else:
                indexed, left_out_here = _read_chunks(root, project_file, indexed)
                left_out += left_out_here
                read += 1
            if indexed is None:
                continue
            size += sum(len(chunk.text) for chunk in indexed.chunks)
            if size > TEXT_BYTES_MAX:
                logger.warning("the index is full: files after the first %d are left out", len(files))
                break
            files.append(indexed)
        removed = len(before.keys() - {file.path for file in files})
        disk.replace(INDEX_FILE, canonical_json(_StoredIndex(_VERSION, tuple(files))))
    return IndexUpdate(len(files), sum(len(file.chunks) for file in files), read, unchanged, removed, left_out)


def read_rag_index(disk: KnowledgeFiles) -> tuple[IndexedFile, ...] | None:
    """None if there is no index or it cannot be used; it is rebuilt then."""
    raw = disk.read(INDEX_FILE)
    if raw is None:
        return None
    try:
        stored = msgspec.json.decode(raw, type=_StoredIndex)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        logger.warning("the index of project files cannot be read; `holdfast rag index` rebuilds it")
        return None
    return stored.files if stored.version == _VERSION else None


def render_chunks(chunks: Sequence[RetrievedChunk], *, bytes_max: int = RAG_BYTES_MAX) -> str:
    """Each chunk with its path, lines and file digest; a chunk that does not fit is left out whole."""
    parts, size = [RAG_PREAMBLE], len(RAG_PREAMBLE)
    for chunk in chunks:
        part = f"## {chunk.path} lines {chunk.first_line}-{chunk.last_line} (sha256 {chunk.sha256[:12]})\n{chunk.text}"
        size += len(part.encode()) + 2
        if size <= bytes_max:
            parts.append(part)
    return "\n\n".join(parts) if len(parts) > 1 else ""


def _read_chunks(root: Path, project_file: ProjectFile, indexed: IndexedFile | None) -> tuple[IndexedFile | None, int]:
    file = read_project_file(root, project_file.path, FILE_BYTES_MAX)
    if file is None:
        return None, 0
    # Touched but unchanged: keep the chunks and only remember the new time stamp.
    if indexed is not None and indexed.sha256 == file.sha256:
        return msgspec.structs.replace(indexed, stamp=project_file.stamp), 0
    chunks = _split_chunks(file.text)
    safe = tuple(chunk for chunk in chunks if not contains_secret(chunk.text))
    return IndexedFile(project_file.path, file.sha256, project_file.stamp, safe), len(chunks) - len(safe)


def _split_chunks(text: str) -> tuple[FileChunk, ...]:
    """Chunks of at most CHUNK_LINES lines, cut at an empty line if there is one in the second half."""
    lines = text.removesuffix("\n").split("\n")
    chunks, start = [], 0
    while start < len(lines):
        end = min(start + CHUNK_LINES, len(lines))
        if end < len(lines):
            empty_lines = (at for at in range(end - 1, start + CHUNK_LINES // 2, -1) if not lines[at].strip())
            end = next(empty_lines, end - 1) + 1
        chunk_text = "\n".join(lines[start:end])[:CHUNK_CHARACTERS_MAX].rstrip()
        if chunk_text.strip():
            chunks.append(FileChunk(start + 1, end, chunk_text))
        start = end
    return tuple(chunks)
