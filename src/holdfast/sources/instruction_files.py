"""Finds and reads the instruction files that apply to a working folder, outermost first.

First the home folder's AGENTS.md and CLAUDE.md, then every folder from the git root down to the working one;
without a git root the working folder alone. In each folder, in this order: AGENTS.md, CLAUDE.md,
CLAUDE.local.md, .claude/CLAUDE.md, .holdfast/instructions.md, then .holdfast/rules/*.md, *.mdc and *.txt by
name. So shared files come before personal and tool-specific ones, and the nearest folder has the last word.

Presets and personas that are stored as files are read here as well: the workspace's own, else the user's.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.errors import UserError
from holdfast.sources.files import (
    SourceFinding,
    decode_text,
    describe_read_error,
    find_git_root,
    format_path,
    read_regular_file,
)

FILE_CHARS_MAX = 4_000
TOTAL_CHARS_MAX = 12_000
RULES_MAX = 100
HOME_NAMES = ("AGENTS.md", "CLAUDE.md")
FOLDER_NAMES = ("AGENTS.md", "CLAUDE.md", "CLAUDE.local.md", ".claude/CLAUDE.md", ".holdfast/instructions.md")
RULES_FOLDER = ".holdfast/rules"
RULES_SUFFIXES = (".md", ".mdc", ".txt")

# Room for a byte order mark and leading blank lines, which do not count towards the limit.
_SLACK_BYTES = 65_536


class InstructionFile(msgspec.Struct, frozen=True):
    """`path` is relative to the root, or to the home folder as `~`; `text` is without any marker."""

    path: str
    text: str
    is_truncated: bool = False


class InstructionFiles(msgspec.Struct, frozen=True):
    """`omitted` counts the non-empty files that did not fit."""

    files: tuple[InstructionFile, ...] = ()
    omitted: int = 0
    findings: tuple[SourceFinding, ...] = ()


class _Candidate(msgspec.Struct, frozen=True):
    """A possible file. Symlinks that leave the root are followed only in the user's home folder."""

    shown: str
    path: Path
    root: Path
    in_home: bool = False


class _Start(msgspec.Struct, frozen=True):
    """The trimmed text of a file; only its start unless `whole`."""

    shown: str
    text: str
    whole: bool


def read_instructions(
    cwd: Path,
    home: Path | None = None,
    *,
    file_chars_max: int = FILE_CHARS_MAX,
    total_chars_max: int = TOTAL_CHARS_MAX,
    rules_max: int = RULES_MAX,
) -> InstructionFiles:
    """The files within the limits, each text once; a skipped file is a finding, never an error.

    The limits count the characters of the files, without the marker that shows a truncation.
    """
    _check_limits(file_chars_max=file_chars_max, total_chars_max=total_chars_max, rules_max=rules_max)
    findings: list[SourceFinding] = []
    candidates = list(_home_candidates(home, findings))
    rules_left_out = 0
    folders = _find_folders(cwd, findings)
    for folder in folders:
        rules, left_out = _find_rules(folder, folders[0], rules_max, findings)
        rules_left_out += left_out
        for path in (*(folder / name for name in FOLDER_NAMES), *rules):
            candidates.append(_Candidate(format_path(path.relative_to(folders[0])), path, folders[0]))
    # UTF-8 takes at most four bytes per character.
    bytes_max = 4 * file_chars_max + _SLACK_BYTES
    starts = [start for candidate in candidates if (start := _read_start(candidate, bytes_max, findings))]
    fitted = _fit_files(starts, file_chars_max, total_chars_max)
    return InstructionFiles(fitted.files, fitted.omitted + rules_left_out, (*findings, *fitted.findings))


def _fit_files(starts: list[_Start], file_chars_max: int, total_chars_max: int) -> InstructionFiles:
    files: list[InstructionFile] = []
    findings: list[SourceFinding] = []
    first_with: dict[str, str] = {}
    room, omitted = total_chars_max, 0
    for start in starts:
        key = _normalize(start.text)
        if not start.text:
            findings.append(SourceFinding(start.shown, "empty" if start.whole else "starts with too much blank space"))
        elif key in first_with:
            findings.append(SourceFinding(start.shown, f"has the same text as {first_with[key]}"))
        elif room == 0:
            omitted += 1
            findings.append(
                SourceFinding(start.shown, f"left out: the limit of {total_chars_max} characters is used up")
            )
        else:
            text = start.text[: min(file_chars_max, room)]
            files.append(InstructionFile(start.shown, text, not start.whole or len(text) < len(start.text)))
            first_with[key] = start.shown
            room -= len(text)
    return InstructionFiles(tuple(files), omitted, tuple(findings))


def _check_limits(**limits: int) -> None:
    for name, value in limits.items():
        if value < 1:
            raise UserError(f"{name} is {value}: a limit on instruction files must be at least 1")


def _home_candidates(home: Path | None, findings: list[SourceFinding]) -> Iterator[_Candidate]:
    if home is None:
        return
    try:
        root = Path(os.path.realpath(home, strict=True))
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        findings.append(SourceFinding("~", describe_read_error(error)))
        return
    for name in HOME_NAMES:
        yield _Candidate(f"~/{name}", root / name, root, in_home=True)


