"""Reads the input files of a migration, and writes its proposal to a folder for people to review, edit and publish."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.errors import UserError
from holdfast.instructions.manifest.validate import ManifestDraft, SubmittedApproval
from holdfast.instructions.migration.proposal import MigrationProposal
from holdfast.instructions.migration.sections import SourceFile, find_imports
from holdfast.instructions.models import ManifestEntry, MigrationMode
from holdfast.instructions.units.files import FILE_BYTES_MAX as UNIT_BYTES_MAX
from holdfast.instructions.uri import SEGMENT_PATTERN
from holdfast.sources.confined_paths import (
    EscapeError,
    PathError,
    locate_path,
    open_parent,
    read_regular_at,
    resolve_roots,
)
from holdfast.sources.files import decode_text, describe_read_error, find_git_root, format_path, read_regular_file

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


MANIFEST_FILE = "manifest.json"
MANIFEST_BYTES_MAX = 2_000_000


class ManifestFile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`always_rules` are the rules of the agent's boot stub; None leaves the agent's rules unchanged."""

    agent_id: str
    version: str
    entries: tuple[ManifestEntry, ...]
    migration_mode: MigrationMode | None = None
    always_rules: tuple[str, ...] | None = None
    approvals: tuple[SubmittedApproval, ...] = ()

    @property
    def draft(self) -> ManifestDraft:
        return ManifestDraft(self.version, self.entries, self.migration_mode)


class InstructionFolder(msgspec.Struct, frozen=True):
    """`texts` are by unit name, from the files `NAME.md`."""

    manifest: ManifestFile
    texts: dict[str, str]


def write_instruction_folder(proposal: MigrationProposal, folder: Path) -> None:
    """Write into a new or empty folder; never overwrites. Raises UserError."""
    rules = tuple(rule.text for rule in proposal.rules)
    draft = proposal.draft
    manifest = ManifestFile(proposal.agent_id, draft.version, draft.entries, draft.migration_mode, rules)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"{folder} is not empty: choose a new folder, or remove it")
        for unit in proposal.units:
            _write(folder / f"{unit.name}.md", unit.content + "\n")
        _write(folder / MANIFEST_FILE, msgspec.json.format(msgspec.json.encode(manifest)).decode() + "\n")
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from error


def read_instruction_folder(folder: Path) -> InstructionFolder:
    """A unit without a file has no text here, but may have one in the service. Raises UserError."""
    raw = _read(folder / MANIFEST_FILE, MANIFEST_BYTES_MAX)
    if raw is None:
        raise UserError(f"{folder} has no {MANIFEST_FILE}: create one with `holdfast instructions migrate --out`")
    try:
        manifest = msgspec.json.decode(raw, type=ManifestFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{folder / MANIFEST_FILE}: {error}") from error
    texts: dict[str, str] = {}
    for entry in manifest.entries:
        if not SEGMENT_PATTERN.fullmatch(entry.name):
            continue
        unit = _read(folder / f"{entry.name}.md", UNIT_BYTES_MAX)
        if unit is not None:
            try:
                texts[entry.name] = unit.decode("utf-8").strip("\n")
            except UnicodeDecodeError as error:
                raise UserError(f"{folder / entry.name}.md is not UTF-8") from error
    return InstructionFolder(manifest, texts)


def _write(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8") as file:
        file.write(text)


def _read(path: Path, bytes_max: int) -> bytes | None:
    try:
        file = read_regular_file(path, bytes_max + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: {describe_read_error(error)}") from error
    if file is None or len(file.raw) > bytes_max:
        raise UserError(f"{path} is not a regular file of at most {bytes_max} bytes")
    return file.raw
