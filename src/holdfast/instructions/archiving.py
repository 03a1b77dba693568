"""What becomes of files whose text has moved into units: kept apart, with a note of where it is now."""

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
    """Old and new places, relative to the root."""

    moved: tuple[tuple[str, str], ...]


def archive(library: Library, said: str, files: Sequence[Path], *, root: Path) -> Archived:
    """Only once the manifest points at no file any more; nothing is written over. Raises UserError."""
    agent = library.records.agent(said)
    manifest = library.records.manifest(agent.id) if agent else None
    if manifest is None:
        raise no_manifest(said)
    if manifest.migration_mode != "stigmem":
        raise InstructionError(
            "archive_refused", f"the manifest is one of migration_mode {manifest.migration_mode}: promote it first"
        )
    base = Path(os.path.realpath(root))
    places = [(_inside(file, base), base / LEGACY / _inside(file, base)) for file in files]
    taken = next((new for _, new in places if new.exists()), None)
    if taken is not None:
        raise UserError(f"{taken} is there already: remove or rename it first")
    for old, new in places:
        _move(base / old, new, note=f"<!-- Moved: these instructions are now at {manifest.fact_uri} -->\n")
    return Archived(tuple((str(old), str(new.relative_to(base))) for old, new in places))


def _inside(file: Path, base: Path) -> Path:
    real = Path(os.path.realpath(file))
    if not real.is_relative_to(base) or not real.is_file():
        raise UserError(f"{file} is no file below {base}")
    return real.relative_to(base)


def _move(old: Path, new: Path, *, note: str) -> None:
    """First the copy, then the removal: a failure between them loses nothing."""
    try:
        content = old.read_bytes()
        new.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(note.encode() + content)
        old.unlink()
    except OSError as error:
        raise UserError(f"{old}: {cannot_read(error)}") from error
