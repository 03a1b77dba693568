"""Retention of spilled tool outputs: a month, or a week if they take too much space.

Each session has a folder of its own, which is used when an output is added to it and when its session is created or
resumed.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

OUTPUTS = "outputs"
"""The folder in Holdfast's home with a folder for each session that has long outputs."""

DAY_SECONDS = 86_400
KEPT_SECONDS = 30 * DAY_SECONDS
KEPT_SECONDS_MIN = 7 * DAY_SECONDS
KEPT_BYTES_MAX = 2_000_000_000
# Bounds the time that creating a session spends on the cleanup; the rest is looked at on later runs.
FOLDERS_LOOKED_AT_MAX = 5_000

_SUFFIX = ".txt"


class KeptOutputs(msgspec.Struct, frozen=True):
    """The spilled outputs of one session."""

    folder: Path
    used_at: float
    count: int = 0
    size_bytes: int = 0


def outputs_of(place: Path, session_id: str) -> KeptOutputs | None:
    """The outputs of one session below `place`; None if there are none."""
    # The id comes from a caller and must not lead out of the folder.
    if session_id in ("", "..") or Path(session_id).name != session_id:
        return None
    return _read_folder(place / session_id)


def mark_used(folder: Path) -> None:
    """Set the folder's time of last use to now, if it exists."""
    with contextlib.suppress(OSError):
        os.utime(folder, follow_symlinks=False)


def forget(outputs: KeptOutputs) -> None:
    """Delete the output files of one session and its folder; a folder with other files in it stays."""
    with contextlib.suppress(OSError):
        for file in _files(outputs.folder):
            with contextlib.suppress(OSError):
                os.unlink(file.path)
        os.rmdir(outputs.folder)


def forget_old(place: Path, *, now: float, bytes_max: int = KEPT_BYTES_MAX) -> tuple[Path, ...]:
    """Delete outputs unused for a month, and while all exceed `bytes_max` the oldest of those unused for a week.

    Returns the deleted folders. Never raises: what cannot be deleted stays.
    """
    # Least recently used first; the path makes the order deterministic.
    by_age = sorted(_folders(place), key=lambda outputs: (outputs.used_at, str(outputs.folder)))
    excess = sum(outputs.size_bytes for outputs in by_age) - bytes_max
    deleted = []
    for outputs in by_age:
        unused_seconds = now - outputs.used_at
        if unused_seconds > KEPT_SECONDS or (excess > 0 and unused_seconds > KEPT_SECONDS_MIN):
            forget(outputs)
            excess -= outputs.size_bytes
            deleted.append(outputs.folder)
    return tuple(deleted)


def _folders(place: Path) -> Iterator[KeptOutputs]:
    try:
        with os.scandir(place) as entries:
            for _, entry in zip(range(FOLDERS_LOOKED_AT_MAX), entries, strict=False):
                outputs = _read_folder(Path(entry.path))
                if outputs is not None:
                    yield outputs
    except OSError:
        return


def _read_folder(folder: Path) -> KeptOutputs | None:
    try:
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode):
            return None
        files = [entry.stat(follow_symlinks=False) for entry in _files(folder)]
    except OSError:
        return None
    used_at = max((status.st_mtime, *(file.st_mtime for file in files)))
    return KeptOutputs(folder, used_at, len(files), sum(file.st_size for file in files))


def _files(folder: Path) -> "list[os.DirEntry[str]]":
    with os.scandir(folder) as entries:
        return [entry for entry in entries if entry.name.endswith(_SUFFIX) and entry.is_file(follow_symlinks=False)]
