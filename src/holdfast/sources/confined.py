"""How files are reached below a folder that nothing may leave: not by `..`, not by a link, not by a race.

Every step of a path is taken from the folder before it, which is held open; a link is read and walked like the rest of
the path, so that what was checked is what is opened.
"""

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.sources.text import path_text

PATH_BYTES_MAX = 4096
LINKS_MAX = 40

_FOLDER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | getattr(os, "O_NOCTTY", 0)
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class EscapeError(Exception):
    """A path leads out of the folders it may be in; the message names the path."""


class PathError(Exception):
    """A path leads nowhere that can be used; the message names it and says why."""


class Roots(msgspec.Struct, frozen=True):
    """The folder that may be read and written, and others that may only be read; all without links in them.

    `spellings` are absolute paths by which people call a root, links and all, each with the root it means.
    """

    workspace: Path
    read_only: tuple[Path, ...] = ()
    spellings: tuple[tuple[Path, Path], ...] = ()


class Located(msgspec.Struct, frozen=True):
    """A path as steps below one of the roots; `shown` is how it is told to people and models.

    It may lead through none of the folders in `closed`.
    """

    root: Path
    steps: tuple[str, ...]
    shown: str
    closed: tuple[Path, ...] = ()


def roots_of(workspace: Path, read_only: Sequence[Path] = ()) -> Roots:
    given = (workspace, *read_only)
    real = tuple(Path(os.path.realpath(one)) for one in given)
    spelled = zip((Path(os.path.abspath(one)) for one in given), real, strict=True)
    return Roots(real[0], real[1:], tuple(pair for pair in spelled if pair[0] != pair[1]))


def locate(roots: Roots, path: str, *, writing: bool = False) -> Located:
    """Below which root a path lies by its spelling; `EscapeError` if below none, or below one it may only read.

    A folder that may only be read stays so inside of the workspace.
    """
    shown = path_text(path)[:200]
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
        return Located(roots.workspace, _inner_steps(path, shown), shown, closed)
    real = (roots.workspace, *roots.read_only)
    for spelled, root in (*zip(real, real, strict=True), *roots.spellings):
        below = _below(path, spelled)
        if below is not None:
            if writing and root != roots.workspace:
                raise EscapeError(f"{shown!r} may be read but not written")
            return Located(root, _inner_steps(below, shown), shown, closed)
    raise EscapeError(f"{shown!r} is outside of the workspace")


def check_inside(roots: Roots, path: str, *, writing: bool = False) -> None:
    """`EscapeError` if the path leads out, `PathError` if no file can have it; whether one has is not asked."""
    located = locate(roots, path, writing=writing)
    with contextlib.suppress(PathError), opened_place(located):
        pass


@contextlib.contextmanager
def opened_place(located: Located, *, make_folders: bool = False) -> Iterator[tuple[int, str]]:
    """The folder that a path ends in, held open, and the name there, links followed; `.` for the folder itself."""
    walk = _Walk(located, make_folders=make_folders)
    try:
        name = walk.to_end()
        yield walk.folder, name
    except OSError as error:
        raise PathError(f"{located.shown!r} {reason_of(error)}") from None
    finally:
        walk.close()


@contextlib.contextmanager
def opened_folder(folder: int, name: str) -> Iterator[int]:
    """A folder in a folder, held open so that it can be listed; no link."""
    opened = os.open(name, _LIST_FLAGS, dir_fd=folder)
    try:
        yield opened
    finally:
        os.close(opened)


def read_regular(folder: int, name: str, bytes_max: int) -> bytes:
    """A regular file up to a bound; anything else is an `OSError`, and nothing is waited for."""
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    _check_regular(mode)
    opened = os.open(name, _READ_FLAGS, dir_fd=folder)
    try:
        _check_regular(os.fstat(opened).st_mode)
        with os.fdopen(opened, "rb", closefd=False) as file:
            return file.read(bytes_max)
    finally:
        os.close(opened)


