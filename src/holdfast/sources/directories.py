"""Locates folders: the user's home, Holdfast's own folder, and the root of a project."""

import os
from collections.abc import Mapping
from pathlib import Path

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
