"""The PostgreSQL store with concurrent writers, failed writes and damaged rows."""

import gc
import os
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import active_count

import psycopg
import pytest
from msgspec.structs import astuple, replace
from tests.support.event_examples import message_event, message_events
from tests.support.postgres_server import run, wait_for_blocked_connections

from holdfast.errors import StoreError
from holdfast.stores.event_log import READ_BATCH_EVENTS
from holdfast.stores.postgres.server import explain_postgres_error
from holdfast.stores.postgres.store import COMMIT_ATTEMPTS_MAX, COPY_EVENTS, PostgresStore
from holdfast.stores.sql.dialect import POSTGRES
from holdfast.stores.sql.events import (
    ADD_TO_SESSION,
    EVENT_POSITION,
    EVENTS_PAGE,
    LEARNED_EVENTS,
    SESSION_EXISTS,
    SESSIONS_NEWEST_FIRST,
    encode_events,
    tally_sessions,
)


def failure(done: Future[None]) -> str:
    error = done.exception(timeout=20)
    assert isinstance(error, StoreError)
    assert "\n" not in str(error)
    return str(error)


def add_event_in_transaction(other: psycopg.Connection[tuple[object, ...]], number: int, session: str) -> None:
    """Everything that a store does to append one event, up to the commit."""
    events = [message_event(number, session)]
    tally = (*astuple(tally_sessions(events)[0]), len(events), len(events), events[-1].id, None)
    other.execute(POSTGRES.translate(ADD_TO_SESSION), tally)
    with other.cursor() as cursor, cursor.copy(COPY_EVENTS) as copy:
        copy.write_row(astuple(encode_events(events)[0]))


def test_an_append_comes_after_the_open_transaction_of_another_program_in_the_session(emptied_postgres: str) -> None:
    with PostgresStore(emptied_postgres) as store, psycopg.connect(emptied_postgres) as other:
        store.append([message_event(0)]).result(10)
        add_event_in_transaction(other, 1, "s")
        own_append = store.append([message_event(2)])
        wait_for_blocked_connections(emptied_postgres)
        # A reader that continues later misses nothing: new events are ordered after the existing ones.
        assert list(store.read("s")) == message_events(1)
        add_event_in_transaction(other, 3, "s")
        other.commit()
        own_append.result(10)
        assert list(store.read("s", after="s-000000")) == [message_event(1), message_event(3), message_event(2)]


def test_an_append_to_a_session_that_two_programs_start_waits_for_the_first(emptied_postgres: str) -> None:
    with PostgresStore(emptied_postgres) as store, psycopg.connect(emptied_postgres) as other:
        add_event_in_transaction(other, 0, "s")
        own_append = store.append([message_event(1)])
        wait_for_blocked_connections(emptied_postgres)
        other.commit()
        own_append.result(10)
        assert list(store.read("s")) == message_events(2)
        assert store.sessions()[0].event_count == 2


def test_a_deletion_includes_an_event_that_another_program_is_adding(emptied_postgres: str) -> None:
    with (
        PostgresStore(emptied_postgres) as store,
        psycopg.connect(emptied_postgres) as other,
        ThreadPoolExecutor() as pool,
    ):
        store.append([message_event(0)]).result(10)
        add_event_in_transaction(other, 1, "s")
        deletion = pool.submit(store.delete, "s")
        wait_for_blocked_connections(emptied_postgres)
        other.commit()
        assert deletion.result(10) == 2
        assert store.sessions() == ()
        assert list(store.read("s")) == []


def test_other_sessions_are_not_waited_for(emptied_postgres: str) -> None:
    with PostgresStore(emptied_postgres, lock_seconds_max=0.1) as store, psycopg.connect(emptied_postgres) as other:
        add_event_in_transaction(other, 0, "theirs")
        store.append([message_event(0)]).result(10)
        assert list(store.read("s")) == [message_event(0)]


def test_a_session_that_remains_locked_fails_every_waiting_and_later_append(emptied_postgres: str) -> None:
    with PostgresStore(emptied_postgres, lock_seconds_max=0.1) as store, psycopg.connect(emptied_postgres) as other:
        store.append([message_event(0)]).result(10)
        add_event_in_transaction(other, 99, "s")
        waiting = [store.append([message_event(number)]) for number in range(1, 20)]
        (refusal,) = {failure(done) for done in waiting}
        assert "is locked by another program, or too slow: try again" in refusal
        other.rollback()
        # After a lost write, a later one would leave a gap.
        assert failure(store.append([message_event(50)])) == refusal
        assert list(store.read("s")) == [message_event(0)]
    with PostgresStore(emptied_postgres) as store:
        store.append([message_event(1)]).result(10)
        assert list(store.read("s")) == message_events(2)


