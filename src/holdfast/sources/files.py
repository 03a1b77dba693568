"""Locates the folders of a user and a project, and reads files of unknown kind safely, reporting on what was skipped.

Reading is bounded, never blocks and follows no final symlink; text is decoded the same in every locale.
"""

import codecs
import errno
import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import UserError


def user_home(environ: Mapping[str, str]) -> Path:
    """The user's home folder, shared with other programs."""
    try:
        return Path(environ.get("HOME") or Path.home())
    except RuntimeError as error:
        raise UserError("there is no home folder: set HOME or HOLDFAST_HOME") from error


def holdfast_home(environ: Mapping[str, str]) -> Path:
    """HOLDFAST_HOME, or `.holdfast` in the home folder."""
    if environ.get("HOLDFAST_HOME"):
        return Path(environ["HOLDFAST_HOME"])
    return user_home(environ) / ".holdfast"


def find_git_root(cwd: Path) -> Path | None:
    """The git root with symlinks resolved; None if there is none or `cwd` cannot be read."""
    try:
        here = Path(os.path.realpath(cwd, strict=True))
        for folder in (here, *here.parents):
            git = folder / ".git"
            # In a linked worktree or a submodule, `.git` is a file that names the real folder.
            if git.is_dir() or git.is_file():
                return folder
    except (OSError, ValueError):
        return None
    return None


# O_NONBLOCK: opening a FIFO must not wait for a writer.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class FileStamp(NamedTuple):
    """File attributes that reveal a change without reading the file."""

    mtime_ns: int
    size_bytes: int
    inode: int


class FileContent(NamedTuple):
    """The start of a regular file."""

    raw: bytes
    stamp: FileStamp


def read_regular_file(path: str | os.PathLike[str], bytes_max: int) -> FileContent | None:
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
        return FileContent(raw, make_stamp(status))
    finally:
        os.close(descriptor)


def _read_rest(descriptor: int, bytes_max: int) -> bytes:
    """The rest of a file that has grown meanwhile, or reports no size (as in /proc)."""
    chunks: list[bytes] = []
    while bytes_max > 0 and (chunk := os.read(descriptor, min(bytes_max, 65_536))):
        chunks.append(chunk)
        bytes_max -= len(chunk)
    return b"".join(chunks)


def make_stamp(status: os.stat_result) -> FileStamp:
    return FileStamp(status.st_mtime_ns, status.st_size, status.st_ino)


def describe_read_error(error: OSError | ValueError) -> str:
    # By errno, because the system's messages depend on the locale.
    name = errno.errorcode.get(error.errno or 0) if isinstance(error, OSError) else None
    return f"cannot be read ({name or type(error).__name__})"


class SourceFinding(msgspec.Struct, frozen=True):
    """`subject` is the file, folder or command; `reason` never quotes its content."""

    subject: str
    reason: str


_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
_VISIBLE = dict.fromkeys(_CONTROLS, "\ufffd")


def decode_text(raw: bytes, *, whole: bool = True) -> str:
    """A file's text without byte order mark, with LF line ends; NUL and invalid UTF-8 become U+FFFD.

    If `raw` is only the start of a file, a character that is cut in two at the end is dropped.
    """
    text, _ = codecs.utf_8_decode(raw.removeprefix(codecs.BOM_UTF8), "replace", whole)
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def parse_toml(text: str) -> dict[str, Any]:
    """Raises ValueError for whatever is not TOML. A number of thousands of digits and deep nesting end tomllib in other
    errors than its own."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:
        raise ValueError("a number has too many digits") from None


def to_one_line(raw: bytes) -> str:
    """Text that cannot break out of its line: control characters and line breaks become U+FFFD."""
    return raw.decode("utf-8", "replace").translate(_VISIBLE)


def format_path(path: str | os.PathLike[str]) -> str:
    """A path as one line, with `/` between its parts."""
    if isinstance(path, str) and os.sep == "/" and path.isascii() and path.isprintable():
        return path
    try:
        # The raw bytes of the name, because Python's decoding of them depends on the locale.
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raw = os.fspath(path).encode("utf-8", "surrogatepass")
    return to_one_line(raw).replace(os.sep, "/")


def cut_utf8(text: str, bytes_max: int) -> tuple[str, bool]:
    """The longest start of the text within `bytes_max` bytes of UTF-8, and whether anything was cut."""
    raw = text.encode()
    if len(raw) <= bytes_max:
        return text, False
    return raw[:bytes_max].decode("utf-8", "ignore"), True
