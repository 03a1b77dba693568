"""How long outputs are kept that were too long to be sent: a month, a week if there are too many of them.

Each session has a folder of its own. It counts as used when an output is added to it, and when its session begins or is
resumed.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

OUTPUTS = "outputs"
"""The folder, in the user's home of Holdfast, that has a folder for each session with long outputs."""

DAY_SECONDS = 86_400
KEPT_SECONDS = 30 * DAY_SECONDS
KEPT_SECONDS_MIN = 7 * DAY_SECONDS
KEPT_BYTES_MAX = 2_000_000_000
FOLDERS_LOOKED_AT_MAX = 5_000

_SUFFIX = ".txt"


class KeptOutputs(msgspec.Struct, frozen=True):
    """The outputs of one session."""

    folder: Path
    used_at: float
    count: int = 0
    size_bytes: int = 0


def outputs_of(place: Path, session_id: str) -> KeptOutputs | None:
    """What is kept of one session below `place`; None where there is nothing."""
    if session_id in ("", "..") or Path(session_id).name != session_id:
        return None
    return _kept(place / session_id)


def mark_used(folder: Path) -> None:
    """From now on it counts as used, if it is there."""
    with contextlib.suppress(OSError):
        os.utime(folder, follow_symlinks=False)


def forget(kept: KeptOutputs) -> None:
    """Delete the files of one session and its folder; what is none of ours stays, and the folder with it."""
    with contextlib.suppress(OSError):
        for file in _files(kept.folder):
            with contextlib.suppress(OSError):
                os.unlink(file.path)
        os.rmdir(kept.folder)


def forget_old(place: Path, *, now: float, bytes_max: int = KEPT_BYTES_MAX) -> tuple[Path, ...]:
    """Delete what nobody used for a month, and of what was not used for a week the oldest if there is too much in all.

    What was deleted. Nothing here fails: what cannot be deleted stays.
    """
    known = sorted(_folders(place), key=lambda one: (one.used_at, str(one.folder)))
    excess = sum(one.size_bytes for one in known) - bytes_max
    gone = []
    for one in known:
        unused = now - one.used_at
        if unused > KEPT_SECONDS or (excess > 0 and unused > KEPT_SECONDS_MIN):
            forget(one)
            excess -= one.size_bytes
            gone.append(one.folder)
    return tuple(gone)


def _folders(place: Path) -> Iterator[KeptOutputs]:
    try:
        with os.scandir(place) as found:
            for _, entry in zip(range(FOLDERS_LOOKED_AT_MAX), found, strict=False):
                kept = _kept(Path(entry.path))
                if kept is not None:
                    yield kept
    except OSError:
        return


def _kept(folder: Path) -> KeptOutputs | None:
    try:
        seen = os.lstat(folder)
        if not stat.S_ISDIR(seen.st_mode):
            return None
        sizes = [file.stat(follow_symlinks=False) for file in _files(folder)]
    except OSError:
        return None
    used_at = max((seen.st_mtime, *(one.st_mtime for one in sizes)))
    return KeptOutputs(folder, used_at, len(sizes), sum(one.st_size for one in sizes))


def _files(folder: Path) -> "list[os.DirEntry[str]]":
    with os.scandir(folder) as found:
        return [one for one in found if one.name.endswith(_SUFFIX) and one.is_file(follow_symlinks=False)]