@pytest.mark.parametrize("error", ["deadlock_detected", "serialization_failure"])
def test_a_transaction_that_the_server_aborted_is_retried(emptied_postgres: str, error: str) -> None:
    with PostgresStore(emptied_postgres) as store:
        # A sequence keeps counting when a transaction is rolled back.
        run(emptied_postgres, "CREATE SEQUENCE tries")
        add_trigger(emptied_postgres, f"IF nextval('tries') < {COMMIT_ATTEMPTS_MAX} THEN RAISE {error}; END IF;")
        store.append([message_event(0)]).result(10)
        assert list(store.read("s")) == [message_event(0)]
        assert store.sessions()[0].event_count == 1


def test_a_transaction_is_not_retried_for_ever(emptied_postgres: str) -> None:
    with PostgresStore(emptied_postgres) as store:
        run(emptied_postgres, "CREATE SEQUENCE tries")
        add_trigger(emptied_postgres, "PERFORM nextval('tries'); RAISE deadlock_detected;")
        assert "is locked by another program" in failure(store.append([message_event(0)]))
        assert run(emptied_postgres, "SELECT last_value FROM tries") == [(COMMIT_ATTEMPTS_MAX,)]


def test_programs_lock_their_sessions_in_one_order_and_do_not_deadlock(emptied_postgres: str) -> None:
    with PostgresStore(emptied_postgres) as store, psycopg.connect(emptied_postgres) as other:
        add_event_in_transaction(other, 0, "a")
        own_append = store.append([message_event(1, "b"), message_event(1, "a")])
        wait_for_blocked_connections(emptied_postgres)
        # A program that waits for the first of its sessions holds none of the others.
        add_event_in_transaction(other, 0, "b")
        other.commit()
        own_append.result(10)
        assert list(store.read("a")) == message_events(2, "a")
        assert list(store.read("b")) == message_events(2, "b")


def test_a_session_continues_in_only_one_of_two_programs(emptied_postgres: str) -> None:
    with PostgresStore(emptied_postgres) as one_store, PostgresStore(emptied_postgres) as other:
        one_store.append([message_event(0)]).result(10)
        steps = [
            [
                replace(message_event(first), parent_event_id="s-000000"),
                replace(message_event(first + 9), parent_event_id=message_event(first).id),
            ]
            for first in (1, 2)
        ]
        answers = [store.append(events) for store, events in zip((one_store, other), steps, strict=True)]
        errors = [done.exception(timeout=10) for done in answers]
        assert sorted(type(error).__name__ for error in errors) == ["NoneType", "StoreError"]
        assert list(one_store.read("s")) == [message_event(0), *steps[errors.index(None)]]


def test_synchronous_commit_is_enforced_before_an_acknowledgement(emptied_postgres: str) -> None:
    name = run(emptied_postgres, "SELECT current_database()")[0][0]
    run(emptied_postgres, f"ALTER DATABASE {name} SET synchronous_commit = off")
    with PostgresStore(emptied_postgres) as store:
        add_trigger(
            emptied_postgres,
            "IF current_setting('synchronous_commit') = 'off' THEN RAISE EXCEPTION 'too soon'; END IF;",
        )
        store.append([message_event(0)]).result(10)
        assert list(store.read("s")) == [message_event(0)]


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        ("EXCEPTION", "cannot be used (PostgreSQL error P0001): check the server's log"),
        (
            "unique_violation",
            "refused a change because of a constraint (PostgreSQL error 23505): check for a duplicate",
        ),
    ],
)
def test_a_row_that_the_database_refuses_fails_its_append_and_no_other(
    emptied_postgres: str, raised: str, line: str
) -> None:
    with PostgresStore(emptied_postgres) as store:
        statement = "EXCEPTION 'a secret'" if raised == "EXCEPTION" else f"{raised} USING MESSAGE = 'a secret'"
        add_trigger(emptied_postgres, f"IF NEW.session_id = 's' THEN RAISE {statement}; END IF;")
        refused, other = store.append([message_event(0)]), store.append([message_event(0, "t")])
        assert failure(refused).endswith(line)
        other.result(10)
        assert [row.id for row in store.sessions()] == ["t"]


def add_trigger(url: str, body: str) -> None:
    run(
        url,
        f"CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$",
        "CREATE TRIGGER look BEFORE INSERT ON holdfast.events FOR EACH ROW EXECUTE FUNCTION look()",
    )


