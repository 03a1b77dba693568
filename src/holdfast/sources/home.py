"""Locates the user's home folder and Holdfast's folder in it."""

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
