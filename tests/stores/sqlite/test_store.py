"""The SQLite store when a write fails, a row is damaged, or its process behaves unusually."""

import gc
import os
import resource
import sqlite3
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Barrier, Thread, Timer, active_count
from threading import Event as Signal

import pytest
from tests.support.event_examples import event, message_event, message_events

from holdfast.errors import StoreError
from holdfast.events.payloads.session import MessageAppended
from holdfast.stores.event_log import READ_BATCH_EVENTS
from holdfast.stores.migrate import load_migrations
from holdfast.stores.sql.connection import IDLE_MAX, ConnectionPool, SqlReader
from holdfast.stores.sql.dialect import SQLITE
from holdfast.stores.sql.events import (
    EVENT_POSITION,
    EVENTS_PAGE,
    SESSION_EXISTS,
    SESSIONS_NEWEST_FIRST,
    encode_events,
    tally_sessions,
)
from holdfast.stores.sqlite.file import open_reader, open_writer, prepare_file
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.sqlite.writer import SqliteEngine, SqliteWriter, identify_file
from holdfast.stores.write.queue import AppendJob, WriterThread
from holdfast.types.blocks import make_user_message


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def failure(done: Future[None]) -> str:
    error = done.exception(timeout=10)
    assert isinstance(error, StoreError)
    return str(error)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


def test_a_locked_file_fails_every_waiting_and_later_append(path: Path) -> None:
    with SqliteStore(path, busy_seconds_max=0.05) as store, closing(sqlite3.connect(path)) as other:
        store.append([message_event(0)]).result(10)
        other.execute("BEGIN IMMEDIATE")
        waiting = [store.append([message_event(number)]) for number in range(1, 50)]
        assert {failure(done) for done in waiting} == {
            f"{path} is locked by another program: close that program, then open the store again"
        }
        other.rollback()
        # After a lost write, a later one would leave a gap.
        assert "is locked by another program" in failure(store.append([message_event(50)]))
        with pytest.raises(StoreError, match="is locked by another program"):
            store.delete("s")
        assert list(store.read("s")) == [message_event(0)]
    with SqliteStore(path) as store:
        store.append([message_event(1)]).result(10)
        assert list(store.read("s")) == message_events(2)


def test_a_briefly_locked_file_is_waited_for(path: Path) -> None:
    with SqliteStore(path, busy_seconds_max=5) as store:
        with closing(sqlite3.connect(path, check_same_thread=False)) as other:
            other.execute("BEGIN IMMEDIATE")
            Timer(0.1, other.rollback).start()
            store.append([message_event(0)]).result(10)
        assert list(store.read("s")) == [message_event(0)]


def test_a_full_disk_fails_the_append_and_keeps_the_stored_events(path: Path) -> None:
    prepare_file(path)
    connection = open_writer(path, load_migrations("sqlite"), busy_seconds_max=1)
    # SQLite reports the end of this limit exactly like a full disk.
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 8}")
    writes = SqliteWriter(connection, engine_of(path), {})
    writer = WriterThread(writes.commit, writes.close)
    answers: list[Future[None]] = []
    for number in range(3):
        events = [message_event(number, text="x" * 20_000 * number)]
        answers.append(Future())
        writer.submit(AppendJob(encode_events(events), tally_sessions(events), answers[-1]))
        answers[-1].exception(timeout=10)
    writer.close(StoreError("closed"))
    assert answers[0].exception() is None
    assert "no space left to write" in failure(answers[2])
    with SqliteStore(path) as store:
        assert [row.event_count for row in store.sessions()] == [len(list(store.read("s")))]


def test_a_failing_disk_fails_the_append_and_keeps_the_stored_events(path: Path) -> None:
    with SqliteStore(path) as store:
        store.append([message_event(0)]).result(10)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
        try:
            refusal = failure(store.append([message_event(1, text="x" * 200_000)]))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert refusal == f"the disk failed under {path}: check the disk, then open the store again"
        assert list(store.read("s")) == [message_event(0)]
    with SqliteStore(path) as store:
        assert list(store.read("s")) == [message_event(0)]


def remove(path: Path) -> None:
    path.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("other.db"))