def write_atomically(folder: int, name: str, content: bytes, *, still: Callable[[], bool] = lambda: True) -> bool:
    """All of the content or, whatever happens, what was there before; the mode of a file that was there is kept.

    `still` is asked right before the new file takes the old one's place; where it says no, nothing is changed.
    """
    mode = _mode_of(folder, name)
    temporary, opened = _create_beside(folder)
    try:
        try:
            with os.fdopen(opened, "wb", closefd=False) as file:
                file.write(content)
            if mode is not None:
                os.fchmod(opened, mode)
            os.fsync(opened)
        finally:
            os.close(opened)
        if not still():
            os.unlink(temporary, dir_fd=folder)
            return False
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        return True
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def reason_of(error: OSError) -> str:
    """Why a path cannot be used; by number, because the system's own words differ from locale to locale."""
    known = {
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
    return known.get(number, f"cannot be used ({errno.errorcode.get(number, type(error).__name__)})")


class _Walk:
    """The folders from the root to where a path ends, each opened from the one before it."""

    def __init__(self, located: Located, *, make_folders: bool) -> None:
        self._located = located
        self._make_folders = make_folders
        self._todo = list(reversed(located.steps))
        self._links = 0
        self._open: list[int] = []

    @property
    def folder(self) -> int:
        return self._open[-1]

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def to_end(self) -> str:
        self._open.append(os.open(self._located.root, _FOLDER_FLAGS))
        while self._todo:
            step = self._todo.pop()
            if step == "..":
                self._go_up()
            elif (target := _link_target(self.folder, step)) is not None:
                self._follow(target)
            elif self._todo:
                self._enter(step)
            else:
                return step
        return "."

    def _go_up(self) -> None:
        if len(self._open) == 1:
            raise EscapeError(f"{self._located.shown!r} leads out of the workspace")
        os.close(self._open.pop())

    def _follow(self, target: str) -> None:
        self._links += 1
        if self._links > LINKS_MAX:
            raise OSError(errno.ELOOP, "too many links")
        if os.path.isabs(target):
            below = _below(target, self._located.root)
            if below is None:
                raise EscapeError(f"{self._located.shown!r} is a link that leads out of the workspace")
            while len(self._open) > 1:
                os.close(self._open.pop())
            target = below
        self._todo += reversed(_steps(target))

    def _enter(self, step: str) -> None:
        if self._make_folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(step, dir_fd=self.folder)
        self._open.append(os.open(step, _FOLDER_FLAGS, dir_fd=self.folder))
        if any(_is_folder(self.folder, closed) for closed in self._located.closed):
            raise EscapeError(f"{self._located.shown!r} may be read but not written")


def _inner_steps(path: str, shown: str) -> tuple[str, ...]:
    # What leaves by its spelling is refused even where a link would bring it back: nobody needs such a path.
    if os.path.normpath(path or ".").split(os.sep)[0] == "..":
        raise EscapeError(f"{shown!r} leads out of the workspace")
    return tuple(_steps(path))


def _steps(path: str) -> list[str]:
    return [step for step in path.split(os.sep) if step not in ("", ".")]


def _below(path: str, root: Path) -> str | None:
    """What of an absolute path is below the root, by its spelling."""
    top = [step for step in root.parts if step != os.sep]
    steps = _steps(path)
    return os.sep.join(steps[len(top) :]) if steps[: len(top)] == top else None


def _is_folder(opened: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(opened), os.stat(path))
    except OSError:
        return False


def _link_target(folder: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
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


def _create_beside(folder: int) -> tuple[str, int]:
    number = 0
    while True:
        name = f".holdfast-{os.getpid()}-{threading.get_ident()}-{number}.tmp"
        try:
            return name, os.open(name, _CREATE_FLAGS, 0o666, dir_fd=folder)
        except FileExistsError:
            number += 1
