"""Which files a person chose for the work at hand: named presets of files, ranges of lines and symbols."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.errors import UserError
from holdfast.knowledge.folder import Disk
from holdfast.sources.project import FileText, read_project_file
from holdfast.sources.text import cut_utf8, read_text

ACTIVE = "active"
FILE_BYTES_MAX = 2_000_000
SLICE_BYTES_MAX = 8_000
TOLD_BYTES_MAX = 24_000
SLICES_MAX = 100

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")


class Slice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file, or of it only `lines` such as "10-40", or the definition of a `symbol`."""

    path: str
    lines: str = ""
    symbol: str = ""


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    files: tuple[str | Slice, ...] = ()

    @property
    def slices(self) -> tuple[Slice, ...]:
        return tuple(Slice(one) if isinstance(one, str) else one for one in self.files[:SLICES_MAX])


def preset_names(disk: Disk) -> tuple[str, ...]:
    return tuple(name[:-5] for name in disk.names(".") if name.endswith(".toml") and _NAME.fullmatch(name[:-5]))


def read_preset(disk: Disk, name: str) -> Preset:
    """Raises UserError, which names what is wrong, for a preset that is not there or cannot be read."""
    raw = disk.read(f"{name}.toml") if _NAME.fullmatch(name) else None
    if raw is None:
        known = ", ".join(preset_names(disk))
        there = f"there are {known}" if known else "there are none yet"
        raise UserError(f"there is no preset of files {name[:80]!r}; {there} (files .holdfast/curation/<name>.toml)")
    try:
        preset = msgspec.convert(tomllib.loads(read_text(raw)), Preset)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
        raise UserError(f"the preset of files {name!r} cannot be read: {error}") from error
    if bad := next((one for one in preset.slices if one.lines and not _RANGE.fullmatch(one.lines)), None):
        raise UserError(f'the preset of files {name!r}: lines of {bad.path!r} are said as in "10-40"')
    return preset


def active_preset(disk: Disk) -> str:
    """The name that was last chosen by hand, or nothing."""
    return read_text(disk.read(ACTIVE) or b"").strip()


def choose_preset(disk: Disk, name: str) -> None:
    """From the next message on sessions are told these files; an empty name is none."""
    if not name:
        disk.remove(ACTIVE)
        return
    read_preset(disk, name)
    disk.replace(ACTIVE, f"{name}\n".encode())


def render_preset(root: Path, name: str, slices: Sequence[Slice]) -> str:
    """Every slice with its path, its lines and the digest of its file, each and all within their caps."""
    parts = [f"# Files chosen for this work ({name})"]
    size, left_out = len(parts[0]), 0
    for part in _rendered(root, slices):
        size += len(part.encode()) + 2
        if size > TOLD_BYTES_MAX:
            left_out += 1
        else:
            parts.append(part)
    if left_out:
        parts.append(f"({left_out} more do not fit)")
    return "\n\n".join(parts)


def _rendered(root: Path, slices: Sequence[Slice]) -> Iterator[str]:
    for one in slices:
        file = read_project_file(root, one.path, FILE_BYTES_MAX)
        if file is None:
            yield f"## {one.path}\n(cannot be read)"
            continue
        lines = file.text.removesuffix("\n").split("\n")
        place = _place(one, file, lines)
        if place is None:
            yield f"## {one.path}\n(there is no definition of {one.symbol!r})"
            continue
        first, last = place
        text, cut = cut_utf8("\n".join(lines[first - 1 : last]), SLICE_BYTES_MAX)
        note = "\n(cut here)" if cut else ""
        yield f"## {one.path} lines {first}-{last} of {len(lines)} (sha256 {file.sha256[:12]})\n{text}{note}"


def _place(one: Slice, file: FileText, lines: Sequence[str]) -> tuple[int, int] | None:
    if one.lines and (match := _RANGE.fullmatch(one.lines)):
        first = max(1, min(int(match[1]), len(lines)))
        return first, max(first, min(int(match[2]), len(lines)))
    if one.symbol:
        return definition(lines, one.symbol)
    return 1, len(lines)


def definition(lines: Sequence[str], symbol: str) -> tuple[int, int] | None:
    """The lines of a definition, found by how such lines are written and by how deep they stand."""
    opens = re.compile(
        r"\s*(?:(?:export|default|public|private|protected|static|abstract|async|pub|final)\s+)*"
        rf"(?:def|class|function|fn|func|struct|enum|interface|trait|type|const|let|var|impl|module)\s+{re.escape(symbol)}\b"
    )
    for at, line in enumerate(lines):
        if opens.match(line):
            return at + 1, _end(lines, at)
    return None


def _end(lines: Sequence[str], at: int) -> int:
    depth = len(lines[at]) - len(lines[at].lstrip())
    last = at
    for number in range(at + 1, len(lines)):
        line = lines[number]
        if not line.strip():
            continue
        if len(line) - len(line.lstrip()) <= depth:
            return number + 1 if line.strip()[0] in "})]" else last + 1
        last = number
    return last + 1
