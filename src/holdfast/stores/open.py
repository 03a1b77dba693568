"""Which store an address means."""

import os
import re

from holdfast.catalog.lookup import Models
from holdfast.errors import UserError
from holdfast.stores.database import DatabaseLog
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore

Store = MemoryStore | DatabaseLog

# One letter is a drive and not a scheme.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")

_UNDERSTOOD = "a path (./PATH if it holds a colon), sqlite:///PATH, postgresql://USER@HOST/DATABASE, or memory:"


def open_store(address: str | os.PathLike[str], *, models: Models | None = None) -> Store:
    """The store at a path or URL. Behind `sqlite:///` stands a path: an absolute one adds a slash.

    By `models`, if not by those of the catalog, calls are judged as they are entered into the tables.
    """
    text = os.fspath(address)
    scheme = _SCHEME.match(text) if isinstance(address, str) else None
    if scheme is None:
        return _open_file(text, models)
    match scheme[1].lower():
        case "memory" if text[scheme.end() :] in ("", "//"):
            return MemoryStore(models=models)
        case "sqlite" if text.startswith("///", scheme.end()):
            return _open_file(text[scheme.end() + 3 :], models)
        case "postgresql" | "postgres" if text.startswith("//", scheme.end()):
            return _open_postgres(f"postgresql:{text[scheme.end() :]}", models)
        case name:
            # The rest of the address stays out of the message: it can hold a password.
            raise UserError(f"{name + ':'!r} does not name a store in a way that is understood: use {_UNDERSTOOD}")


def _open_file(path: str, models: Models | None) -> SqliteStore:
    if path.startswith("~"):
        raise UserError(f"{path!r} is not expanded: write the home folder out, or ./~ for a folder of that name")
    return SqliteStore(path, models=models)


def _open_postgres(url: str, models: Models | None) -> Store:
    try:
        from holdfast.stores.postgres import PostgresStore  # noqa: PLC0415 - its driver is an extra
    except ImportError as error:
        raise UserError("PostgreSQL needs its driver: pip install 'holdfast[postgres]'") from error
    return PostgresStore(url, models=models)
