"""How a database becomes what this version expects: numbered SQL files, applied in order, never back."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import count

import msgspec

_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


class Migration(msgspec.Struct, frozen=True):
    version: int
    name: str
    sql: str


def load(dialect: str) -> tuple[Migration, ...]:
    """The migrations of a dialect; the version of each is its place in the row, counted from 1."""
    found = []
    for entry in files("holdfast.stores").joinpath("migrations", dialect).iterdir():
        if name := _FILE_NAME.fullmatch(entry.name):
            found.append(Migration(int(name[1]), name[2], entry.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.version)
    return in_sequence(found)


def in_sequence(migrations: Sequence[Migration]) -> tuple[Migration, ...]:
    for version, migration in zip(count(1), migrations, strict=False):
        if migration.version != version:
            raise ValueError(f"migration {migration.name!r} has number {migration.version}, {version} is next")
    return tuple(migrations)


def version_of(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def bring_forward(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """Apply what is missing, each migration whole or not at all; several processes may do so at once."""
    while version_of(connection) < len(migrations):
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            # Read again under the lock: another process may have been faster.
            version = version_of(connection)
            for migration in migrations[version : version + 1]:
                for statement in statements(migration.sql):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {migration.version}")


def statements(script: str) -> Iterator[str]:
    """The statements of a script, each of which must end its line.

    `executescript` would commit the transaction that the migration runs in.
    """
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        yield pending