def replace_by_another(path: Path) -> None:
    move(path)
    with SqliteStore(path):
        pass


@pytest.mark.parametrize("lose", [remove, move, replace_by_another])
def test_nothing_is_acknowledged_once_the_file_is_gone(path: Path, lose: Callable[[Path], None]) -> None:
    with SqliteStore(path) as store:
        store.append([message_event(0)]).result(10)
        lose(path)
        assert failure(store.append([message_event(1)])) == (
            f"{path} was moved or deleted while it was in use: put it back, then open the store again"
        )


def test_reading_does_not_recreate_a_missing_file(path: Path) -> None:
    with SqliteStore(path) as store:
        path.unlink()
        with pytest.raises(StoreError, match="cannot be opened: check that it still exists"):
            list(store.read("s"))
        assert not path.exists()


def test_a_row_that_the_database_refuses_fails_its_append_and_no_other(path: Path) -> None:
    with SqliteStore(path) as store:
        change(
            path,
            "CREATE TRIGGER full BEFORE INSERT ON events WHEN NEW.session_id = 's' "
            "BEGIN SELECT RAISE(ABORT, 'a secret'); END",
        )
        refused, other = store.append([message_event(0)]), store.append([message_event(0, "t")])
        assert failure(refused) == (
            f"{path} refused a change because of a constraint of its tables: check for a duplicate"
        )
        other.result(10)
        store.append([message_event(1, "t")]).result(10)
        assert [row.id for row in store.sessions()] == ["t"]


def test_a_damaged_file_is_reported_when_it_is_read(path: Path) -> None:
    with SqliteStore(path):
        pass
    empty_bytes = path.stat().st_size
    with SqliteStore(path) as store:
        store.append(message_events(400)).result(10)
    content = bytearray(path.read_bytes())
    content[empty_bytes:] = b"\xa5" * (len(content) - empty_bytes)
    path.write_bytes(content)
    with SqliteStore(path) as store:
        with pytest.raises(StoreError, match="is damaged: restore it from a backup"):
            list(store.read("s"))
        assert "is damaged" in failure(store.append([message_event(999)]))


NEWER = "was written by a newer Holdfast: upgrade holdfast to read this session"
DAMAGED = "is damaged: restore the database from a backup, or delete session 's'"

UNREADABLE = {
    "type = 'tea.served', payload = '{\"type\":\"tea.served\"}'": f"of type 'tea.served', version 1, {NEWER}",
    "version = 2, payload = '{}'": f"of type 'message.appended', version 2, {NEWER}",
    "payload = '{}'": f"of type 'message.appended', version 1, {DAMAGED}",
    "payload = 'a secret'": f"of type 'message.appended', version 1, {DAMAGED}",
    "payload = x'00ff'": f"of type 'message.appended', version 1, {DAMAGED}",
    "actor = 'a secret'": f"of type 'message.appended', version 1, {DAMAGED}",
    "at = 'noon'": f"of type 'message.appended', version 1, {DAMAGED}",
    "version = 'two'": f"of type 'message.appended', version 'two', {DAMAGED}",
    f"type = '{'long' * 100}', payload = '{{}}'": f"of type '{'long' * 19}lon, version 1, {NEWER}",
}


@pytest.mark.parametrize("damage", UNREADABLE)
def test_an_unreadable_event_is_named_after_those_before_it_were_returned(path: Path, damage: str) -> None:
    with SqliteStore(path) as store:
        store.append([*message_events(3), message_event(0, "other")]).result(10)
        change(path, f"UPDATE events SET {damage} WHERE id = 's-000002'")
        reading = store.read("s")
        assert [next(reading), next(reading)] == message_events(2)
        with pytest.raises(StoreError) as refusal:
            next(reading)
        assert str(refusal.value) == f"event 's-000002' {UNREADABLE[damage]}"
        assert list(store.read("other")) == [message_event(0, "other")]
        store.append([message_event(3)]).result(10)


def test_a_readable_event_of_a_newer_version_is_read(path: Path) -> None:
    with SqliteStore(path) as store:
        store.append(message_events(1)).result(10)
        change(path, "UPDATE events SET version = 2, payload = json_set(payload, '$.mood', 'fine')")
        (stored,) = store.read("s")
        assert (stored.version, stored.payload) == (2, message_event(0).payload)


