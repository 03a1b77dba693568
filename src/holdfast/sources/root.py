"""Where a project begins: the nearest folder, from here upwards, that holds `.git`."""

import os
from pathlib import Path


def find_git_root(cwd: Path) -> Path | None:
    """With all symlinks resolved; None where there is none, or where `cwd` cannot be looked at."""
    try:
        here = Path(os.path.realpath(cwd, strict=True))
        for folder in (here, *here.parents):
            git = folder / ".git"
            # A file: in a linked worktree or a submodule, `.git` names the folder it stands for.
            if git.is_dir() or git.is_file():
                return folder
    except (OSError, ValueError):
        return None
    return None