def _find_folders(cwd: Path, findings: list[SourceFinding]) -> tuple[Path, ...]:
    """The folders from the root down to the working folder, symlinks resolved."""
    try:
        here = Path(os.path.realpath(cwd, strict=True))
    except (OSError, ValueError) as error:
        findings.append(SourceFinding(format_path(cwd), describe_read_error(error)))
        return ()
    root = find_git_root(here) or here
    inner = here.relative_to(root).parts
    return tuple(root.joinpath(*inner[:depth]) for depth in range(len(inner) + 1))


def _find_rules(folder: Path, root: Path, rules_max: int, findings: list[SourceFinding]) -> tuple[list[Path], int]:
    """The rule files to read, sorted by name, and how many were left out."""
    rules_folder = folder / RULES_FOLDER
    shown = format_path(rules_folder.relative_to(root))
    try:
        real = Path(os.path.realpath(rules_folder, strict=True))
        if not real.is_relative_to(root):
            findings.append(SourceFinding(shown, "not read: it is a link that leads out of the project"))
            return [], 0
        names = [name for name in os.listdir(real) if name.endswith(RULES_SUFFIXES)]
    except (FileNotFoundError, NotADirectoryError):
        return [], 0
    except OSError as error:
        findings.append(SourceFinding(shown, describe_read_error(error)))
        return [], 0
    # Sorted by raw bytes, so that the order depends neither on the locale nor on the file system.
    names.sort(key=os.fsencode)
    left_out = max(0, len(names) - rules_max)
    if left_out:
        findings.append(SourceFinding(shown, f"{left_out} files after the first {rules_max} were not read"))
    return [rules_folder / name for name in names[:rules_max]], left_out


def _read_start(candidate: _Candidate, bytes_max: int, findings: list[SourceFinding]) -> _Start | None:
    """None if the file does not exist or must not be read."""
    try:
        real = Path(os.path.realpath(candidate.path, strict=True))
        if not real.is_relative_to(candidate.root):
            reason = "followed, though it" if candidate.in_home else "not read: it"
            findings.append(SourceFinding(candidate.shown, f"{reason} is a link that leads out of its folder"))
            if not candidate.in_home:
                return None
        content = read_regular_file(real, bytes_max + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        if os.path.islink(candidate.path):
            findings.append(SourceFinding(candidate.shown, describe_read_error(error)))
        return None
    except OSError as error:
        findings.append(SourceFinding(candidate.shown, describe_read_error(error)))
        return None
    if content is None:
        findings.append(SourceFinding(candidate.shown, "not read: it is not a regular file"))
        return None
    raw = content.raw
    whole = len(raw) <= bytes_max
    return _Start(candidate.shown, decode_text(raw[:bytes_max], whole=whole).strip(), whole)


def _normalize(text: str) -> str:
    """The text in a form for comparison: without trailing blanks and repeated blank lines."""
    lines: list[str] = []
    for line in text.split("\n"):
        stripped = line.rstrip()
        if stripped or (lines and lines[-1]):
            lines.append(stripped)
    return "\n".join(lines)


TEXT_BYTES_MAX = 200_000
NamedTextKind = Literal["presets", "personas"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def read_named_text(kind: NamedTextKind, name: str, *, workspace: Path | None, home: Path) -> str:
    """The text of `<kind>/<name>.md`, looked for in `<workspace>/.holdfast` and then in the home folder."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{kind[:-1]} {name[:80]!r} is not a valid name: use letters, digits, '.', '_' and '-'")
    for folder in _folders(kind, workspace, home):
        path = folder / f"{name}.md"
        if os.path.lexists(path):
            return _read(path, workspace if folder.parent.parent == workspace else None)
    names = list_named_texts(kind, workspace=workspace, home=home)
    available = f"there are {', '.join(names)}" if names else f"there are no {kind} yet"
    raise UserError(f"there is no {kind[:-1]} {name!r}; {available} (files {kind}/<name>.md below .holdfast)")


def list_named_texts(kind: NamedTextKind, *, workspace: Path | None, home: Path) -> tuple[str, ...]:
    """The available names, sorted."""
    names: set[str] = set()
    for folder in _folders(kind, workspace, home):
        try:
            files = os.listdir(folder)
        except OSError:
            continue
        names |= {file[:-3] for file in files if file.endswith(".md") and _NAME.fullmatch(file[:-3])}
    return tuple(sorted(names))


def _folders(kind: NamedTextKind, workspace: Path | None, home: Path) -> tuple[Path, ...]:
    return (*((workspace / ".holdfast" / kind,) if workspace else ()), home / kind)


def _read(path: Path, within: Path | None) -> str:
    try:
        real = Path(os.path.realpath(path, strict=True))
        if within is not None and not real.is_relative_to(os.path.realpath(within)):
            raise UserError(f"{format_path(path)} is a link that leads out of the workspace; put the file itself there")
        content = read_regular_file(real, TEXT_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"{format_path(path)} {describe_read_error(error)}") from error
    if content is None:
        raise UserError(f"{format_path(path)} is not a regular file")
    if len(content.raw) > TEXT_BYTES_MAX:
        raise UserError(f"{format_path(path)} has more than {TEXT_BYTES_MAX} bytes; shorten it")
    return decode_text(content.raw).strip()
