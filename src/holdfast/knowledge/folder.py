"""The knowledge folder: confined paths, files replaced atomically, one writer at a time."""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from holdfast.errors import UserError
from holdfast.sources import confined_paths
from holdfast.types.json_encoding import sha256_hex

FILE_BYTES_MAX = 64_000_000
NAMES_MAX = 20_000
LEDGER_FILE = "ledger.jsonl"
QUARANTINE_FILE = "ledger.quarantine.jsonl"
DIGEST_FILE = "digest.md"
DISABLED_FILE = "disabled"
NOTES_FOLDER = "files"
SHARED_FOLDER = "shared"
USERS_FOLDER = "users"
OWNER_FILE = "owner"
PENDING_FILE = "pending.json"
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_APPEND_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class KnowledgeFiles(Protocol):
    """The file operations of a harvest; each is atomic, except that an append may be cut short by a crash."""

    def read(self, name: str) -> bytes | None:
        """The file's content, or None if it does not exist."""

    def list_names(self, folder: str) -> tuple[str, ...]:
        """The names in a folder that are not hidden, sorted; empty if there is no folder."""

    def replace(self, name: str, content: bytes) -> None: ...

    def replace_unless_changed(self, name: str, content: bytes, before: bytes | None) -> bool:
        """Replace the file unless its content is no longer `before`; whether it was replaced."""

    def append(self, name: str, content: bytes) -> None: ...

    def remove(self, name: str) -> None:
        """Remove the file if it exists."""

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Raises UserError if another run holds the lock; it is released when its holder's process ends."""


class KnowledgeFolder:
    """A workspace is untrusted: a symlink that leaves it is not followed."""

    def __init__(self, root: Path, steps: tuple[str, ...], shown: str = "") -> None:
        self._root = Path(os.path.realpath(root))
        self._steps = steps
        self.display_path = shown or "/".join(steps)

    def subfolder(self, *steps: str) -> "KnowledgeFolder":
        return KnowledgeFolder(self._root, (*self._steps, *steps), "/".join((self.display_path, *steps)))

    @property
    def path(self) -> Path:
        return self._root.joinpath(*self._steps)

    def read(self, name: str) -> bytes | None:
        try:
            with confined_paths.open_parent(self._locate(name)) as (folder, last):
                try:
                    return confined_paths.read_regular_at(folder, last, FILE_BYTES_MAX)
                except FileNotFoundError:
                    return None
        except confined_paths.EscapeError as error:
            raise UserError(f"knowledge is not read: {error}") from None
        except confined_paths.PathError as error:
            if not os.path.lexists(self.path) or str(error).endswith("does not exist"):
                return None
            raise UserError(f"knowledge cannot be read: {error}") from None

    def list_names(self, folder: str) -> tuple[str, ...]:
        try:
            with (
                confined_paths.open_parent(self._locate(folder)) as (parent, name),
                confined_paths.open_folder(parent, name) as descriptor,
            ):
                names = sorted(os.listdir(descriptor))
        except (confined_paths.EscapeError, confined_paths.PathError):
            return ()
        return tuple(name for name in names if not name.startswith("."))[:NAMES_MAX]

    def replace(self, name: str, content: bytes) -> None:
        with self._open_for_writing(name) as (folder, last):
            confined_paths.write_atomically(folder, last, content)

    def replace_unless_changed(self, name: str, content: bytes, before: bytes | None) -> bool:
        with self._open_for_writing(name) as (folder, last):

            def is_unchanged() -> bool:
                try:
                    # One byte more than `read` returns: a longer file was not read whole and must not be truncated.
                    return confined_paths.read_regular_at(folder, last, FILE_BYTES_MAX + 1) == before
                except FileNotFoundError:
                    return before is None

            return confined_paths.write_atomically(folder, last, content, is_current=is_unchanged)

    def append(self, name: str, content: bytes) -> None:
        with self._open_for_writing(name) as (folder, last):
            descriptor = os.open(last, _APPEND_FLAGS, 0o666, dir_fd=folder)
            try:
                written = 0
                while written < len(content):
                    written += os.write(descriptor, content[written:])
                # The ledger must be on disk before a page changes.
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove(self, name: str) -> None:
        with self._open_for_writing(name) as (folder, last), contextlib.suppress(FileNotFoundError):
            os.unlink(last, dir_fd=folder)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        with self._open_for_writing(".lock") as (folder, last):
            descriptor = os.open(last, _LOCK_FLAGS, 0o600, dir_fd=folder)
        try:
            try:
                # Released by the kernel when the process dies, so that a crash leaves no stale lock.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"{self.display_path} is being written by another run; try again when it has ended"
                raise UserError(message) from None
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _open_for_writing(self, name: str) -> Iterator[tuple[int, str]]:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with confined_paths.open_parent(self._locate(name), make_folders=True) as folder_and_name:
                yield folder_and_name
        except confined_paths.EscapeError as error:
            raise UserError(f"knowledge is not written: {error}") from None
        except confined_paths.PathError as error:
            raise UserError(f"knowledge cannot be written: {error}") from None

    def _locate(self, name: str) -> confined_paths.LocatedPath:
        steps = (*self._steps, *name.split("/"))
        return confined_paths.LocatedPath(self._root, steps, "/".join(steps))


