"""Curated context: named presets of files, line ranges and symbols that a person chose for the current work."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.errors import UserError
from holdfast.knowledge.folder import KnowledgeFiles
from holdfast.sources.files import cut_utf8, decode_text, parse_toml
from holdfast.sources.project_files import ProjectText, read_project_file

ACTIVE_FILE = "active"
FILE_BYTES_MAX = 2_000_000
SLICE_BYTES_MAX = 8_000
PRESET_BYTES_MAX = 24_000
SLICES_MAX = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")


class FileSlice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole file, or only `lines` such as "10-40", or only the definition of `symbol`."""

    path: str
    lines: str = ""
    symbol: str = ""


class FilePreset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    files: tuple[str | FileSlice, ...] = ()

    @property
    def slices(self) -> tuple[FileSlice, ...]:
        return tuple(FileSlice(file) if isinstance(file, str) else file for file in self.files[:SLICES_MAX])


def list_preset_names(disk: KnowledgeFiles) -> tuple[str, ...]:
    return tuple(name[:-5] for name in disk.list_names(".") if name.endswith(".toml") and _NAME.fullmatch(name[:-5]))


def read_preset(disk: KnowledgeFiles, name: str) -> FilePreset:
    """Raises UserError for a preset that does not exist or is invalid."""
    raw = disk.read(f"{name}.toml") if _NAME.fullmatch(name) else None
    if raw is None:
        known = ", ".join(list_preset_names(disk))
        hint = f"known: {known}" if known else "there are none yet"
        raise UserError(f"there is no file preset {name[:80]!r}; {hint} (files .holdfast/curation/<name>.toml)")
    try:
        preset = msgspec.convert(parse_toml(decode_text(raw)), FilePreset)
    except ValueError as error:
        raise UserError(f"the file preset {name!r} cannot be read: {error}") from error
    for file_slice in preset.slices:
        if file_slice.lines and not _RANGE.fullmatch(file_slice.lines):
            raise UserError(f'the file preset {name!r}: lines of {file_slice.path!r} must look like "10-40"')
    return preset


def read_active_preset(disk: KnowledgeFiles) -> str:
    """The name of the preset that was last chosen; empty if none is."""
    return decode_text(disk.read(ACTIVE_FILE) or b"").strip()


def choose_preset(disk: KnowledgeFiles, name: str) -> None:
    """Make a preset active from the next message on; an empty name clears it."""
    if not name:
        disk.remove(ACTIVE_FILE)
        return
    read_preset(disk, name)
    disk.replace(ACTIVE_FILE, f"{name}\n".encode())


def render_preset(root: Path, name: str, slices: Sequence[FileSlice]) -> str:
    """Every slice with its path, lines and file digest, within the limits per slice and in total."""
    parts = [f"# Files chosen for this work ({name})"]
    size, left_out = len(parts[0]), 0
    for part in _render_slices(root, slices):
        size += len(part.encode()) + 2
        if size > PRESET_BYTES_MAX:
            left_out += 1
        else:
            parts.append(part)
    if left_out:
        parts.append(f"({left_out} more do not fit)")
    return "\n\n".join(parts)


def _render_slices(root: Path, slices: Sequence[FileSlice]) -> Iterator[str]:
    for file_slice in slices:
        file = read_project_file(root, file_slice.path, FILE_BYTES_MAX)
        if file is None:
            yield f"## {file_slice.path}\n(cannot be read)"
            continue
        lines = file.text.removesuffix("\n").split("\n")
        line_range = _line_range(file_slice, file, lines)
        if line_range is None:
            yield f"## {file_slice.path}\n(there is no definition of {file_slice.symbol!r})"
            continue
        first, last = line_range
        text, cut = cut_utf8("\n".join(lines[first - 1 : last]), SLICE_BYTES_MAX)
        note = "\n(cut here)" if cut else ""
        yield f"## {file_slice.path} lines {first}-{last} of {len(lines)} (sha256 {file.sha256[:12]})\n{text}{note}"


def _line_range(file_slice: FileSlice, file: ProjectText, lines: Sequence[str]) -> tuple[int, int] | None:
    if file_slice.lines and (match := _RANGE.fullmatch(file_slice.lines)):
        first = max(1, min(int(match[1]), len(lines)))
        return first, max(first, min(int(match[2]), len(lines)))
    if file_slice.symbol:
        return find_definition(lines, file_slice.symbol)
    return 1, len(lines)


def find_definition(lines: Sequence[str], symbol: str) -> tuple[int, int] | None:
    """First and last line of a definition, found by keyword and indentation; language-independent."""
    pattern = re.compile(
        r"\s*(?:(?:export|default|public|private|protected|static|abstract|async|pub|final)\s+)*"
        rf"(?:def|class|function|fn|func|struct|enum|interface|trait|type|const|let|var|impl|module)\s+{re.escape(symbol)}\b"
    )
    for index, line in enumerate(lines):
        if pattern.match(line):
            return index + 1, _definition_end(lines, index)
    return None


def _definition_end(lines: Sequence[str], start: int) -> int:
    indent = len(lines[start]) - len(lines[start].lstrip())
    last = start
    for number in range(start + 1, len(lines)):
        line = lines[number]
        if not line.strip():
            continue
        if len(line) - len(line.lstrip()) <= indent:
            # The closing bracket of a block has the indentation of its first line and belongs to it.
            return number + 1 if line.strip()[0] in "})]" else last + 1
        last = number
    return last + 1
