"""No statement reads a whole table that grows: the plan of each is read on generated rows.

20,000 events by default, which plans are then made for without sequential scans; `HOLDFAST_PLAN_EVENTS=10000000`
(`make deep`) takes the plans as the server makes them.
"""

import os
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support.postgres_server import new_database, run
from tests.support.sql_statements import load_statements

from holdfast.stores.postgres.store import PostgresStore

EVENTS = int(os.environ.get("HOLDFAST_PLAN_EVENTS", "20000"))
IS_LARGE = EVENTS > 1_000_000

# Sessions of 100 events over four months, a call for every five events.
GENERATED = [
    "INSERT INTO holdfast.sessions (id, model, started_at, last_event_at, event_count, entered_events, head_events, "
    "last_event_id) SELECT 's' || s, 'm', {at}, {at} + 99, 100, 100, 100, 'e' || s || '-99' "
    "FROM generate_series(0, {events} / 100 - 1) AS s, LATERAL (SELECT s * 100 AS i) AS n",
    "INSERT INTO holdfast.events (id, at, session_id, parent_event_id, type, actor, sensitivity, version, payload) "
    "SELECT 'e' || i / 100 || '-' || i % 100, {at}, 's' || i / 100, "
    "CASE WHEN i % 100 > 0 THEN 'e' || i / 100 || '-' || i % 100 - 1 END, "
    "CASE WHEN i % 100 = 0 THEN 'session.started' ELSE (ARRAY['llm.call_completed', 'message.appended', "
    "'request.prepared', 'llm.call_started', 'turn.completed'])[1 + i % 5] END, 'agent', 'low', 1, repeat('x', 100) "
    "FROM generate_series(0, {events} - 1) AS i",
    "INSERT INTO holdfast.calls (session_id, number, event_id, at, day, provider, model, input, cache_read, "
    "cache_write_5m, cache_write_1h, cache_write_other, output, spent, uncached, lost, price_version, latency_ms, "
    "latency_bits, retries, outcome, stop_reason, request_id, chain, blocks_shared, blocks_before, plan, kind, "
    "lost_tokens, key_id) SELECT 's' || i / 100, i % 100, 'e' || i / 100 || '-' || i % 100, {at}, "
    "to_char(to_timestamp({at}), 'YYYY-MM-DD'), 'p', 'm', 1, 1, 1, 1, 1, 1, 1, 1, i % 2, 'v', 5, 3, 0, 'completed', "
    "'end', 'r', 'c', 1, 1, '{{}}', CASE WHEN i % 10 = 0 THEN 'expired' ELSE 'held' END, 1, 'k' || i % 50 "
    "FROM generate_series(0, {events} - 1, 5) AS i",
    "INSERT INTO holdfast.conversation_keys SELECT md5((i / 2)::text), {at}, 's' || i / 100 "
    "FROM generate_series(0, {events} - 1, 5) AS i",
    *(
        f"INSERT INTO holdfast.{table} (session_id, event_id, at, day, provider, model, {columns}) "
        f"SELECT 's' || i / 100, 'e' || i, {{at}}, to_char(to_timestamp({{at}}), 'YYYY-MM-DD'), 'p', 'm', {values} "
        "FROM generate_series(0, {events} - 1, 10) AS i"
        for table, columns, values in (
            ("charges", "type, spent", "'cache.pinged', 1"),
            ("failures", "outcome, latency_ms, latency_bits, retries", "'overloaded', 1, 1, 1"),
        )
    ),
    "INSERT INTO holdfast.session_days SELECT 's' || i, to_char(to_timestamp({at}), 'YYYY-MM-DD'), 0, "
    "1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 FROM generate_series(0, {events} / 100 - 1) AS i",
    "INSERT INTO holdfast.reservations SELECT 'r' || i, 'k' || i % 50, '2026-01-01', 1, 0, {at}, i / 10 % 2 "
    "FROM generate_series(0, {events} - 1, 10) AS i",
    "INSERT INTO holdfast.shared_values SELECT 'v' || i, '', {at} FROM generate_series(0, {events} - 1, 10) AS i",
    "INSERT INTO holdfast.instruction_encodings SELECT convert_to('k' || i, 'UTF8'), '', i "
    "FROM generate_series(0, {events} - 1, 10) AS i",
]
GROWING = {
    *("sessions", "events", "calls", "charges", "failures", "conversation_keys", "session_days", "reservations"),
    *("shared_values", "instruction_encodings"),
}

