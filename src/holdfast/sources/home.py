"""Where a user's own files of Holdfast are."""

from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import UserError


def holdfast_home(environ: Mapping[str, str]) -> Path:
    """HOLDFAST_HOME, or `.holdfast` in the home folder."""
    if environ.get("HOLDFAST_HOME"):
        return Path(environ["HOLDFAST_HOME"])
    try:
        return Path(environ.get("HOME") or Path.home()) / ".holdfast"
    except RuntimeError as error:
        raise UserError("there is no home folder to keep things in: set HOME or HOLDFAST_HOME") from error
