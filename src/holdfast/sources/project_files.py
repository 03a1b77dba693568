"""Lists and reads the files of a project, without ignored and hidden ones; never leaves the project folder."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.sources.confined_paths import (
    EscapeError,
    PathError,
    locate_path,
    open_parent,
    read_regular_at,
    resolve_roots,
)
from holdfast.sources.files import FileStamp, decode_text, make_stamp
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.json_schema import compile_pattern

# Both limits bound the time of a walk through a huge folder.
FILES_MAX = 20_000
FOLDERS_MAX = 20_000
IGNORE_FILES = (".gitignore", ".ignore", ".holdfastignore")
IGNORE_BYTES_MAX = 200_000
PATTERNS_MAX = 2_000
PATTERN_CHARACTERS_MAX = 500
PATTERN_BYTES_MAX = 65_536  # Of the compiled pattern.
_SKIPPED_NAMES = frozenset({".git", ".hg", ".svn", ".holdfast", "node_modules", "__pycache__", ".venv"})


class ProjectFile(msgspec.Struct, frozen=True):
    """`path` is relative to the project root, with `/` as separator."""

    path: str
    stamp: FileStamp


class ProjectText(msgspec.Struct, frozen=True):
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
            is_skipped = entry.name.startswith(".") or entry.name in _SKIPPED_NAMES
            if is_skipped or is_ignored(path, rules, is_folder=is_folder):
                continue
            if is_folder:
                inner.append((path, rules))
            elif entry.is_file(follow_symlinks=False):
                files += 1
                if files > FILES_MAX:
                    return
                yield ProjectFile(path, make_stamp(entry.stat(follow_symlinks=False)))
        pending += reversed(inner)


def read_project_file(root: Path, path: str, bytes_max: int) -> ProjectText | None:
    """None if the file is missing, too large, binary or outside the project."""
    try:
        with open_parent(locate_path(resolve_roots(root), path)) as (folder, name):
            raw = read_regular_at(folder, name, bytes_max + 1)
    except (EscapeError, PathError):
        return None
    # A NUL byte within the first 8,000 bytes marks a binary file, as in git.
    if len(raw) > bytes_max or b"\0" in raw[:8_000]:
        return None
    return ProjectText(path, decode_text(raw), sha256_hex(raw))


class IgnoreRule(msgspec.Struct, frozen=True):
    """`folder` is that of the ignore file, relative to the root; an `is_negated` rule (`!pattern`) un-ignores paths.

    `matches` takes a path below `folder`, which ends in `/` if it is a folder.
    """

    folder: str
    matches: Callable[[str], bool]
    is_negated: bool


def _rules_in(root: Path, folder: str) -> tuple[IgnoreRule, ...]:
    rules: tuple[IgnoreRule, ...] = ()
    for name in IGNORE_FILES:
        file = read_project_file(root, f"{folder}/{name}" if folder else name, IGNORE_BYTES_MAX)
        rules += parse_ignore_rules(file.text, folder) if file is not None else ()
    return rules


def _list_entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: os.fsencode(entry.name))
    except OSError:
        return []


def parse_ignore_rules(text: str, folder: str = "") -> tuple[IgnoreRule, ...]:
    """The rules of one ignore file; invalid lines are skipped."""
    rules = (_parse_rule(line.rstrip("\r"), folder) for line in text.split("\n")[:PATTERNS_MAX])
    return tuple(rule for rule in rules if rule is not None)


def is_ignored(path: str, rules: Sequence[IgnoreRule], *, is_folder: bool) -> bool:
    """Whether a path is ignored, given that its parent folders are not; the last matching rule decides.

    The rules are those of folders above the path.
    """
    name = f"{path}/" if is_folder else path
    for rule in reversed(rules):
        if rule.matches(name[len(rule.folder) + 1 if rule.folder else 0 :]):
            return not rule.is_negated
    return False


def _parse_rule(line: str, folder: str) -> IgnoreRule | None:
    # Loaded here, because only a project with an ignore file needs it.
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern  # noqa: PLC0415

    if len(line) > PATTERN_CHARACTERS_MAX:
        return None
    try:
        # `a/**/` is for the folders inside `a`; pathspec would take it for `a/`.
        expression, ignores = GitIgnoreSpecPattern.pattern_to_regex(f"{line}*/" if line.endswith("/**/") else line)
        if expression is None:
            return None
        # A rule that names a folder also matches what is inside, where git lets an earlier rule decide; `$` takes that
        # away. The rule `folder/**` is for what is inside only.
        if "ps_d" in expression:
            expression += "$"
        elif expression.endswith("/"):
            expression += "."
        return IgnoreRule(folder, compile_pattern(expression, PATTERN_BYTES_MAX), not ignores)
    except ValueError:
        return None
