"""Finds skill files below a folder: bounded, in a fixed order, and without leaving an untrusted folder."""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.sources.files import FileStamp, describe_read_error, make_stamp, read_regular_file
from holdfast.sources.skills.frontmatter import SkillFault
from holdfast.sources.skills.skill import BODY_TOKENS_MAX, SkillMode, SkillSource

SKILL_FILE = "SKILL.md"
OTHER_SKILL_FILE = "skill.md"

# Limits against a huge root, such as a whole home folder.
DEPTH_MAX = 4
ENTRIES_MAX = 50_000
SKILLS_MAX = 5_000
FILE_BYTES_MAX = 1_000_000
_SKIPPED_FOLDERS = frozenset(("node_modules",))


class SkillRoot(msgspec.Struct, frozen=True):
    """A folder of skills. In a workspace root, symlinks must not leave it, and it must not leave `within`.

    `mode` replaces the mode of the library that it belongs to. Unless it is `nested`, only the folders directly in it
    can be skills.
    """

    path: str
    source: SkillSource
    within: str | None = None
    mode: SkillMode | None = None
    nested: bool = True


class SkillLimits(msgspec.Struct, frozen=True):
    """Limits on reading a root; `depth_max` counts the folders from the root down to a skill.

    A body of `body_tokens_max` or more is read, but no session would load it.
    """

    depth_max: int = DEPTH_MAX
    entries_max: int = ENTRIES_MAX
    skills_max: int = SKILLS_MAX
    file_bytes_max: int = FILE_BYTES_MAX
    body_tokens_max: int = BODY_TOKENS_MAX


class SkillFile(NamedTuple):
    """A skill file. Without `raw` it is unchanged since the known stamp, or the faults say why it was not read."""

    file: str
    stamp: FileStamp | None = None
    raw: bytes | None = None
    faults: tuple[SkillFault, ...] = ()


class _Folder(NamedTuple):
    """A folder: the path by which it was reached, and its real path."""

    path: str
    real: str
    depth: int
    faults: tuple[SkillFault, ...] = ()


def find_skills(
    root: SkillRoot, known_stamps: Mapping[str, FileStamp] | None = None, limits: SkillLimits | None = None
) -> Iterator[SkillFile]:
    """Every skill file below the root, refused and unreadable ones included; empty if the root is missing."""
    return _Walk(root, known_stamps or {}, limits or SkillLimits()).files()


def find_skill(folder: str, source: SkillSource) -> SkillFile | None:
    """The skill file of a folder; None if the folder is not a skill."""
    path = os.path.abspath(folder)
    return _Walk(SkillRoot(path, source), {}, SkillLimits()).only(path)


