"""Loads the public names of a module when they are first used, so that `import holdfast` costs next to nothing."""

import importlib
from collections.abc import Mapping


def load_name(module: str, homes: Mapping[str, str], name: str) -> object:
    """The body of a module's `__getattr__`: `homes` maps each of its public names to the module that defines it."""
    if name not in homes:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return getattr(importlib.import_module(homes[name]), name)