# Statements that are about all rows, with the reason.
ABOUT_ALL_ROWS = {
    r"^SELECT count\(\*\), CAST\(coalesce\(sum\(event_count\)": "`db info` counts everything",
    r"^DELETE FROM holdfast\.\w+$": "`db rebuild` empties the tables",
    r"^UPDATE holdfast\.sessions SET entered_events = -1(, \w+_total = 0)*$": "`db rebuild` marks every session",
    r"^SELECT count\(\*\) FROM holdfast\.sessions AS s WHERE s\.is_simulated <= %s": "lists of sessions say how many",
    r"FROM holdfast\.sessions AS s WHERE .*ORDER BY s\.\w+_total.* LIMIT %s": "an index would be written each call",
    r"^SELECT 1 FROM holdfast\.sessions AS s WHERE s\.is_simulated > 0": "an index would be written for all",
    r"^SELECT [\w, ]+ FROM holdfast\.(calls|charges|failures|\w*_?days)$": "`db info --check` compares everything",
    r"^SELECT s\.id, count\(e\.id\) FROM holdfast\.sessions": "`db prune` counts the events of all old sessions",
    r"AS spent FROM holdfast\.sessions AS s (WHERE .*)?ORDER BY spent DESC": "all sessions in the order of their cost",
    r"^DELETE FROM holdfast\.reservations WHERE at < ": "a plan without the time expects a third of the rows to be old",
    r"^SELECT 1 FROM holdfast\.sessions WHERE entered_events": "an index of the pending sessions alone, read in full",
    r"^SELECT 1 FROM holdfast\.sessions WHERE started_at < ": "`db prune` locks the sessions of a month",
    r"^SELECT \* FROM |^DELETE FROM holdfast\.events RETURNING|SELECT '2', at|SET event_count = 2": "sent by a test",
}


@pytest.fixture(scope="module")
def filled_database() -> Iterator[str]:
    with new_database() as url:
        PostgresStore(url).close()
        at = f"(extract(epoch FROM now()) - 5184000 + i * 10368000.0 / {EVENTS})"
        run(url, *(statement.format(at=at, events=EVENTS) for statement in GENERATED), "VACUUM ANALYZE")
        yield url


def test_no_statement_reads_a_whole_table_that_grows(filled_database: str) -> None:
    statements = sorted(load_statements())
    assert len(statements) > 100
    scans: list[str] = []
    with psycopg.connect(filled_database, autocommit=True) as connection:
        parts = connection.execute("SELECT name, parent FROM holdfast.partitions").fetchall()
        growing = {str(name) for name, parent in parts} | GROWING
        if IS_LARGE:
            # A hundred thousand sessions may be read for a join; that an index could be used, the small tables show.
            large = "SELECT relname FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace AND reltuples > 150000"
            growing = {str(name) for (name,) in connection.execute(large)}
        # Retention keeps the sessions of a month in it.
        connection.execute('CREATE TEMPORARY TABLE touched (session_id text COLLATE "C")')
        connection.execute(f"SET enable_seqscan = {'on' if IS_LARGE else 'off'}")
        for statement in statements:
            if any(re.search(pattern, statement) for pattern in ABOUT_ALL_ROWS):
                continue
            ((plan,),) = connection.execute(
                f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {number_parameters(statement)}".encode()
            )
            scans += [f"{table}: {statement}" for table in find_full_scans(plan[0]["Plan"]) if table in growing]
    assert not scans, "\n".join(scans)


def number_parameters(statement: str) -> str:
    """The statement with $1, $2 ... for its parameters, as the server takes it."""
    numbers = iter(range(1, 1_000))
    return re.sub(r"%%|%s", lambda found: "%" if found[0] == "%%" else f"${next(numbers)}", statement)


def find_full_scans(plan: dict[str, Any], *, is_limited: bool = False) -> Iterator[str]:
    """The tables and, of many rows, the indexes that a plan reads in full: without a condition, and without a limit."""
    is_limited = is_limited or plan["Node Type"] == "Limit"
    is_scan = "Relation Name" in plan and "Scan" in plan["Node Type"] and plan["Node Type"] != "Bitmap Heap Scan"
    # Of few rows, reading all in the order of an index may be the best plan for a join.
    is_whole = plan["Node Type"] == "Seq Scan" or (IS_LARGE and "Index Cond" not in plan and not is_limited)
    if is_scan and is_whole:
        # A partial index may be read in full where it is small.
        yield plan["Index Name"] if IS_LARGE and "Index Name" in plan else plan["Relation Name"]
    for child in plan.get("Plans", ()):
        # A sort or an aggregate reads everything, whatever limit is above it.
        reads_all = plan["Node Type"] in ("Sort", "Aggregate", "Hash", "WindowAgg")
        yield from find_full_scans(child, is_limited=is_limited and not reads_all)
