"""File access that cannot leave a root folder: not by `..`, not by a symlink, not by a race.

Every path component is opened relative to its parent folder, which stays open; a symlink is read and its target walked
in the same way, so that the file that was checked is the file that is opened.
"""

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.sources.files import format_path

PATH_BYTES_MAX = 4096
LINKS_MAX = 40  # The kernel's own limit on symlinks in one path.
_FOLDER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO must not wait for a writer.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | getattr(os, "O_NOCTTY", 0)
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class EscapeError(Exception):
    """A path leads out of the allowed folders; the message names the path."""


class PathError(Exception):
    """A path cannot be used; the message names it and says why."""


class Roots(msgspec.Struct, frozen=True):
    """The folder that may be read and written, and folders that may only be read, all with symlinks resolved.

    `aliases` maps absolute paths as the user wrote them, symlinks included, to the root that they mean.
    """

    workspace: Path
    read_only: tuple[Path, ...] = ()
    aliases: tuple[tuple[Path, Path], ...] = ()


class LocatedPath(msgspec.Struct, frozen=True):
    """A path as components below one of the roots; `shown` is its form in messages to users and models.

    It must not lead through any of the folders in `forbidden`.
    """

    root: Path
    steps: tuple[str, ...]
    shown: str
    forbidden: tuple[Path, ...] = ()


def resolve_roots(workspace: Path, read_only: Sequence[Path] = ()) -> Roots:
    folders = (workspace, *read_only)
    resolved = tuple(Path(os.path.realpath(folder)) for folder in folders)
    pairs = zip((Path(os.path.abspath(folder)) for folder in folders), resolved, strict=True)
    return Roots(resolved[0], resolved[1:], tuple(pair for pair in pairs if pair[0] != pair[1]))


def locate_path(roots: Roots, path: str, *, writing: bool = False) -> LocatedPath:
    """Find the root of a path by its text; `EscapeError` if there is none, or if it is read-only and `writing` is set.

    A read-only folder stays read-only if it is inside the workspace.
    """
    shown = format_path(path)[:200]
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError:
        raise PathError(f"the path {shown!r} holds a character that no file name has") from None
    if "\0" in path:
        raise PathError(f"the path {shown!r} holds a NUL character")
    if size > PATH_BYTES_MAX:
        raise PathError(f"the path is longer than {PATH_BYTES_MAX} bytes")
    closed = roots.read_only if writing else ()
    if not os.path.isabs(path):
        return LocatedPath(roots.workspace, _split_inside(path, shown), shown, closed)
    resolved_roots = (roots.workspace, *roots.read_only)
    for prefix, root in (*zip(resolved_roots, resolved_roots, strict=True), *roots.aliases):
        relative = _relative_to_root(path, prefix)
        if relative is not None:
            if writing and root != roots.workspace:
                raise EscapeError(f"{shown!r} may be read but not written")
            return LocatedPath(root, _split_inside(relative, shown), shown, closed)
    raise EscapeError(f"{shown!r} is outside of the workspace")


def check_path_inside(roots: Roots, path: str, *, writing: bool = False) -> None:
    """Raise `EscapeError` if the path leads out, `PathError` if it is invalid; the file need not exist."""
    located = locate_path(roots, path, writing=writing)
    with contextlib.suppress(PathError), open_parent(located):
        pass


@contextlib.contextmanager
def open_parent(located: LocatedPath, *, make_folders: bool = False) -> Iterator[tuple[int, str]]:
    """The open parent folder of a path and the name in it, symlinks followed; the name is `.` for a root itself."""
    walk = _Walk(located, make_folders=make_folders)
    try:
        name = walk.to_end()
        yield walk.folder, name
    except OSError as error:
        raise PathError(f"{located.shown!r} {describe_os_error(error)}") from None
    finally:
        walk.close()


