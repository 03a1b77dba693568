"""Read the input files of a migration: the named ones, rule files in folders, and their imports below the root."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.errors import UserError
from holdfast.instructions.migration.sections import SourceFile, find_imports
from holdfast.sources.confined_paths import (
    EscapeError,
    PathError,
    locate_path,
    open_parent,
    read_regular_at,
    resolve_roots,
)
from holdfast.sources.directories import find_git_root
from holdfast.sources.files import decode_text, describe_read_error, format_path

FILE_BYTES_MAX = 400_000
FILES_MAX = 500
IMPORT_DEPTH_MAX = 5
RULE_SUFFIXES = (".md", ".mdc", ".txt")


class MigrationInput(msgspec.Struct, frozen=True):
    """Each file once, directly followed by its imports."""

    files: tuple[SourceFile, ...]
    warnings: tuple[str, ...] = ()


def read_migration_files(paths: Sequence[Path], *, root: Path | None = None) -> MigrationInput:
    """Raises UserError for a named file that cannot be read; an unreadable import is a warning."""
    return _FileReader(root).read(paths)


class _FileReader:
    def __init__(self, root: Path | None) -> None:
        self._root = Path(os.path.realpath(root)) if root else None
        self._seen: set[Path] = set()
        self._files: list[SourceFile] = []
        self._warnings: list[str] = []

    def read(self, paths: Sequence[Path]) -> MigrationInput:
        for path in paths:
            files = sorted(_rule_files(path)) if path.is_dir() else [path]
            if not files:
                raise UserError(f"{path} has no files with the suffix {', '.join(RULE_SUFFIXES)}")
            for file in files:
                resolved = Path(os.path.realpath(file))
                root = self._root or find_git_root(resolved.parent) or resolved.parent
                if not resolved.is_relative_to(root):
                    raise UserError(f"{file} is outside of {root}: give another root with --root")
                try:
                    self._take(resolved, root, imported_by=None, depth=0)
                except (OSError, PathError, EscapeError) as error:
                    reason = describe_read_error(error) if isinstance(error, OSError) else str(error)
                    raise UserError(f"{file}: {reason}") from error
        return MigrationInput(tuple(self._files), tuple(self._warnings))

    def _take(self, resolved: Path, root: Path, *, imported_by: str | None, depth: int) -> None:
        if resolved in self._seen:
            return
        if len(self._files) >= FILES_MAX:
            raise UserError(f"more than {FILES_MAX} files: migrate them in parts")
        with open_parent(locate_path(resolve_roots(root), str(resolved.relative_to(root)))) as (folder, name):
            raw = read_regular_at(folder, name, FILE_BYTES_MAX + 1)
        display_path = format_path(resolved.relative_to(root))
        if len(raw) > FILE_BYTES_MAX:
            raise UserError(f"{display_path} has more than {FILE_BYTES_MAX} bytes: it is not an instruction file")
        self._seen.add(resolved)
        text = decode_text(raw)
        self._files.append(SourceFile(display_path, text, imported_by))
        for import_path in find_imports(text):
            self._follow(import_path, resolved, root, imported_by=display_path, depth=depth)

    def _follow(self, import_path: str, importer: Path, root: Path, *, imported_by: str, depth: int) -> None:
        """An `@name` that is not a file below the root is left as it is: it may name a person or a package."""
        looks_like_file = import_path.endswith(RULE_SUFFIXES)
        resolved = Path(os.path.realpath(importer.parent / os.path.expanduser(import_path)))
        try:
            if not resolved.is_relative_to(root):
                self._warn(imported_by, import_path, "it is outside of the root", is_file=looks_like_file)
            elif not resolved.is_file():
                self._warn(imported_by, import_path, "there is no such file", is_file=looks_like_file)
            elif depth >= IMPORT_DEPTH_MAX:
                reason = f"imports are followed at most {IMPORT_DEPTH_MAX} levels deep"
                self._warn(imported_by, import_path, reason, is_file=True)
            else:
                self._take(resolved, root, imported_by=imported_by, depth=depth + 1)
        except (OSError, ValueError, PathError, EscapeError):
            self._warn(imported_by, import_path, "it cannot be read", is_file=looks_like_file)

    def _warn(self, importer: str, import_path: str, reason: str, *, is_file: bool) -> None:
        if is_file:
            self._warnings.append(f"{importer}: the import {import_path[:80]!r} was not followed: {reason}")


def _rule_files(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        # In place: os.walk then skips the removed folders.
        folders[:] = sorted(name for name in folders if not name.startswith(".git") and name != "node_modules")
        yield from (Path(where, name) for name in names if name.endswith(RULE_SUFFIXES))
