"""Where skills are below a folder: bounded, in a fixed order, and without leaving a folder that is not trusted."""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.sources.files import Stamp, cannot_read, read_regular, stamp_of
from holdfast.sources.skills.frontmatter import Fault
from holdfast.sources.skills.skill import SkillSource

SKILL_FILE = "SKILL.md"
OTHER_SKILL_FILE = "skill.md"

DEPTH_MAX = 4
ENTRIES_MAX = 50_000
SKILLS_MAX = 5_000
FILE_BYTES_MAX = 1_000_000

_PASSED_OVER = frozenset(("node_modules",))


class SkillRoot(msgspec.Struct, frozen=True):
    """A folder with skills in it. Where it is a workspace's, links must not leave it, nor it the `within`."""

    path: str
    source: SkillSource
    within: str | None = None


class SkillLimits(msgspec.Struct, frozen=True):
    """How much of a root is looked at; `depth_max` counts the folders from the root down to a skill."""

    depth_max: int = DEPTH_MAX
    entries_max: int = ENTRIES_MAX
    skills_max: int = SKILLS_MAX
    file_bytes_max: int = FILE_BYTES_MAX


class FoundFile(NamedTuple):
    """A skill's file. Without `raw` it is unchanged since the stamp that was known of it, or the faults say why."""

    file: str
    stamp: Stamp | None = None
    raw: bytes | None = None
    faults: tuple[Fault, ...] = ()


class _Folder(NamedTuple):
    """By which path a folder was reached, and where it really is."""

    path: str
    real: str
    depth: int
    faults: tuple[Fault, ...] = ()


def find_skills(
    root: SkillRoot, known: Mapping[str, Stamp] | None = None, limits: SkillLimits | None = None
) -> Iterator[FoundFile]:
    """Every skill's file below the root, and what was refused or cannot be read; a missing root holds none."""
    return _Walk(root, known or {}, limits or SkillLimits()).files()


def find_skill(
    folder: str, source: SkillSource, known: Mapping[str, Stamp] | None = None, limits: SkillLimits | None = None
) -> FoundFile | None:
    """The file of the one skill that a folder is; None where it is none."""
    path = os.path.abspath(folder)
    walk = _Walk(SkillRoot(path, source), known or {}, limits or SkillLimits())
    return walk.only(path)