def test_invalid_utf8_is_not_quoted(path: Path) -> None:
    with SqliteStore(path) as store:
        store.append(message_events(1)).result(10)
        change(path, "UPDATE events SET payload = CAST(x'61207365637265742080' AS TEXT)")
        with pytest.raises(StoreError, match="is damaged: restore it from a backup") as refusal:
            list(store.read("s"))
        assert "secret" not in str(refusal.value)


def test_a_damaged_session_list_is_reported(path: Path) -> None:
    with SqliteStore(path) as store:
        store.append(message_events(1)).result(10)
        change(path, "UPDATE sessions SET event_count = 'many'")
        with pytest.raises(StoreError, match="the list of sessions is damaged: restore the database from a backup"):
            store.sessions()


def test_a_deleted_session_leaves_no_trace_in_the_files(path: Path) -> None:
    secret = "the combination is 0451"
    with SqliteStore(path) as store:
        store.append(
            [event("e", MessageAppended(make_user_message(secret * 500))), *message_events(50, "other")]
        ).result(10)
        assert secret.encode() in b"".join(file.read_bytes() for file in path.parent.iterdir())
        store.delete("s")
        assert secret.encode() not in b"".join(file.read_bytes() for file in path.parent.iterdir())
        assert list(store.read("other")) == message_events(50, "other")


def test_a_log_position_is_never_reused(path: Path) -> None:
    with SqliteStore(path) as store:
        store.append(message_events(3)).result(10)
        reading = store.read("s")
        assert next(reading) == message_event(0)
        store.delete("s")
        store.append(message_events(200, start=100)).result(10)
        # The first batch was read before the deletion; none of the later events is missed.
        assert list(reading) == [message_event(1), message_event(2), *message_events(200, start=100)]


def test_a_long_session_is_read_a_batch_at_a_time(path: Path) -> None:
    with SqliteStore(path) as store:
        store.append(message_events(2 * READ_BATCH_EVENTS)).result(10)
        reading = store.read("s")
        first_batch = [next(reading) for _ in range(READ_BATCH_EVENTS)]
        change(path, f"DELETE FROM events WHERE id = '{message_event(READ_BATCH_EVENTS).id}'")
        assert first_batch == message_events(READ_BATCH_EVENTS)
        assert list(reading) == message_events(READ_BATCH_EVENTS - 1, start=READ_BATCH_EVENTS + 1)


@pytest.mark.parametrize(
    "query",
    [SQLITE.translate(query) for query in (EVENTS_PAGE, EVENT_POSITION, SESSION_EXISTS, SESSIONS_NEWEST_FIRST)],
)
def test_no_read_fetches_more_rows_than_it_returns(path: Path, query: str) -> None:
    with SqliteStore(path) as store:
        store.append(message_events(1)).result(10)
        with closing(open_reader(path, busy_seconds_max=1)) as connection:
            steps = connection.execute(f"EXPLAIN QUERY PLAN {query}", ["s"] * query.count("?")).fetchall()
    plan = " / ".join(step[3] for step in steps)
    assert "INDEX" in plan or "PRIMARY KEY" in plan
    assert "TEMP B-TREE" not in plan
    assert "SCAN events" not in plan


def test_reading_does_not_wait_for_the_writer(path: Path) -> None:
    with SqliteStore(path, busy_seconds_max=5) as store, closing(sqlite3.connect(path)) as other:
        store.append(message_events(2)).result(10)
        other.execute("BEGIN IMMEDIATE")
        pending = store.append([message_event(2)])
        assert list(store.read("s")) == message_events(2)
        assert not pending.done()
        other.rollback()
        pending.result(10)


def test_queued_events_are_written_before_the_store_closes(path: Path) -> None:
    with SqliteStore(path) as store:
        appends = [store.append([message_event(number)]) for number in range(500)]
    assert all(done.exception(timeout=0) is None for done in appends)
    with SqliteStore(path) as store:
        assert list(store.read("s")) == message_events(500)


