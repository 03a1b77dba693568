"""Finds the root of a project: the nearest parent folder that contains `.git`."""

import os
from pathlib import Path


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
