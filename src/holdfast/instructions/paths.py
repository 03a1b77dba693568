"""Check and read the files of path entries, confined to the agent's own folder."""

import os
from pathlib import Path

from holdfast.instructions.failures import InstructionError
from holdfast.instructions.values import Entry
from holdfast.sources.confined import EscapeError, PathError, check_inside, locate, opened_place, read_regular, roots_of

FILE_BYTES_MAX = 200_000


def check_path(root: Path | None, agent_id: str, entry: Entry) -> None:
    """Raises InstructionError `manifest_entry_invalid` for a path that escapes the root, directly or by a symlink."""
    assert entry.path is not None
    outside = InstructionError(
        "manifest_entry_invalid",
        f"entry {entry.name[:80]!a}: its path is outside of the agent's instruction root",
        details={"unit": entry.name[:200]},
    )
    if root is None:
        raise InstructionError(
            "manifest_entry_invalid", "path entries require an instruction root, and none is configured"
        )
    if not entry.path or os.path.isabs(entry.path):
        raise outside
    try:
        check_inside(roots_of(root / agent_id), entry.path)
    except (EscapeError, PathError) as error:
        raise outside from error


def read_path(root: Path | None, agent_id: str, path: str) -> str | None:
    """None if there is no such file below the root, or it is too large or not UTF-8."""
    if root is None or os.path.isabs(path):
        return None
    try:
        with opened_place(locate(roots_of(root / agent_id), path)) as (folder, name):
            # One byte more than allowed tells a file that is too large from one that just fits.
            raw = read_regular(folder, name, FILE_BYTES_MAX + 1)
    except (EscapeError, PathError, OSError):
        return None
    try:
        return raw.decode("utf-8") if len(raw) <= FILE_BYTES_MAX else None
    except UnicodeDecodeError:
        return None
