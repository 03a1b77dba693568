"""Opens the store that a command works on and resolves session ids in it."""

import contextlib
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.catalog.lookup import Models
    from holdfast.events.log import EventLog
    from holdfast.events.records import StoreRecords
    from holdfast.stores.migrate import MigrationMode
    from holdfast.stores.open import Store
    from holdfast.stores.spending_cache import SpendingCache

PREFIX_CHARACTERS_MIN = 4
CANDIDATES_MAX = 5


def resolve_store_address(db: str | None) -> tuple[str, bool]:
    """The address of the store at `db` or of the configured one, and whether it exists."""
    from holdfast.runtime.config import load_config

    address = load_config(os.environ, workspace=Path.cwd()).db_path if db is None else db
    # Whether a URL's database exists is known only after connecting; opening it reports the error.
    return address, "://" in address or Path(address).exists()


@contextmanager
def open_configured_store(
    db: str | None, *, writable: bool = False, migration_mode: "MigrationMode" = "create"
) -> "Iterator[Store]":
    """Open the store at `db` or the configured one; create none. Only a command that changes it asks for `writable`.

    If nothing is stored yet, this is an empty in-memory store.
    """
    from holdfast.stores.memory import MemoryStore
    from holdfast.stores.open import open_store

    address, exists = resolve_store_address(db)
    if not exists and db is not None:
        raise UserError(f"there is no store at {db!r}; check the path")
    models = load_configured_models()
    log = (
        open_store(address, models=models, read_only=not writable, migration_mode=migration_mode)
        if exists
        else MemoryStore(models=models)
    )
    with contextlib.closing(log):
        if log.notice is not None:
            click.echo(f"holdfast: {log.notice}", err=True)
        yield log


def resolve_session_id(log: "EventLog", prefix: str) -> str:
    """Resolve a session id or an unambiguous start of one (at least PREFIX_CHARACTERS_MIN characters)."""
    if next(iter(log.read(prefix)), None) is not None:
        return prefix
    is_short = len(prefix) < PREFIX_CHARACTERS_MIN
    matches = [] if is_short else [row.id for row in log.sessions() if row.id.startswith(prefix)]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        short = f"; a shortened id needs at least {PREFIX_CHARACTERS_MIN} characters" if is_short else ""
        raise UserError(f"there is no session {prefix!r}{short}; `holdfast sessions list` shows all")
    more = f" and {len(matches) - CANDIDATES_MAX} more" if len(matches) > CANDIDATES_MAX else ""
    candidates = ", ".join(matches[:CANDIDATES_MAX])
    raise UserError(f"{len(matches)} sessions begin with {prefix!r}: {candidates}{more}; give more characters")


def open_spending_cache(models: "Models") -> "SpendingCache":
    """The sums of sessions that earlier reports of this user have computed."""
    from holdfast.sources.files import holdfast_home
    from holdfast.stores.spending_cache import FILE_NAME, SpendingCache

    return SpendingCache(holdfast_home(os.environ) / FILE_NAME, models)


def load_configured_models() -> "Models":
    """The shipped model catalog with the overrides of the configuration applied."""
    from holdfast.catalog.lookup import apply_model_overrides, shipped_models
    from holdfast.runtime.config import load_config

    return apply_model_overrides(shipped_models(), load_config(os.environ, workspace=Path.cwd()).models)


@contextmanager
def open_store_with_records(db: str | None) -> "Iterator[tuple[Store, StoreRecords]]":
    """Open the store and its records (keys and other data outside the event log); creates a missing file."""
    from holdfast.stores.open import open_store

    address, _ = resolve_store_address(db or None)
    with contextlib.closing(open_store(address, models=load_configured_models())) as log:
        yield log, log.records