@pytest.mark.parametrize(
    ("damage", "reason"),
    {
        "type = 'tea.served', payload = '{}'": "of type 'tea.served', version 1, was written by a newer Holdfast",
        "payload = 'a secret'": "of type 'message.appended', version 1, is damaged: restore the database from a backup",
        "actor = 'a secret'": "of type 'message.appended', version 1, is damaged: restore the database from a backup",
    }.items(),
)
def test_an_unreadable_event_is_named_after_those_before_it_were_returned(
    emptied_postgres: str, damage: str, reason: str
) -> None:
    with PostgresStore(emptied_postgres) as store:
        store.append(message_events(3)).result(10)
        run(emptied_postgres, f"UPDATE holdfast.events SET {damage} WHERE id = 's-000002'")
        reading = store.read("s")
        assert [next(reading), next(reading)] == message_events(2)
        with pytest.raises(StoreError) as refusal:
            next(reading)
        assert str(refusal.value).startswith(f"event 's-000002' {reason}")


def test_a_long_session_is_read_a_batch_at_a_time(emptied_postgres: str) -> None:
    with PostgresStore(emptied_postgres) as store:
        store.append(message_events(2 * READ_BATCH_EVENTS)).result(10)
        reading = store.read("s")
        first_batch = [next(reading) for _ in range(READ_BATCH_EVENTS)]
        run(emptied_postgres, f"DELETE FROM holdfast.events WHERE id = '{message_event(READ_BATCH_EVENTS).id}'")
        assert first_batch == message_events(READ_BATCH_EVENTS)
        assert list(reading) == message_events(READ_BATCH_EVENTS - 1, start=READ_BATCH_EVENTS + 1)


@pytest.mark.parametrize("query", [EVENTS_PAGE, EVENT_POSITION, SESSION_EXISTS, SESSIONS_NEWEST_FIRST, LEARNED_EVENTS])
def test_no_read_fetches_more_rows_than_it_returns(emptied_postgres: str, query: str) -> None:
    with PostgresStore(emptied_postgres):
        literal_query = POSTGRES.translate(query).replace("%s", "'1'")
        steps = run(emptied_postgres, "SET enable_seqscan = off", "SET enable_sort = off", f"EXPLAIN {literal_query}")
    plan = " / ".join(str(step) for (step,) in steps)
    assert "Index" in plan
    assert "Seq Scan" not in plan
    # Partitions are merged in their order, which is not a sort.
    assert "Sort  (" not in plan


@pytest.mark.parametrize(
    ("code", "way_out"),
    {
        "53100": "the disk of X is full: free some space, then open the store again",
        "42501": "no permission to use X: have its owner grant what is missing on schema holdfast",
        "25006": "X is read-only: use the address of the primary server",
        "57014": "X is locked by another program, or too slow: try again later",
        "XX001": "X is damaged: restore the database from a backup",
        "42P01": "X is missing tables that Holdfast created there: restore the database from a backup",
        "57P01": "the connection to X was lost: check the server, then open the store again",
        "22003": "X cannot be used (PostgreSQL error 22003): check the server's log",
    }.items(),
)
def test_every_failure_is_one_line_with_a_remedy_and_without_the_servers_text(code: str, way_out: str) -> None:
    assert str(explain_postgres_error(psycopg.errors.lookup(code)("a secret"), "X")) == way_out


def test_missing_tables_are_reported(emptied_postgres: str) -> None:
    with PostgresStore(emptied_postgres) as store:
        run(emptied_postgres, "DROP TABLE holdfast.events")
        with pytest.raises(StoreError, match="is missing tables that Holdfast created there"):
            list(store.read("s"))
        assert "is missing tables" in failure(store.append([message_event(0)]))


def test_an_abandoned_store_writes_its_queue_and_ends_its_thread(emptied_postgres: str) -> None:
    before = active_count()
    store = PostgresStore(emptied_postgres)
    appends = [store.append([message_event(number)]) for number in range(100)]
    list(store.read("s"))
    assert active_count() == before + 1
    del store
    gc.collect()
    assert active_count() == before
    assert all(done.exception(timeout=0) is None for done in appends)


def test_a_forked_process_must_open_the_store_itself(emptied_postgres: str) -> None:
    with PostgresStore(emptied_postgres) as store:
        store.append([message_event(0)]).result(10)
        list(store.read("s"))
        read_end, write_end = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            errors = [failure(store.append([message_event(1)]))]
            attempts: list[Callable[[], object]] = [lambda: store.read("s"), store.sessions, lambda: store.delete("s")]
            for attempt in attempts:
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
        assert len(errors) == 4
        assert all(line.endswith("was opened before this process was forked: open it again here") for line in errors)
        store.append([message_event(1)]).result(10)
        assert list(store.read("s")) == message_events(2)
