"""Brings a database to the current schema: numbered SQL files, applied in order, forward only."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.errors import StoreError

_FOLDER = Path(__file__).with_name("migrations")
_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
# What may be done to a schema: create it in an empty database, bring it up to date, also with losses.
MigrationMode = Literal["create", "migrate", "irreversible"]
_IRREVERSIBLE = re.compile(r"^-- irreversible: (.+)$", re.MULTILINE)
_OLDEST_PROGRAM = re.compile(r"^-- oldest program: (\d+)$", re.MULTILINE)


class Migration(msgspec.Struct, frozen=True):
    """Comments in the SQL declare the rare exceptions: `-- irreversible: REASON`, and `-- oldest program: VERSION`."""

    version: int
    name: str
    sql: str

    @property
    def irreversible_reason(self) -> str | None:
        """Why what it removes cannot be brought back; None if it only adds."""
        found = _IRREVERSIBLE.search(self.sql)
        return found and found[1]

    @property
    def oldest_program(self) -> int:
        """The schema version that a program must know to work on the result."""
        found = _OLDEST_PROGRAM.search(self.sql)
        return int(found[1]) if found else 1


def load_migrations(dialect: str) -> tuple[Migration, ...]:
    """The migrations of a dialect, numbered 1, 2, 3, ... without gaps."""
    migrations = []
    for entry in (_FOLDER / dialect).iterdir():
        if match := _FILE_NAME.fullmatch(entry.name):
            migrations.append(Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    migrations.sort(key=lambda migration: migration.version)
    return check_sequence(migrations)


def check_sequence(migrations: Sequence[Migration]) -> tuple[Migration, ...]:
    for version, migration in zip(count(1), migrations, strict=False):
        if migration.version != version:
            raise ValueError(f"migration {migration.name!r} has number {migration.version}, expected {version}")
    return tuple(migrations)


def refuse_irreversible(migration: Migration, name: str) -> None:
    """Raises StoreError: what a migration removes for good, a person has to agree to."""
    if (reason := migration.irreversible_reason) is not None:
        raise StoreError(
            f"migration {migration.version} of {name} cannot be undone ({reason}): back up the database, then run "
            "`holdfast db migrate --irreversible`"
        )


def read_sqlite_version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def migrate_sqlite(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """Applies the missing migrations; several processes may do so concurrently.

    Each is one transaction, except in an empty database: all at once take half the time, for one wait for the disk.
    """
    while read_sqlite_version(connection) < len(migrations):
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            # Read again under the lock: another process may have applied it in the meantime.
            version = read_sqlite_version(connection)
            for migration in migrations[version : version + 1] if version else migrations:
                for statement in split_statements(migration.sql):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {migration.version}")


def split_statements(script: str) -> Iterator[str]:
    """The statements of a script; each must end at the end of a line.

    `executescript` cannot be used: it would commit the transaction of the migration.
    """
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        yield pending
