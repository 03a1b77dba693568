"""Reads files of unknown kind safely: bounded, without blocking, without following a final symlink."""

import errno
import os
import stat
from typing import NamedTuple

# O_NONBLOCK: opening a FIFO must not wait for a writer.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Stamp(NamedTuple):
    """File attributes that reveal a change without reading the file."""

    mtime_ns: int
    size_bytes: int
    inode: int


class Regular(NamedTuple):
    """The start of a regular file."""

    raw: bytes
    stamp: Stamp


def read_regular(path: str | os.PathLike[str], bytes_max: int) -> Regular | None:
    """At most `bytes_max` bytes; None if it is not a regular file. Never waits for a pipe."""
    descriptor = os.open(path, _OPEN_FLAGS)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        # Ask for one byte more than the size, so that a short read proves the end of the file.
        first_bytes = min(bytes_max, status.st_size + 1)
        raw = os.read(descriptor, first_bytes)
        if len(raw) == first_bytes < bytes_max:
            raw += _read_rest(descriptor, bytes_max - first_bytes)
        return Regular(raw, stamp_of(status))
    finally:
        os.close(descriptor)


def _read_rest(descriptor: int, bytes_max: int) -> bytes:
    """The rest of a file that has grown meanwhile, or reports no size (as in /proc)."""
    chunks: list[bytes] = []
    while bytes_max > 0 and (chunk := os.read(descriptor, min(bytes_max, 65_536))):
        chunks.append(chunk)
        bytes_max -= len(chunk)
    return b"".join(chunks)


def stamp_of(status: os.stat_result) -> Stamp:
    return Stamp(status.st_mtime_ns, status.st_size, status.st_ino)


def cannot_read(error: OSError | ValueError) -> str:
    # By errno, because the system's messages depend on the locale.
    name = errno.errorcode.get(error.errno or 0) if isinstance(error, OSError) else None
    return f"cannot be read ({name or type(error).__name__})"
