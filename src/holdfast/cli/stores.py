"""Which store a command looks at."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from holdfast.catalog.lookup import Models
    from holdfast.stores.open import Store


def open_configured(db: str | None) -> "AbstractContextManager[Store]":
    """The store, if there is one: looking at sessions makes no file."""
    import contextlib
    import os
    from pathlib import Path

    from holdfast.errors import UserError
    from holdfast.runtime.config import load_config
    from holdfast.stores.memory import MemoryStore
    from holdfast.stores.open import open_store

    models = configured_models()
    if db is None:
        path = load_config(os.environ, workspace=Path.cwd()).db_path
        there = "://" in path or Path(path).exists()
        return contextlib.closing(open_store(path, models=models) if there else MemoryStore(models=models))
    if "://" not in db and not Path(db).exists():
        raise UserError(f"there is no store at {db!r}; check the path")
    return contextlib.closing(open_store(db, models=models))


def configured_models() -> "Models":
    """The catalog, with what the configuration adds and corrects."""
    import os
    from pathlib import Path

    from holdfast.catalog.lookup import shipped_models
    from holdfast.catalog.overrides import with_overrides
    from holdfast.runtime.config import load_config

    return with_overrides(shipped_models(), load_config(os.environ, workspace=Path.cwd()).models)