def open_knowledge_folder(workspace: Path | None, home: Path, *, user: str | None = None) -> KnowledgeFolder:
    """A user's folder in the workspace, or without a workspace in the home; None is the current user.

    The current user's folder is the top one, so that folders from before there were owners are theirs. Each owner has a
    folder of their own, rather than a mark on each line: nothing that reads one folder can quote another user.
    """
    if workspace is None:
        top = KnowledgeFolder(home, ("knowledge",), "$HOLDFAST_HOME/knowledge")
    else:
        top = KnowledgeFolder(workspace, (".holdfast", "knowledge"))
    return top if user is None else top.subfolder(USERS_FOLDER, _user_folder_name(user))


def open_shared_folder(workspace: Path | None, home: Path) -> KnowledgeFolder:
    """What every user of the workspace receives."""
    return open_knowledge_folder(workspace, home).subfolder(SHARED_FOLDER)


def open_readable_folders(workspace: Path | None, home: Path, *, user: str | None) -> tuple[KnowledgeFolder, ...]:
    """The folders that a session of this user receives: the shared one, then the user's own.

    An empty user id is an unknown person, and unknown people are not one: they have no folder of their own.
    """
    shared = open_shared_folder(workspace, home)
    return (shared,) if user == "" else (shared, open_knowledge_folder(workspace, home, user=user))


def list_users(workspace: Path | None, home: Path) -> tuple[str, ...]:
    """The ids of the users that have a folder here, besides the current user."""
    users = open_knowledge_folder(workspace, home).subfolder(USERS_FOLDER)
    owners = (users.read(f"{name}/{OWNER_FILE}") for name in users.list_names("."))
    return tuple(sorted(owner.decode("utf-8", "replace").removesuffix("\n") for owner in owners if owner))


def claim_folder(workspace: Path | None, home: Path, user: str | None) -> KnowledgeFolder:
    """The user's folder, to be written to: it names its owner, and git ignores it."""
    folder = open_knowledge_folder(workspace, home, user=user)
    if user is not None and folder.read(OWNER_FILE) is None:
        # What end users said must not be committed with the project.
        open_knowledge_folder(workspace, home).subfolder(USERS_FOLDER).replace(".gitignore", b"*\n")
        folder.replace(OWNER_FILE, f"{user}\n".encode("utf-8", "replace"))
    return folder


def _user_folder_name(user: str) -> str:
    """A readable name that is unique per user id, also on disks that ignore case."""
    plain = re.sub(r"[^a-z0-9]+", "-", user.lower())[:40].strip("-") or "user"
    return f"{plain}-{sha256_hex(user.encode('utf-8', 'surrogatepass'))[:16]}"
