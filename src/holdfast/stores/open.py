"""Opens the store that an address names."""

import os
import re

from holdfast.catalog.lookup import Models
from holdfast.errors import UserError
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.memory import MemoryStore
from holdfast.stores.migrate import MigrationMode
from holdfast.stores.sqlite.read_only import ReadOnlySqliteStore
from holdfast.stores.sqlite.store import SqliteStore

Store = DatabaseEventLog

# A single letter is a Windows drive, not a scheme.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_ADDRESS_FORMS = "a path (./PATH if it holds a colon), sqlite:///PATH, postgresql://USER@HOST/DATABASE, or memory:"


def open_store(
    address: str | os.PathLike[str],
    *,
    models: Models | None = None,
    read_only: bool = False,
    migration_mode: MigrationMode = "create",
) -> Store:
    """Opens the store at a path or URL. The part after `sqlite:///` is a path; an absolute one adds a slash.

    Calls are judged and priced with `models`, by default with the catalog. With `read_only` nothing is created, written
    or migrated; a file may be on read-only media, or open in another process. A file is migrated when it is opened; a
    PostgreSQL database of an older version only if `migration_mode` says so, because other programs may be using it.
    """
    text = os.fspath(address)
    scheme = _SCHEME.match(text) if isinstance(address, str) else None
    if scheme is None:
        return _open_file(text, models, read_only=read_only)
    match scheme[1].lower():
        case "memory" if text[scheme.end() :] in ("", "//"):
            return MemoryStore(models=models)
        case "sqlite" if text.startswith("///", scheme.end()):
            return _open_file(text[scheme.end() + 3 :], models, read_only=read_only)
        case "postgresql" | "postgres" if text.startswith("//", scheme.end()):
            return _open_postgres(f"postgresql:{text[scheme.end() :]}", models, read_only, migration_mode)
        case name:
            # Do not quote the rest of the address: it may contain a password.
            raise UserError(f"{name + ':'!r} is not a known kind of store: use {_ADDRESS_FORMS}")


def _open_file(path: str, models: Models | None, *, read_only: bool) -> Store:
    if path.startswith("~"):
        raise UserError(f"{path!r} is not expanded: write the home folder in full, or ./~ for a folder of that name")
    return ReadOnlySqliteStore(path, models=models) if read_only else SqliteStore(path, models=models)


def _open_postgres(url: str, models: Models | None, read_only: bool, migration_mode: MigrationMode) -> Store:
    try:
        from holdfast.stores.postgres.store import PostgresStore  # noqa: PLC0415 - the driver is an optional extra
    except ImportError as error:
        raise UserError("PostgreSQL needs its driver: pip install 'holdfast-context[postgres]'") from error
    return PostgresStore(url, models=models, read_only=read_only, migration_mode=migration_mode)