@contextlib.contextmanager
def open_folder(folder: int, name: str) -> Iterator[int]:
    """A subfolder, opened for listing; a symlink is refused."""
    descriptor = os.open(name, _LIST_FLAGS, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_regular_at(folder: int, name: str, bytes_max: int) -> bytes:
    """The first `bytes_max` bytes of a regular file; anything else raises `OSError`. Never blocks."""
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    _check_regular(mode)
    descriptor = os.open(name, _READ_FLAGS, dir_fd=folder)
    try:
        # Again, because the file may have been replaced between stat and open.
        _check_regular(os.fstat(descriptor).st_mode)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(bytes_max)
    finally:
        os.close(descriptor)


def write_atomically(folder: int, name: str, content: bytes, *, is_current: Callable[[], bool] = lambda: True) -> bool:
    """Replace a file completely or not at all; the mode of an existing file is kept.

    `is_current` is called directly before the replacement; if it returns False, nothing is changed. Returns whether the
    file was replaced.
    """
    mode = _mode_of(folder, name)
    temporary, descriptor = _create_temporary(folder)
    try:
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(content)
            if mode is not None:
                os.fchmod(descriptor, mode)
            # Before the rename: after a crash the name must not point to an empty file.
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if not is_current():
            os.unlink(temporary, dir_fd=folder)
            return False
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        return True
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def describe_os_error(error: OSError) -> str:
    """Why a path cannot be used; by errno, because the system's messages depend on the locale."""
    reasons = {
        errno.ENOENT: "does not exist",
        errno.ENOTDIR: "is not a folder, or lies below a file",
        errno.EISDIR: "is a folder",
        errno.EACCES: "may not be read or written by this user",
        errno.EPERM: "may not be read or written by this user",
        errno.ELOOP: "is a link that leads nowhere",
        errno.ENAMETOOLONG: "has a name that is too long",
        errno.EEXIST: "is in the way",
        errno.EROFS: "is on a disk that cannot be written",
        errno.ENOSPC: "does not fit on the disk",
        errno.EINVAL: "is not a regular file",
        errno.ENXIO: "is not a regular file",
    }
    number = error.errno or 0
    return reasons.get(number, f"cannot be used ({errno.errorcode.get(number, type(error).__name__)})")


class _Walk:
    """Walks from the root to the parent folder of a path, opening each folder relative to the one before."""

    def __init__(self, located: LocatedPath, *, make_folders: bool) -> None:
        self._located = located
        self._make_folders = make_folders
        self._remaining = list(reversed(located.steps))
        self._links_followed = 0
        self._open_folders: list[int] = []

    @property
    def folder(self) -> int:
        return self._open_folders[-1]

    def close(self) -> None:
        while self._open_folders:
            os.close(self._open_folders.pop())

    def to_end(self) -> str:
        self._open_folders.append(os.open(self._located.root, _FOLDER_FLAGS))
        while self._remaining:
            step = self._remaining.pop()
            if step == "..":
                self._leave_folder()
            elif (target := _link_target(self.folder, step)) is not None:
                self._follow_link(target)
            elif self._remaining:
                self._enter_folder(step)
            else:
                return step
        return "."

    def _leave_folder(self) -> None:
        if len(self._open_folders) == 1:
            raise EscapeError(f"{self._located.shown!r} leads out of the workspace")
        os.close(self._open_folders.pop())

    def _follow_link(self, target: str) -> None:
        self._links_followed += 1
        if self._links_followed > LINKS_MAX:
            raise OSError(errno.ELOOP, "too many links")
        if os.path.isabs(target):
            relative = _relative_to_root(target, self._located.root)
            if relative is None:
                raise EscapeError(f"{self._located.shown!r} is a link that leads out of the workspace")
            while len(self._open_folders) > 1:
                os.close(self._open_folders.pop())
            target = relative
        self._remaining += reversed(_split_path(target))

    def _enter_folder(self, step: str) -> None:
        if self._make_folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(step, dir_fd=self.folder)
        self._open_folders.append(os.open(step, _FOLDER_FLAGS, dir_fd=self.folder))
        # By device and inode, because a read-only folder can be reached under another name.
        if any(_is_folder(self.folder, closed) for closed in self._located.forbidden):
            raise EscapeError(f"{self._located.shown!r} may be read but not written")


def _split_inside(path: str, shown: str) -> tuple[str, ...]:
    # A path whose text leaves the root is refused even if a symlink would lead back: no caller needs such a path.
    if os.path.normpath(path or ".").split(os.sep)[0] == "..":
        raise EscapeError(f"{shown!r} leads out of the workspace")
    return tuple(_split_path(path))


def _split_path(path: str) -> list[str]:
    return [step for step in path.split(os.sep) if step not in ("", ".")]


def _relative_to_root(path: str, root: Path) -> str | None:
    """The part of an absolute path below the root, by its text; None if it is outside."""
    root_steps = [step for step in root.parts if step != os.sep]
    steps = _split_path(path)
    return os.sep.join(steps[len(root_steps) :]) if steps[: len(root_steps)] == root_steps else None


def _is_folder(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _link_target(folder: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        # EINVAL: the name exists and is not a symlink.
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _check_regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, "a folder")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file")


def _mode_of(folder: int, name: str) -> int | None:
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    _check_regular(mode)
    if not os.access(name, os.W_OK, dir_fd=folder):
        raise OSError(errno.EACCES, "not writable")
    return stat.S_IMODE(mode) & 0o777


def _create_temporary(folder: int) -> tuple[str, int]:
    number = 0
    while True:
        name = f".holdfast-{os.getpid()}-{threading.get_ident()}-{number}.tmp"
        try:
            return name, os.open(name, _CREATE_FLAGS, 0o666, dir_fd=folder)
        except FileExistsError:
            number += 1