class _Walk:
    def __init__(self, root: SkillRoot, known_stamps: Mapping[str, FileStamp], limits: SkillLimits) -> None:
        self._root = root
        self._known_stamps = known_stamps
        self._limits = limits
        self._depth_max = limits.depth_max if root.nested else min(limits.depth_max, 1)
        self._real_root = ""
        self._entries_left = limits.entries_max
        self._skills_left = limits.skills_max
        self._has_more = False
        self._is_full = False
        self._visited: set[str] = set()
        self._links: list[_Folder] = []

    def only(self, path: str) -> SkillFile | None:
        try:
            self._real_root = os.path.realpath(path, strict=True)
        except (OSError, ValueError):
            return None
        folder = _Folder(path, self._real_root, 0)
        skill_file = self._find_file(folder, SKILL_FILE)
        return self._find_file(folder, OTHER_SKILL_FILE) if skill_file is None else skill_file

    def files(self) -> Iterator[SkillFile]:
        path = os.path.abspath(self._root.path)
        try:
            self._real_root = os.path.realpath(path, strict=True)
            within = self._root.within and os.path.realpath(self._root.within, strict=True)
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, ValueError) as error:
            yield SkillFile(_skill_file_in(path), faults=(_unreadable_fault(error),))
            return
        if within and not _is_below(self._real_root, within):
            yield SkillFile(_skill_file_in(path), faults=(_link_refused("the workspace"),))
            return
        self._visited.add(self._real_root)
        yield from self._visit_children(_Folder(path, self._real_root, 0))
        # Links come last, so that a skill inside the root is found at its own path and not through a link.
        while self._links and not self._is_full:
            yield from self._visit(self._links.pop(0))
        if self._is_full or self._has_more:
            message = (
                f"there are over {self._limits.skills_max} skills or {self._limits.entries_max} files and folders"
                " here; the rest is not read"
            )
            yield SkillFile(_skill_file_in(path), faults=(SkillFault("limit", message, "split the library"),))

    def _visit(self, folder: _Folder) -> Iterator[SkillFile]:
        """The skill in this folder; if it has none, the skills below it."""
        if folder.real in self._visited:
            return
        self._visited.add(folder.real)
        skill_file = self._find_file(folder, SKILL_FILE)
        if skill_file is None:
            yield from self._visit_children(folder)
        else:
            yield from self._count_skill(skill_file)

    def _count_skill(self, skill_file: SkillFile) -> Iterator[SkillFile]:
        self._is_full = self._is_full or self._skills_left <= 0
        self._skills_left -= 1
        if not self._is_full:
            yield skill_file

    def _visit_children(self, folder: _Folder) -> Iterator[SkillFile]:
        try:
            folders, has_other = self._list_folders(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            yield SkillFile(_skill_file_in(folder.path), faults=(*folder.faults, _unreadable_fault(error)))
            return
        if has_other and folder.depth and (skill_file := self._find_file(folder, OTHER_SKILL_FILE)):
            yield from self._count_skill(skill_file)
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
                yield from self._visit(_Folder(path, f"{folder.real}{os.sep}{name}", folder.depth + 1, folder.faults))

    def _list_folders(self, folder: _Folder) -> tuple[list[tuple[str, bool]], bool]:
        """The subfolders to visit, sorted by name, each with whether it is a symlink; and whether `skill.md` exists."""
        folders: list[tuple[str, bool]] = []
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
                elif folder.depth < self._depth_max and name[0] != "." and name not in _SKIPPED_FOLDERS:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append((name, False))
                    elif entry.is_symlink():
                        folders.append((name, True))
        folders.sort()
        return folders, has_other

    def _follow(self, path: str, parent: _Folder) -> SkillFile | None:
        """Queue a symlink to a folder; one that leads out of a workspace root is refused."""
        try:
            real = os.path.realpath(path, strict=True)
            if not os.path.isdir(real):
                return None
        except (OSError, ValueError):
            return None
        faults = parent.faults
        if not _is_below(real, self._real_root):
            if self._root.source == "workspace":
                return SkillFile(_skill_file_in(path), faults=(_link_refused("the folder of skills"),))
            faults = (_link_followed(),)
        self._links.append(_Folder(path, real, parent.depth + 1, faults))
        return None

    def _find_file(self, folder: _Folder, name: str) -> SkillFile | None:
        """None if there is no such file."""
        file = f"{folder.path}{os.sep}{name}"
        faults = folder.faults
        if name != SKILL_FILE:
            faults = (*faults, SkillFault("file-name", f"the file is called {name}", f"rename it to {SKILL_FILE}"))
        known_stamp = self._known_stamps.get(file)
        try:
            status = os.lstat(file) if known_stamp is not None else None
            if status is not None and stat.S_ISREG(status.st_mode) and make_stamp(status) == known_stamp:
                return SkillFile(file, known_stamp)
            return self._read(file, faults)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            if not os.path.islink(file):
                return SkillFile(file, faults=(*faults, _unreadable_fault(error)))
        return self._read_linked(file, folder, faults)

    def _read(self, file: str, faults: tuple[SkillFault, ...], target: str | None = None) -> SkillFile:
        bytes_max = self._limits.file_bytes_max
        content = read_regular_file(file if target is None else target, bytes_max + 1)
        if content is None:
            fault = SkillFault("not-a-file", "it is not a regular file", f"make {SKILL_FILE} a file")
            return SkillFile(file, faults=(*faults, fault))
        if len(content.raw) > bytes_max:
            fault = SkillFault(
                "too-large", f"the file has more than {bytes_max} bytes", "move parts of it into separate files"
            )
            return SkillFile(file, content.stamp, faults=(*faults, fault))
        return SkillFile(file, content.stamp, content.raw, faults)

    def _read_linked(self, file: str, folder: _Folder, faults: tuple[SkillFault, ...]) -> SkillFile:
        """The target of a symlink in place of the file; without a stamp, so that it is read again each time."""
        try:
            real = os.path.realpath(file, strict=True)
            if not _is_below(real, self._real_root) and not _is_below(real, folder.real):
                if self._root.source == "workspace":
                    return SkillFile(file, faults=(*faults, _link_refused("the folder of skills")))
                faults = (*faults, _link_followed())
            return self._read(file, faults, real)._replace(stamp=None)
        except (OSError, ValueError) as error:
            return SkillFile(file, faults=(*faults, _unreadable_fault(error)))


def _skill_file_in(folder: str) -> str:
    return f"{folder}{os.sep}{SKILL_FILE}"


def _is_below(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _unreadable_fault(error: OSError | ValueError) -> SkillFault:
    return SkillFault("unreadable", f"it {describe_read_error(error)}", "check that it exists and may be read")


def _link_refused(boundary: str) -> SkillFault:
    return SkillFault(
        "link-refused", f"it is a link that leads out of {boundary}", "replace the link with a copy of its target"
    )


def _link_followed() -> SkillFault:
    return SkillFault(
        "link-followed", "it is a link that leads out of the folder of skills", "check that this is intended"
    )