class _Walk:
    def __init__(self, root: SkillRoot, known: Mapping[str, Stamp], limits: SkillLimits) -> None:
        self._root = root
        self._known = known
        self._limits = limits
        self._real_root = ""
        self._entries_left = limits.entries_max
        self._skills_left = limits.skills_max
        self._has_more = False
        self._is_full = False
        self._visited: set[str] = set()
        self._links: list[_Folder] = []

    def only(self, path: str) -> FoundFile | None:
        try:
            self._real_root = os.path.realpath(path, strict=True)
        except (OSError, ValueError):
            return None
        folder = _Folder(path, self._real_root, 0)
        found = self._file(folder, SKILL_FILE)
        return self._file(folder, OTHER_SKILL_FILE) if found is None else found

    def files(self) -> Iterator[FoundFile]:
        path = os.path.abspath(self._root.path)
        try:
            self._real_root = os.path.realpath(path, strict=True)
            within = self._root.within and os.path.realpath(self._root.within, strict=True)
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, ValueError) as error:
            yield FoundFile(_inside(path), faults=(_unreadable(error),))
            return
        if within and not _is_below(self._real_root, within):
            yield FoundFile(_inside(path), faults=(_leaving("the workspace"),))
            return
        self._visited.add(self._real_root)
        yield from self._below(_Folder(path, self._real_root, 0))
        # Last, so that a skill with a path of its own is found there and not by the link.
        while self._links and not self._is_full:
            yield from self._at(self._links.pop(0))
        if self._is_full or self._has_more:
            what = (
                f"there are over {self._limits.skills_max} skills or {self._limits.entries_max} files and folders"
                " here; the rest is not read"
            )
            yield FoundFile(_inside(path), faults=(Fault("limit", what, "divide the library into several"),))

    def _at(self, folder: _Folder) -> Iterator[FoundFile]:
        """The skill that the folder is; if it is none, those below it."""
        if folder.real in self._visited:
            return
        self._visited.add(folder.real)
        found = self._file(folder, SKILL_FILE)
        if found is None:
            yield from self._below(folder)
        else:
            yield from self._counted(found)

    def _counted(self, found: FoundFile) -> Iterator[FoundFile]:
        self._is_full = self._is_full or self._skills_left <= 0
        self._skills_left -= 1
        if not self._is_full:
            yield found

    def _below(self, folder: _Folder) -> Iterator[FoundFile]:
        try:
            folders, has_other = self._listed(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            yield FoundFile(_inside(folder.path), faults=(*folder.faults, _unreadable(error)))
            return
        if has_other and folder.depth and (found := self._file(folder, OTHER_SKILL_FILE)):
            yield from self._counted(found)
            return
        for name, is_link in folders:
            if self._is_full:
                return
            path = f"{folder.path}{os.sep}{name}"
            if is_link:
                refused = self._follow(path, folder)
                if refused:
                    yield refused
            else:
                yield from self._at(_Folder(path, f"{folder.real}{os.sep}{name}", folder.depth + 1, folder.faults))

    def _listed(self, folder: _Folder) -> tuple[list[tuple[str, bool]], bool]:
        """The folders in it to look into, by name, each with whether it is a link."""
        found: list[tuple[str, bool]] = []
        has_other = False
        with os.scandir(folder.path) as entries:
            for entry in entries:
                if self._entries_left <= 0:
                    self._has_more = True
                    break
                self._entries_left -= 1
                name = entry.name
                if name == OTHER_SKILL_FILE:
                    has_other = True
                elif folder.depth < self._limits.depth_max and name[0] != "." and name not in _PASSED_OVER:
                    if entry.is_dir(follow_symlinks=False):
                        found.append((name, False))
                    elif entry.is_symlink():
                        found.append((name, True))
        found.sort()
        return found, has_other

    def _follow(self, path: str, parent: _Folder) -> FoundFile | None:
        """A link to a folder is kept for later; one that leads out of a workspace's root is refused."""
        try:
            real = os.path.realpath(path, strict=True)
            if not os.path.isdir(real):
                return None
        except (OSError, ValueError):
            return None
        faults = parent.faults
        if not _is_below(real, self._real_root):
            if self._root.source == "workspace":
                return FoundFile(_inside(path), faults=(_leaving("the folder of skills"),))
            faults = (_followed(),)
        self._links.append(_Folder(path, real, parent.depth + 1, faults))
        return None

    def _file(self, folder: _Folder, name: str) -> FoundFile | None:
        """None where there is no such file."""
        file = f"{folder.path}{os.sep}{name}"
        faults = folder.faults
        if name != SKILL_FILE:
            faults = (*faults, Fault("file-name", f"the file is called {name}", f"rename it to {SKILL_FILE}"))
        known = self._known.get(file)
        try:
            status = os.lstat(file) if known is not None else None
            if status is not None and stat.S_ISREG(status.st_mode) and stamp_of(status) == known:
                return FoundFile(file, known)
            return self._read(file, faults)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            if not os.path.islink(file):
                return FoundFile(file, faults=(*faults, _unreadable(error)))
        return self._linked(file, folder, faults)

    def _read(self, file: str, faults: tuple[Fault, ...], target: str | None = None) -> FoundFile:
        bytes_max = self._limits.file_bytes_max
        read = read_regular(file if target is None else target, bytes_max + 1)
        if read is None:
            what = Fault("not-a-file", "it is no regular file", f"let {SKILL_FILE} be a file")
            return FoundFile(file, faults=(*faults, what))
        if len(read.raw) > bytes_max:
            what = Fault("too-large", f"the file has more than {bytes_max} bytes", "move parts into files beside it")
            return FoundFile(file, read.stamp, faults=(*faults, what))
        return FoundFile(file, read.stamp, read.raw, faults)

    def _linked(self, file: str, folder: _Folder, faults: tuple[Fault, ...]) -> FoundFile:
        """What a link in the place of the file leads to; it is read anew each time."""
        try:
            real = os.path.realpath(file, strict=True)
            if not _is_below(real, self._real_root) and not _is_below(real, folder.real):
                if self._root.source == "workspace":
                    return FoundFile(file, faults=(*faults, _leaving("the folder of skills")))
                faults = (*faults, _followed())
            return self._read(file, faults, real)._replace(stamp=None)
        except (OSError, ValueError) as error:
            return FoundFile(file, faults=(*faults, _unreadable(error)))


def _inside(folder: str) -> str:
    return f"{folder}{os.sep}{SKILL_FILE}"


def _is_below(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _unreadable(error: OSError | ValueError) -> Fault:
    return Fault("unreadable", f"it {cannot_read(error)}", "check that it exists and may be read")


def _leaving(what: str) -> Fault:
    return Fault("link-refused", f"it is a link that leads out of {what}", "copy what it leads to in its place")


def _followed() -> Fault:
    return Fault("link-followed", "it is a link that leads out of the folder of skills", "make sure that this is meant")
