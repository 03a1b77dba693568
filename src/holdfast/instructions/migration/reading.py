"""Which files a migration reads: those named, the rules in folders, and what they import from below the root."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.errors import UserError
from holdfast.instructions.migration.markdown import imports_of
from holdfast.instructions.migration.sections import SourceFile
from holdfast.sources.confined import EscapeError, PathError, locate, opened_place, read_regular, roots_of
from holdfast.sources.files import cannot_read
from holdfast.sources.root import find_git_root
from holdfast.sources.text import path_text, read_text

FILE_BYTES_MAX = 400_000
FILES_MAX = 500
IMPORT_DEPTH_MAX = 5
RULE_SUFFIXES = (".md", ".mdc", ".txt")


class Read(msgspec.Struct, frozen=True):
    """Each file once, what it imports right behind it."""

    files: tuple[SourceFile, ...]
    warnings: tuple[str, ...] = ()


def read_files(paths: Sequence[Path], *, root: Path | None = None) -> Read:
    """Raises UserError for a file that was named and cannot be read; an import that cannot is a warning."""
    return _Reading(root).read(paths)


class _Reading:
    def __init__(self, root: Path | None) -> None:
        self._root = Path(os.path.realpath(root)) if root else None
        self._seen: set[Path] = set()
        self._files: list[SourceFile] = []
        self._warnings: list[str] = []

    def read(self, paths: Sequence[Path]) -> Read:
        for path in paths:
            found = sorted(_rules(path)) if path.is_dir() else [path]
            if not found:
                raise UserError(f"{path} has no files that end in {', '.join(RULE_SUFFIXES)}")
            for one in found:
                real = Path(os.path.realpath(one))
                root = self._root or find_git_root(real.parent) or real.parent
                if not real.is_relative_to(root):
                    raise UserError(f"{one} is outside of {root}: name another with --root")
                try:
                    self._take(real, root, by=None, depth=0)
                except (OSError, PathError, EscapeError) as error:
                    reason = cannot_read(error) if isinstance(error, OSError) else str(error)
                    raise UserError(f"{one}: {reason}") from error
        return Read(tuple(self._files), tuple(self._warnings))

    def _take(self, real: Path, root: Path, *, by: str | None, depth: int) -> None:
        if real in self._seen:
            return
        if len(self._files) >= FILES_MAX:
            raise UserError(f"more than {FILES_MAX} files: migrate them in parts")
        with opened_place(locate(roots_of(root), str(real.relative_to(root)))) as (folder, name):
            raw = read_regular(folder, name, FILE_BYTES_MAX + 1)
        shown = path_text(real.relative_to(root))
        if len(raw) > FILE_BYTES_MAX:
            raise UserError(f"{shown} has more than {FILE_BYTES_MAX} bytes: it is no file of instructions")
        self._seen.add(real)
        text = read_text(raw)
        self._files.append(SourceFile(shown, text, by))
        for wanted in imports_of(text):
            self._follow(wanted, real, root, by=shown, depth=depth)

    def _follow(self, wanted: str, importer: Path, root: Path, *, by: str, depth: int) -> None:
        """An `@name` that is no file below the root is left as it stands: it may be a person's or a package's."""
        looks_like_file = wanted.endswith(RULE_SUFFIXES)
        real = Path(os.path.realpath(importer.parent / os.path.expanduser(wanted)))
        try:
            if not real.is_relative_to(root):
                self._warn(by, wanted, "it leads out of the root", is_file=looks_like_file)
            elif not real.is_file():
                self._warn(by, wanted, "there is no such file", is_file=looks_like_file)
            elif depth >= IMPORT_DEPTH_MAX:
                self._warn(by, wanted, f"imports are followed {IMPORT_DEPTH_MAX} deep", is_file=True)
            else:
                self._take(real, root, by=by, depth=depth + 1)
        except (OSError, ValueError, PathError, EscapeError):
            self._warn(by, wanted, "it cannot be read", is_file=looks_like_file)

    def _warn(self, by: str, wanted: str, reason: str, *, is_file: bool) -> None:
        if is_file:
            self._warnings.append(f"{by}: the import {wanted[:80]!r} was not followed: {reason}")


def _rules(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith(".git") and one != "node_modules")
        yield from (Path(where, name) for name in names if name.endswith(RULE_SUFFIXES))
