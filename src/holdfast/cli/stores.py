"""Which store a command looks at."""

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from holdfast.catalog.lookup import Models
    from holdfast.events.log import Log
    from holdfast.events.records import Records


def open_configured(db: str | None) -> "AbstractContextManager[Log]":
    """The store, if there is one: looking at sessions makes no file."""
    import contextlib
    import os
    from pathlib import Path

    from holdfast.errors import UserError
    from holdfast.runtime.config import load_config
    from holdfast.stores.memory import MemoryStore
    from holdfast.stores.open import open_store

    if db is None:
        path = load_config(os.environ, workspace=Path.cwd()).db_path
        return contextlib.closing(open_store(path) if "://" in path or Path(path).exists() else MemoryStore())
    if "://" not in db and not Path(db).exists():
        raise UserError(f"there is no store at {db!r}; check the path")
    return contextlib.closing(open_store(db))


def configured_models() -> "Models":
    """The catalog, with what the configuration adds and corrects."""
    import os
    from pathlib import Path

    from holdfast.catalog.lookup import shipped_models
    from holdfast.catalog.overrides import with_overrides
    from holdfast.runtime.config import load_config

    return with_overrides(shipped_models(), load_config(os.environ, workspace=Path.cwd()).models)


@contextmanager
def open_records(db: str | None) -> "Iterator[tuple[Log, Records]]":
    """The store and what it keeps beside its log; a file is made where there is none."""
    import contextlib
    import os
    from pathlib import Path

    from holdfast.errors import UserError
    from holdfast.events.records import HasRecords
    from holdfast.runtime.config import load_config
    from holdfast.stores.open import open_store

    address = db or load_config(os.environ, workspace=Path.cwd()).db_path
    with contextlib.closing(open_store(address)) as log:
        if not isinstance(log, HasRecords):
            raise UserError("this store keeps nothing but a log: use a SQLite file or PostgreSQL")
        yield log, log.records
