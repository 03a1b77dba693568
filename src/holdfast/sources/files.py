"""How a file is read that may be anything: bounded, never waiting, never through a link at its end."""

import errno
import os
import stat
from typing import NamedTuple

_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Stamp(NamedTuple):
    """By what a change of a file is noticed without reading it."""

    mtime_ns: int
    size_bytes: int
    inode: int


class Regular(NamedTuple):
    """The start of a regular file."""

    raw: bytes
    stamp: Stamp


def read_regular(path: str | os.PathLike[str], bytes_max: int) -> Regular | None:
    """At most `bytes_max` bytes; None for what is no regular file, without waiting for what a pipe may say."""
    opened = os.open(path, _OPEN_FLAGS)
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            return None
        # A byte more than there should be, so that a short answer is the end of the file.
        wanted = min(bytes_max, status.st_size + 1)
        raw = os.read(opened, wanted)
        if len(raw) == wanted < bytes_max:
            raw += _rest(opened, bytes_max - wanted)
        return Regular(raw, stamp_of(status))
    finally:
        os.close(opened)


def _rest(opened: int, bytes_max: int) -> bytes:
    """Of a file that has grown since, or never told its size."""
    parts: list[bytes] = []
    while bytes_max > 0 and (part := os.read(opened, min(bytes_max, 65_536))):
        parts.append(part)
        bytes_max -= len(part)
    return b"".join(parts)


def stamp_of(status: os.stat_result) -> Stamp:
    return Stamp(status.st_mtime_ns, status.st_size, status.st_ino)


def cannot_read(error: OSError | ValueError) -> str:
    # By its number: the system's own words differ from locale to locale.
    name = errno.errorcode.get(error.errno or 0) if isinstance(error, OSError) else None
    return f"cannot be read ({name or type(error).__name__})"
