"""Check, read and write the files of path entries, confined to the agent's own folder."""

import os
from pathlib import Path

from holdfast.errors import InstructionError
from holdfast.instructions.models import ManifestEntry
from holdfast.sources.confined_paths import (
    EscapeError,
    PathError,
    check_path_inside,
    locate_path,
    open_parent,
    read_regular_at,
    resolve_roots,
    write_atomically,
)

FILE_BYTES_MAX = 200_000


def check_entry_path(root: Path | None, agent_id: str, entry: ManifestEntry) -> None:
    """Raises InstructionError `manifest_entry_invalid` for a path that escapes the root, directly or by a symlink."""
    assert entry.path is not None
    outside = InstructionError(
        "manifest_entry_invalid",
        f"entry {entry.name[:80]!a}: its path is outside of the agent's instruction root",
        details={"unit": entry.name[:200]},
    )
    if root is None:
        raise _missing_root_error()
    if not entry.path or os.path.isabs(entry.path):
        raise outside
    try:
        check_path_inside(resolve_roots(root / agent_id), entry.path)
    except (EscapeError, PathError) as error:
        raise outside from error


def read_entry_file(root: Path | None, agent_id: str, path: str) -> str | None:
    """None if there is no such file below the root, or it is too large or not UTF-8."""
    if root is None or os.path.isabs(path):
        return None
    try:
        with open_parent(locate_path(resolve_roots(root / agent_id), path)) as (folder, name):
            # One byte more than allowed tells a file that is too large from one that just fits.
            raw = read_regular_at(folder, name, FILE_BYTES_MAX + 1)
    except (EscapeError, PathError, OSError):
        return None
    try:
        return raw.decode("utf-8") if len(raw) <= FILE_BYTES_MAX else None
    except UnicodeDecodeError:
        return None


def write_entry_file(root: Path | None, agent_id: str, entry: ManifestEntry, text: str) -> None:
    """Keep the file at the entry's path in step with the unit while both coexist. Raises InstructionError."""
    if root is None or entry.path is None:
        raise _missing_root_error()
    try:
        (root / agent_id).mkdir(parents=True, exist_ok=True)
        location = locate_path(resolve_roots(root / agent_id), entry.path, writing=True)
        with open_parent(location, make_folders=True) as (folder, name):
            write_atomically(folder, name, f"{text}\n".encode())
    except (EscapeError, PathError, OSError) as error:
        raise InstructionError("manifest_entry_invalid", f"the file of {entry.name!a} cannot be written") from error


def _missing_root_error() -> InstructionError:
    return InstructionError(
        "manifest_entry_invalid", "path entries require an instruction root, and none is configured"
    )
