"""How many events a second SQLite and PostgreSQL take: in group commits, and when each append is awaited.

For comparison: SQLite itself with the same encoded rows, in a table with the same indexes, synced as often. The ratio
is more reliable than a figure from a busy machine.
"""

import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TypeVar

from msgspec.structs import astuple

from benchmarks._calls import CALLS_A_SESSION, EVENTS_A_CALL, START, session_of_calls
from holdfast.events.log import Event, EventLog
from holdfast.events.payloads.session import MessageAppended
from holdfast.stores.open import open_store
from holdfast.stores.sql.events import EVENT_COLUMNS, encode_events
from holdfast.stores.write.queue import GROUP_JOBS_MAX
from holdfast.types.blocks import make_user_message

GROUPED_EVENTS = 20_000
SINGLE_EVENTS = 500
ROUNDS = 5
EVENTS_AT_ONCE = 10
TEXT = "A message of the length that most have in a session with many tool calls. " * 3

T = TypeVar("T")
Appends = Sequence[tuple[Event, ...]]
Opens = Callable[[], AbstractContextManager[EventLog]]


def run() -> list[tuple[str, str]]:
    """Rows of name and figure; of each measurement the best round counts."""
    rows = [*_measure_store("SQLite", _in_a_file), *_compare_with_sqlite()]
    try:
        return rows + _measure_store("PostgreSQL", on_a_server)
    except ImportError as error:
        return [*rows, ("PostgreSQL", f"not measured, {error.name} is not installed")]


def _measure_store(engine: str, opened: Opens) -> list[tuple[str, str]]:
    batches = [tuple(batch) for batch in _split(_events(GROUPED_EVENTS), EVENTS_AT_ONCE)]
    each = _events_per_second(opened, _append_and_wait, [(event,) for event in _events(SINGLE_EVENTS)])
    singly = _events_per_second(opened, _append_then_wait, [(event,) for event in _events(GROUPED_EVENTS)])
    together = _events_per_second(opened, _append_then_wait, batches)
    calls = [tuple(batch) for batch in _split(_calls(GROUPED_EVENTS), EVENTS_AT_ONCE)]
    with_calls = _events_per_second(opened, _append_then_wait, calls)
    return [
        (f"{engine}, commit each, events/s", f"{each:,.0f}"),
        (f"{engine}, group commit, one event an append, events/s", f"{singly:,.0f}"),
        (f"{engine}, group commit, {EVENTS_AT_ONCE} events an append, events/s", f"{together:,.0f}"),
        (f"{engine}, the same, every fifth event a call that is rolled up, events/s", f"{with_calls:,.0f}"),
        (f"{engine}, group commit / commit each", f"{singly / each:.1f}x"),
    ]


def _compare_with_sqlite() -> list[tuple[str, str]]:
    """Round by round in turn, so that whatever else the machine does is in both."""
    rows = []
    for kind, events in (("messages", _events(GROUPED_EVENTS)), ("calls among them", _calls(GROUPED_EVENTS))):
        appends = [tuple(batch) for batch in _split(events, EVENTS_AT_ONCE)]
        rounds = [(_seconds(_in_a_file, _append_then_wait, appends), _bare_seconds(events)) for _ in range(ROUNDS)]
        ours, bare = (min(seconds) for seconds in zip(*rounds, strict=True))
        rows += [
            (f"SQLite, bare executemany of the same rows, {kind}, events/s", f"{len(events) / bare:,.0f}"),
            (f"SQLite, group commit / bare executemany, {kind}", f"{bare / ours:.2f}x"),
        ]
    return rows


def _bare_seconds(events: Sequence[Event]) -> float:
    rows = [astuple(row) for row in encode_events(events)]
    insert = f"INSERT INTO events ({', '.join(EVENT_COLUMNS)}) VALUES ({', '.join('?' * len(EVENT_COLUMNS))})"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.db"
        open_store(path).close()
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            started = time.perf_counter()
            for group in _split(rows, EVENTS_AT_ONCE * GROUP_JOBS_MAX):
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(insert, group)
                connection.execute("COMMIT")
            return time.perf_counter() - started


@contextmanager
def _in_a_file() -> Iterator[EventLog]:
    with tempfile.TemporaryDirectory() as folder, closing(open_store(Path(folder) / "log.db")) as store:
        yield store


@contextmanager
def on_a_server() -> Iterator[EventLog]:
    """The server of the tests, but with every commit synced to its disk, and with the memory of a server's defaults."""
    sys.path.append(str(Path(__file__).parents[1]))
    try:
        from tests.support.postgres_server import new_database  # noqa: PLC0415 - what it needs may not be installed
    finally:
        sys.path.pop()
    with new_database(synced=True) as url, closing(open_store(url)) as store:
        yield store


def vacuum(store: EventLog) -> None:
    """What autovacuum does within minutes of the last write, so that no measurement falls into it."""
    from holdfast.stores.postgres.store import PostgresStore  # noqa: PLC0415 - what it needs may not be installed

    assert isinstance(store, PostgresStore)
    with closing(store._server.connect()) as connection:
        connection.execute("VACUUM ANALYZE")


def _events_per_second(opened: Opens, append: Callable[[EventLog, Appends], None], appends: Appends) -> float:
    return sum(map(len, appends)) / min(_seconds(opened, append, appends) for _ in range(ROUNDS))


def _seconds(opened: Opens, append: Callable[[EventLog, Appends], None], appends: Appends) -> float:
    with opened() as store:
        started = time.perf_counter()
        append(store, appends)
        return time.perf_counter() - started


def _append_and_wait(store: EventLog, appends: Appends) -> None:
    for events in appends:
        store.append(events).result()


def _append_then_wait(store: EventLog, appends: Appends) -> None:
    for done in [store.append(events) for events in appends]:
        done.result()


def _events(count: int) -> list[Event]:
    payload = MessageAppended(make_user_message(TEXT))
    return [
        Event(id=f"{number:026d}", at=1_800_000_000.0 + number, session_id="s", actor="user", payload=payload)
        for number in range(count)
    ]


def _calls(count: int) -> list[Event]:
    sessions = count // (CALLS_A_SESSION * EVENTS_A_CALL)
    return [event for number in range(sessions) for event in session_of_calls(number, at=START)]


def _split(many: Sequence[T], size: int) -> list[Sequence[T]]:
    return [many[start : start + size] for start in range(0, len(many), size)]


if __name__ == "__main__":
    for name, figure in run():
        print(f"{name:<62} {figure:>12}")
