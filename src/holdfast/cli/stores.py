"""Which store a command looks at."""

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from holdfast.catalog.lookup import Models
    from holdfast.events.log import Log
    from holdfast.events.records import Records
    from holdfast.stores.open import Store

PREFIX_CHARACTERS_MIN = 4
CANDIDATES_MAX = 5


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


def found_session(log: "Log", said: str) -> str:
    """The id that is meant by itself or by its beginning, of four characters at least."""
    from holdfast.errors import UserError

    if next(iter(log.read(said)), None) is not None:
        return said
    found = [row.id for row in log.sessions() if row.id.startswith(said)] if len(said) >= PREFIX_CHARACTERS_MIN else []
    if len(found) == 1:
        return found[0]
    if not found:
        short = (
            f"; the start of an id needs {PREFIX_CHARACTERS_MIN} characters"
            if len(said) < PREFIX_CHARACTERS_MIN
            else ""
        )
        raise UserError(f"there is no session {said!r}{short}; `holdfast sessions list` shows all")
    more = f" and {len(found) - CANDIDATES_MAX} more" if len(found) > CANDIDATES_MAX else ""
    raise UserError(
        f"{len(found)} sessions begin with {said!r}: {', '.join(found[:CANDIDATES_MAX])}{more}; say more of it"
    )


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
