"""Locates a data file of an installed package without importing the package."""

import importlib.util
from pathlib import Path

from holdfast.errors import UserError


def carried_file(package: str, name: str) -> Path:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (path := Path(folder, name)).is_file():
            return path
    raise UserError(f"the installed package {package!r} does not contain {name!r}; install the pinned version")
