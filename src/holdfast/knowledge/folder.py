"""Where knowledge is kept: a folder that nothing leaves, files that are replaced whole, one writer at a time."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from holdfast.errors import UserError
from holdfast.sources.confined import (
    EscapeError,
    Located,
    PathError,
    opened_folder,
    opened_place,
    read_regular,
    write_atomically,
)

FILE_BYTES_MAX = 64_000_000
NAMES_MAX = 20_000

LEDGER = "ledger.jsonl"
QUARANTINE = "ledger.quarantine.jsonl"
DIGEST = "digest.md"
DISABLED = "disabled"
FILES = "files"

_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_APPEND_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class Disk(Protocol):
    """What a harvest does to the world; each step is done whole or not at all, but for an append that is cut short."""

    def read(self, name: str) -> bytes | None:
        """The file, or None where there is none."""

    def names(self, folder: str) -> tuple[str, ...]:
        """The regular names in a folder, sorted; none where there is no folder."""

    def replace(self, name: str, content: bytes) -> None: ...

    def replace_unless_changed(self, name: str, content: bytes, before: bytes | None) -> bool:
        """Whether it was done: not where the file no longer is what it was before."""

    def append(self, name: str, content: bytes) -> None: ...

    def remove(self, name: str) -> None:
        """The file is gone afterwards, whether or not it was there."""

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Raises UserError where another run holds it; who dies lets go of it."""


class KnowledgeFolder:
    """A workspace is not trusted: a link in it that leads out is not followed."""

    def __init__(self, root: Path, steps: tuple[str, ...], shown: str = "") -> None:
        self._root = Path(os.path.realpath(root))
        self._steps = steps
        self.shown = shown or "/".join(steps)

    @property
    def path(self) -> Path:
        return self._root.joinpath(*self._steps)

    def read(self, name: str) -> bytes | None:
        try:
            with opened_place(self._located(name)) as (folder, last):
                try:
                    return read_regular(folder, last, FILE_BYTES_MAX)
                except FileNotFoundError:
                    return None
        except EscapeError as error:
            raise UserError(f"knowledge is not read: {error}") from None
        except PathError as error:
            if not os.path.lexists(self.path):
                return None
            if str(error).endswith("does not exist"):
                return None
            raise UserError(f"knowledge cannot be read: {error}") from None

    def names(self, folder: str) -> tuple[str, ...]:
        try:
            with opened_place(self._located(folder)) as (above, name), opened_folder(above, name) as opened:
                found = sorted(os.listdir(opened))
        except (EscapeError, PathError):
            return ()
        return tuple(one for one in found if not one.startswith("."))[:NAMES_MAX]

    def replace(self, name: str, content: bytes) -> None:
        with self._writing(name) as (folder, last):
            write_atomically(folder, last, content)

    def replace_unless_changed(self, name: str, content: bytes, before: bytes | None) -> bool:
        with self._writing(name) as (folder, last):

            def still() -> bool:
                try:
                    # One byte more than is ever read: what is longer was not read whole, and is not to be cut off.
                    return read_regular(folder, last, FILE_BYTES_MAX + 1) == before
                except FileNotFoundError:
                    return before is None

            return write_atomically(folder, last, content, still=still)

    def append(self, name: str, content: bytes) -> None:
        with self._writing(name) as (folder, last):
            opened = os.open(last, _APPEND_FLAGS, 0o666, dir_fd=folder)
            try:
                written = 0
                while written < len(content):
                    written += os.write(opened, content[written:])
                os.fsync(opened)
            finally:
                os.close(opened)

    def remove(self, name: str) -> None:
        with self._writing(name) as (folder, last), contextlib.suppress(FileNotFoundError):
            os.unlink(last, dir_fd=folder)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        with self._writing(".lock") as (folder, last):
            opened = os.open(last, _LOCK_FLAGS, 0o600, dir_fd=folder)
        try:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{self.shown} is being written by another run; try again when it is over") from None
            yield
        finally:
            os.close(opened)

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[tuple[int, str]]:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with opened_place(self._located(name), make_folders=True) as place:
                yield place
        except EscapeError as error:
            raise UserError(f"knowledge is not written: {error}") from None
        except PathError as error:
            raise UserError(f"knowledge cannot be written: {error}") from None

    def _located(self, name: str) -> Located:
        steps = (*self._steps, *name.split("/"))
        return Located(self._root, steps, "/".join(steps))


def knowledge_folder(workspace: Path | None, home: Path) -> KnowledgeFolder:
    """The workspace's own; without a workspace, the user's."""
    if workspace is None:
        return KnowledgeFolder(home, ("knowledge",), "$HOLDFAST_HOME/knowledge")
    return KnowledgeFolder(workspace, (".holdfast", "knowledge"))
