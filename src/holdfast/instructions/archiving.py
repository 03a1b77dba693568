"""Archive instruction files whose text has moved into units, with a comment that points at the manifest."""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.errors import UserError
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.library import Library, no_manifest
from holdfast.sources.files import cannot_read

LEGACY = Path("docs", "legacy-instructions")


class Archived(msgspec.Struct, frozen=True):
    """Pairs of old and new path, relative to the root."""

    moved: tuple[tuple[str, str], ...]


def archive(context: Library, agent_name: str, files: Sequence[Path], *, root: Path) -> Archived:
    """Move files to the archive once the manifest has no path entries; never overwrites. Raises UserError."""
    agent = context.records.agent(agent_name)
    manifest = context.records.manifest(agent.id) if agent else None
    if manifest is None:
        raise no_manifest(agent_name)
    if manifest.migration_mode != "stigmem":
        raise InstructionError(
            "archive_refused", f"the manifest has migration_mode {manifest.migration_mode}: promote it first"
        )
    base = Path(os.path.realpath(root))
    moves = [(_relative_path(file, base), base / LEGACY / _relative_path(file, base)) for file in files]
    existing = next((new for _, new in moves if new.exists()), None)
    if existing is not None:
        raise UserError(f"{existing} exists already: remove or rename it first")
    for old, new in moves:
        _move(base / old, new, note=f"<!-- Moved: these instructions are now at {manifest.fact_uri} -->\n")
    return Archived(tuple((str(old), str(new.relative_to(base))) for old, new in moves))


def _relative_path(file: Path, base: Path) -> Path:
    resolved = Path(os.path.realpath(file))
    if not resolved.is_relative_to(base) or not resolved.is_file():
        raise UserError(f"{file} is not a file below {base}")
    return resolved.relative_to(base)


def _move(old: Path, new: Path, *, note: str) -> None:
    """Copy first, then remove, so that a failure in between loses nothing."""
    try:
        content = old.read_bytes()
        new.parent.mkdir(parents=True, exist_ok=True)
        # O_EXCL: a file that appeared since the check is not overwritten.
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(note.encode() + content)
        old.unlink()
    except OSError as error:
        raise UserError(f"{old}: {cannot_read(error)}") from error
