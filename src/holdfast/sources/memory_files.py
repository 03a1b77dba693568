"""Memory files that persist between sessions: MEMORY.md of a workspace and USER.md of a user.

Edits hold a lock across processes and are written atomically, so that no edit of another session is lost.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.clock import Clock
from holdfast.errors import UserError
from holdfast.sources.confined_paths import (
    EscapeError,
    LocatedPath,
    PathError,
    describe_os_error,
    open_parent,
    read_regular_at,
    resolve_roots,
    write_atomically,
)
from holdfast.sources.files import cut_utf8, decode_text

LOCK_SECONDS_MAX = 5.0
Operation = Literal["add", "replace", "consolidate"]
_LOCK_POLL_SECONDS = 0.01
_READ_BYTES_MAX = 1_000_000
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class MemoryFile(msgspec.Struct, frozen=True):
    """A memory file, its heading in the prompt, and its soft and hard size limits.

    `creates_folder`: its folder is created if it is missing.
    """

    name: str
    heading: str
    path: LocatedPath
    soft_bytes_max: int
    hard_bytes_max: int
    creates_folder: bool = False


class MemoryEdit(msgspec.Struct, frozen=True):
    """The content of a file before and after an edit."""

    operation: Operation
    before: bytes
    after: bytes

    @property
    def entries_evicted(self) -> int:
        """The number of lines that the edit removed."""
        return max(0, _count_entries(self.before) - _count_entries(self.after))


def workspace_memory(workspace: Path) -> MemoryFile:
    """A workspace is untrusted: a symlink in it that leads out is not followed."""
    located = LocatedPath(resolve_roots(workspace).workspace, (".holdfast", "MEMORY.md"), ".holdfast/MEMORY.md")
    # Sizes are kept small because the whole file is sent with every prompt.
    return MemoryFile("MEMORY.md", "## Workspace memory (MEMORY.md)", located, 2048, 4096)


def user_memory(home: Path) -> MemoryFile:
    """The user's own folder is trusted: symlinks in it are followed."""
    real = Path(os.path.realpath(home / "USER.md"))
    located = LocatedPath(real.parent, (real.name,), "USER.md")
    return MemoryFile("USER.md", "## User context (USER.md)", located, 1536, 3072, creates_folder=True)


def render_memory(file: MemoryFile) -> str:
    """The file under its heading; empty if the file is empty, missing or unreadable."""
    try:
        with open_parent(file.path) as (folder, name):
            raw = read_regular_at(folder, name, _READ_BYTES_MAX)
    except (EscapeError, PathError):
        return ""
    text, cut = cut_utf8(decode_text(raw).strip(), file.hard_bytes_max)
    if not text:
        return ""
    note = f"\n[{file.name} is longer than {file.hard_bytes_max} bytes; the rest is left out]" if cut else ""
    return f"{file.heading}\n{text.rstrip()}{note}"


def add_entry(file: MemoryFile, text: str) -> MemoryEdit:
    """Append a line, unless the file already has it."""
    line = " ".join(text.split())
    if not line:
        raise UserError("there is nothing to add: the text is empty")

    def change(before: str) -> str:
        if line in before.split("\n"):
            return before
        gap = "" if not before or before.endswith("\n") else "\n"
        return f"{before}{gap}{line}\n"

    return _edit(file, "add", change)


def replace_entry(file: MemoryFile, old: str, new: str) -> MemoryEdit:
    """Replace a text that occurs exactly once."""
    if not old:
        raise UserError("there is nothing to replace: the old text is empty")

    def change(before: str) -> str:
        at = before.find(old)
        if at < 0:
            raise UserError(f"the old text does not occur in {file.name}; give it exactly as it stands there")
        if before.find(old, at + 1) >= 0:
            raise UserError(f"the old text occurs more than once in {file.name}; give more of what surrounds it")
        return before[:at] + new + before[at + len(old) :]

    return _edit(file, "replace", change)


def consolidate(file: MemoryFile, text: str) -> MemoryEdit:
    """Replace the whole content."""
    return _edit(file, "consolidate", lambda before: f"{text.strip()}\n" if text.strip() else "")


def _edit(file: MemoryFile, operation: Operation, change: Callable[[str], str]) -> MemoryEdit:
    """Read, change and write under the lock; a change that would exceed the hard limit is refused."""
    try:
        if file.creates_folder:
            _make_root(file)
        with open_parent(file.path, make_folders=True) as (folder, name), _hold_lock(folder, f"{name}.lock", file):
            before = _read_raw(folder, name)
            text = change(before.decode("utf-8", "surrogateescape").replace("\r\n", "\n"))
            after = text.encode("utf-8", "surrogateescape")
            if len(after) > file.hard_bytes_max:
                raise UserError(
                    f"{file.name} may have {file.hard_bytes_max} bytes and would have {len(after)}; nothing was "
                    "written: consolidate it first"
                )
            if after != before:
                write_atomically(folder, name, after)
    except EscapeError as error:
        raise UserError(f"{file.name} is not written: {error}") from None
    except PathError as error:
        raise UserError(f"{file.name} cannot be written: {error}") from None
    return MemoryEdit(operation, before, after)


def _make_root(file: MemoryFile) -> None:
    """Create the user's folder, which is missing before the first use."""
    try:
        file.path.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PathError(f"its folder {describe_os_error(error)}") from None


def _read_raw(folder: int, name: str) -> bytes:
    try:
        return read_regular_at(folder, name, _READ_BYTES_MAX)
    except FileNotFoundError:
        return b""


@contextlib.contextmanager
def _hold_lock(folder: int, name: str, file: MemoryFile, monotonic: Clock = time.monotonic) -> Iterator[None]:
    """A lock held by one edit at a time across processes; the kernel releases it if the process dies."""
    descriptor = os.open(name, _LOCK_FLAGS, 0o600, dir_fd=folder)
    try:
        deadline = monotonic() + LOCK_SECONDS_MAX
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if monotonic() >= deadline:
                    raise UserError(f"{file.name} is being written by somebody else; try again later") from None
                time.sleep(_LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _count_entries(raw: bytes) -> int:
    return sum(bool(line.strip()) for line in raw.splitlines())
