"""Checks that the tables of a database equal what its log adds up to."""

from collections.abc import Iterator

from msgspec.structs import astuple

from holdfast.catalog.lookup import Models
from holdfast.ledger.postings import postings
from holdfast.ledger.rollups import ROLLUPS, Totals
from holdfast.stores.database import DatabaseLog
from holdfast.stores.table_rows import TABLES, TableRow, row_of


def differences(log: DatabaseLog, models: Models) -> Iterator[str]:
    """Each table that differs from the events; tables with rows per session are checked session by session."""
    log.catch_up()
    totals = Totals()
    for session in log.sessions():
        rows: dict[type[TableRow], list[tuple[object, ...]]] = {kind: [] for kind in TABLES}
        for posting in postings(log.read(session.id), models):
            totals.post((posting,))
            row = row_of(posting)
            rows[type(row)].append(astuple(row))
        for kind, table in TABLES.items():
            stored = log.table_rows(table, kind.__struct_fields__, session.id)
            if sorted(rows[kind], key=repr) != sorted(stored, key=repr):
                yield f"{table} of session {session.id!a}"
    for rollup in ROLLUPS:
        expected = {(*key, *sums) for key, sums in totals.rows(rollup).items()}
        if expected != set(log.table_rows(rollup.name, rollup.keys + rollup.sums)):
            yield rollup.name
