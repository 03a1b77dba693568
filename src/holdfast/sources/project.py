"""Lists and reads the files of a project, without ignored and hidden ones; never leaves the project folder."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.canonical.encoding import digest
from holdfast.sources.confined import EscapeError, PathError, locate, opened_place, read_regular, roots_of
from holdfast.sources.files import Stamp, stamp_of
from holdfast.sources.ignoring import IGNORE_FILES, IgnoreRule, ignore_rules, is_ignored
from holdfast.sources.text import read_text

# Both limits bound the time of a walk through a huge folder.
FILES_MAX = 20_000
FOLDERS_MAX = 20_000
IGNORE_BYTES_MAX = 200_000

_SKIPPED_NAMES = frozenset({".git", ".hg", ".svn", ".holdfast", "node_modules", "__pycache__", ".venv"})


class ProjectFile(msgspec.Struct, frozen=True):
    """`path` is relative to the project root, with `/` as separator."""

    path: str
    stamp: Stamp


class FileText(msgspec.Struct, frozen=True):
    """The text of a file, and the digest of its bytes."""

    path: str
    text: str
    sha256: str


def walk_project(root: Path) -> Iterator[ProjectFile]:
    """Regular files in a fixed order, without symlinks, hidden files and ignored files."""
    files = folders = 0
    pending: list[tuple[str, tuple[IgnoreRule, ...]]] = [("", ())]
    while pending and folders < FOLDERS_MAX:
        folder, inherited = pending.pop()
        folders += 1
        rules = inherited + _rules_in(root, folder)
        inner: list[tuple[str, tuple[IgnoreRule, ...]]] = []
        for entry in _list_entries(root / folder):
            path = f"{folder}/{entry.name}" if folder else entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if (
                entry.name.startswith(".")
                or entry.name in _SKIPPED_NAMES
                or is_ignored(path, rules, is_folder=is_folder)
            ):
                continue
            if is_folder:
                inner.append((path, rules))
            elif entry.is_file(follow_symlinks=False):
                files += 1
                if files > FILES_MAX:
                    return
                yield ProjectFile(path, stamp_of(entry.stat(follow_symlinks=False)))
        pending += reversed(inner)


def read_project_file(root: Path, path: str, bytes_max: int) -> FileText | None:
    """None if the file is missing, too large, binary or outside the project."""
    try:
        with opened_place(locate(roots_of(root), path)) as (folder, name):
            raw = read_regular(folder, name, bytes_max + 1)
    except (EscapeError, PathError):
        return None
    # A NUL byte within the first 8,000 bytes marks a binary file, as in git.
    if len(raw) > bytes_max or b"\0" in raw[:8_000]:
        return None
    return FileText(path, read_text(raw), digest(raw))


def _rules_in(root: Path, folder: str) -> tuple[IgnoreRule, ...]:
    rules: tuple[IgnoreRule, ...] = ()
    for name in IGNORE_FILES:
        file = read_project_file(root, f"{folder}/{name}" if folder else name, IGNORE_BYTES_MAX)
        rules += ignore_rules(file.text, folder) if file is not None else ()
    return rules


def _list_entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: os.fsencode(entry.name))
    except OSError:
        return []