def test_an_abandoned_store_writes_its_queue_and_ends_its_thread(path: Path) -> None:
    before = active_count()
    store = SqliteStore(path)
    appends = [store.append([message_event(number)]) for number in range(100)]
    list(store.read("s"))
    assert active_count() == before + 1
    del store
    gc.collect()
    assert active_count() == before
    assert all(done.exception(timeout=0) is None for done in appends)


def test_a_reader_that_outlives_its_store_gets_an_error(path: Path) -> None:
    with SqliteStore(path) as store:
        store.append(message_events(1)).result(10)
        reading = store.read("s")
    with pytest.raises(StoreError, match=f"the store {path} is closed: open it again"):
        next(reading)


def test_a_callback_may_append_and_close_but_not_wait_for_a_deletion(path: Path) -> None:
    store = SqliteStore(path, queue_bytes_max=1)
    finished = Signal()
    outcomes: list[Future[None] | str] = []

    def follow_up(_: Future[None]) -> None:
        outcomes.extend(store.append([message_event(number)]) for number in range(1, 4))
        try:
            store.delete("s")
        except StoreError as error:
            outcomes.append(str(error))
        store.close()
        finished.set()

    first = store.append([message_event(0)])
    first.add_done_callback(follow_up)
    assert finished.wait(10)
    assert outcomes[3] == "an append callback runs on the writer thread and cannot wait for it: use another thread"
    assert [done.exception(timeout=10) for done in outcomes if isinstance(done, Future)] == [None] * 3
    with SqliteStore(path) as again:
        assert list(again.read("s")) == message_events(4)


def test_a_forked_process_must_open_the_store_itself(path: Path) -> None:
    with SqliteStore(path) as store:
        store.append([message_event(0)]).result(10)
        read_end, write_end = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            errors = [failure(store.append([message_event(1)]))]
            for attempt in (lambda: store.read("s"), store.sessions, lambda: store.delete("s")):
                try:
                    attempt()
                except StoreError as error:
                    errors.append(str(error))
            store.close()
            os.write(write_end, "\n".join(errors).encode())
            os._exit(0)
        os.close(write_end)
        with open(read_end) as pipe:
            errors = pipe.read().split("\n")
        assert os.waitpid(child, 0)[1] == 0
        assert errors == [f"the store {path} was opened before this process was forked: open it again here"] * 4
        store.append([message_event(1)]).result(10)
        assert list(store.read("s")) == message_events(2)


def test_readers_share_connections_and_few_remain_open(path: Path) -> None:
    with SqliteStore(path):
        connections: list[sqlite3.Connection] = []
        all_there = Barrier(IDLE_MAX + 2)

        def connect() -> sqlite3.Connection:
            connections.append(open_reader(path, busy_seconds_max=1))
            connections[-1].create_function("meet", 0, lambda: all_there.wait(10))
            return connections[-1]

        reads = SqlReader(engine_of(path), ConnectionPool(connect))
        for _ in range(3):
            assert reads.fetch("SELECT 1", ()) == [(1,)]
        assert len(connections) == 1

        together = [Thread(target=reads.fetch, args=("SELECT meet()", ())) for _ in range(IDLE_MAX + 2)]
        for thread in together:
            thread.start()
        for thread in together:
            thread.join()
        assert len(connections) == IDLE_MAX + 2
        assert sum(map(is_open, connections)) == IDLE_MAX
        reads.close()
        assert not any(map(is_open, connections))
        assert reads.fetch("SELECT 1", ()) == [(1,)]
        assert not any(map(is_open, connections))


def test_a_change_beside_the_log_goes_to_the_file_that_is_at_the_path_now(path: Path, tmp_path: Path) -> None:
    SqliteStore(tmp_path / "other.db").close()
    with SqliteStore(path) as store:
        assert store.instructions.consume_wake_token("a", expires_at=2, at=1)
        for beside in ("-wal", "-shm"):
            os.unlink(f"{path}{beside}")
        os.replace(tmp_path / "other.db", path)
        assert store.instructions.consume_wake_token("b", expires_at=2, at=1)
    with closing(sqlite3.connect(path)) as now:
        assert now.execute("SELECT jti FROM instruction_wakes").fetchall() == [("b",)]


def engine_of(path: Path) -> SqliteEngine:
    return SqliteEngine(str(path), partial(identify_file, path))


def is_open(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return False
    return True
