"""Where a user's own files of Holdfast are."""

from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import UserError


def user_home(environ: Mapping[str, str]) -> Path:
    """The home folder of the user, where other programs keep theirs too."""
    try:
        return Path(environ.get("HOME") or Path.home())
    except RuntimeError as error:
        raise UserError("there is no home folder to keep things in: set HOME or HOLDFAST_HOME") from error


def holdfast_home(environ: Mapping[str, str]) -> Path:
    """HOLDFAST_HOME, or `.holdfast` in the home folder."""
    if environ.get("HOLDFAST_HOME"):
        return Path(environ["HOLDFAST_HOME"])
    return user_home(environ) / ".holdfast"
