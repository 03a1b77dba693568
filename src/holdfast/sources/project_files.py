"""Lists and reads the files of a project, without ignored and hidden ones; never leaves the project folder."""

import os
import re
from collections.abc import Iterator, Sequence
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

# Both limits bound the time of a walk through a huge folder.
FILES_MAX = 20_000
FOLDERS_MAX = 20_000
IGNORE_BYTES_MAX = 200_000
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
    """`folder` is that of the ignore file, relative to the root; an `is_negated` rule (`!pattern`) un-ignores paths."""

    folder: str
    expression: re.Pattern[str]
    is_negated: bool = False
    only_folders: bool = False


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


IGNORE_FILES = (".gitignore", ".ignore", ".holdfastignore")
PATTERNS_MAX = 2_000
PATTERN_CHARACTERS_MAX = 500


def parse_ignore_rules(text: str, folder: str = "") -> tuple[IgnoreRule, ...]:
    """The rules of one ignore file; invalid lines are skipped."""
    rules = (_parse_rule(line.rstrip("\r"), folder) for line in text.split("\n")[:PATTERNS_MAX])
    return tuple(rule for rule in rules if rule is not None)


def is_ignored(path: str, rules: Sequence[IgnoreRule], *, is_folder: bool) -> bool:
    """Whether a path is ignored, given that its parent folders are not; the last matching rule decides."""
    for rule in reversed(rules):
        if rule.only_folders and not is_folder:
            continue
        if rule.folder and not path.startswith(f"{rule.folder}/"):
            continue
        if rule.expression.fullmatch(path[len(rule.folder) + 1 if rule.folder else 0 :]):
            return not rule.is_negated
    return False


def _parse_rule(line: str, folder: str) -> IgnoreRule | None:
    pattern = re.sub(r"(?<!\\) +$", "", line)
    if not pattern or pattern.startswith("#") or len(pattern) > PATTERN_CHARACTERS_MAX:
        return None
    negated = pattern.startswith("!")
    pattern = pattern[1:] if negated else pattern
    only_folders = pattern.endswith("/")
    pattern = pattern.rstrip("/") if only_folders else pattern
    if not pattern:
        return None
    anchored = "/" in pattern
    expression = _translate(pattern.removeprefix("/"))
    try:
        compiled = re.compile(expression if anchored else f"(?:.*/)?{expression}", re.DOTALL)
    except re.error:
        return None
    return IgnoreRule(folder, compiled, negated, only_folders)


def _translate(pattern: str) -> str:
    """Translate a pattern to a regular expression over `/`-separated paths."""
    expression, position = "", 0
    while position < len(pattern):
        rest = pattern[position:]
        if rest.startswith("**/") and (position == 0 or pattern[position - 1] == "/"):
            expression, position = expression + "(?:.*/)?", position + 3
        elif rest == "**" and (position == 0 or pattern[position - 1] == "/"):
            expression, position = expression + ".+", position + 2
        elif rest[0] == "*":
            position += len(rest) - len(rest.lstrip("*"))
            expression += "[^/]*"
        elif rest[0] == "?":
            expression, position = expression + "[^/]", position + 1
        elif rest[0] == "[" and (bracket := re.match(r"\[([!^]?)(\]?(?:\\.|[^\]\\])*)\]", rest)):
            inner = re.sub(r"([\[&~|])", r"\\\1", bracket[2])
            inner = rf"\]{inner[1:]}" if inner.startswith("]") else inner
            expression += f"(?!/)[{'^' if bracket[1] else ''}{inner}]"
            position += len(bracket[0])
        elif rest[0] == "\\" and len(rest) > 1:
            expression, position = expression + re.escape(rest[1]), position + 2
        else:
            expression, position = expression + re.escape(rest[0]), position + 1
    return expression
