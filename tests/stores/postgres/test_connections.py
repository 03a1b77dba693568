"""The PostgreSQL store when its connection to the server breaks."""

import re
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

import psycopg
import pytest
from tests.support.cut_connection import proxy_to
from tests.support.event_examples import message_event, message_events
from tests.support.postgres_server import run, wait_for_blocked_connections

from holdfast.errors import StoreError
from holdfast.stores.postgres.server import ConnectionLimits, PostgresServer, is_connection_failure, parse_address
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql.connection import ConnectionPool, SqlReader

HANG_UP = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'holdfast'
"""


def failure(done: Future[None]) -> str:
    error = done.exception(timeout=20)
    assert isinstance(error, StoreError)
    assert "\n" not in str(error)
    return str(error)


def test_readers_and_writers_reconnect_after_the_server_hangs_up(emptied_postgres: str) -> None:
    with PostgresStore(emptied_postgres) as store:
        store.append([message_event(0)]).result(10)
        assert list(store.read("s")) == message_events(1)
        assert run(emptied_postgres, HANG_UP) == [(2,)]
        assert list(store.read("s")) == message_events(1)
        store.append([message_event(1)]).result(10)
        assert list(store.read("s")) == message_events(2)


def test_a_change_beside_the_log_reconnects_too(emptied_postgres: str) -> None:
    with PostgresStore(emptied_postgres) as store:
        assert store.instructions.consume_wake_token("a", expires_at=2, at=1)
        run(emptied_postgres, HANG_UP)
        assert store.instructions.consume_wake_token("b", expires_at=2, at=1)
        assert not store.instructions.consume_wake_token("a", expires_at=2, at=1)


def test_a_reader_does_not_get_one_dead_connection_after_another(emptied_postgres: str) -> None:
    server = PostgresServer(parse_address(emptied_postgres), ConnectionLimits())
    reads = SqlReader(server, ConnectionPool(server.connect))
    with psycopg.connect(emptied_postgres, autocommit=True) as other, ThreadPoolExecutor(3) as pool:
        other.execute("SELECT pg_advisory_lock(1)")
        together = [pool.submit(reads.fetch, "SELECT 1 FROM pg_advisory_lock_shared(1)", ()) for _ in range(3)]
        wait_for_blocked_connections(emptied_postgres, 3)
        other.execute("SELECT pg_advisory_unlock(1)")
        assert [done.result(10) for done in together] == [[(1,)]] * 3
    assert run(emptied_postgres, HANG_UP) == [(3,)]
    assert reads.fetch("SELECT 1", ()) == [(1,)]
    reads.close()


def test_appends_in_progress_while_the_server_hangs_up_are_stored_once(emptied_postgres: str) -> None:
    with PostgresStore(emptied_postgres, group_jobs_max=5) as store:
        appends = [store.append([message_event(number)]) for number in range(200)]
        run(emptied_postgres, HANG_UP)
        for done in appends:
            done.result(20)
        assert list(store.read("s")) == message_events(200)
        assert store.sessions()[0].event_count == 200


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        # What `executemany` raised, on a connection that still counted as open, for a server that had hung up.
        (psycopg.OperationalError("cannot exit pipeline mode while busy"), True),
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.CrashShutdown(), True),
        (psycopg.errors.CannotConnectNow(), True),
        (psycopg.errors.ConnectionFailure(), True),
        (psycopg.errors.IdleInTransactionSessionTimeout(), True),
        (psycopg.errors.QueryCanceled(), False),
        (psycopg.errors.LockNotAvailable(), False),
        (psycopg.errors.DiskFull(), False),
        (psycopg.errors.UniqueViolation(), False),
        (psycopg.ProgrammingError("the statement has 1 parameter"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_shows_that_a_connection_was_lost_before_the_driver_notices(error: psycopg.Error, lost: bool) -> None:
    assert is_connection_failure(error) is lost


def test_an_outcome_that_is_asked_for_on_a_connection_that_is_lost_too_is_asked_for_again(
    emptied_postgres: str,
) -> None:
    with proxy_to(emptied_postgres) as line, PostgresStore(line.url) as store:
        store.append([message_event(0)]).result(10)
        line.cut, line.questions_cut = "after", 2
        store.append([message_event(1)]).result(20)
        assert line.questions_cut == 0
        assert list(store.read("s")) == message_events(2)
        assert store.sessions()[0].event_count == 2


@pytest.mark.parametrize("outcome", ["future", "reused"])
def test_a_commit_that_a_promoted_standby_never_saw_is_repeated(
    emptied_postgres: str, outcome: Literal["future", "reused"]
) -> None:
    with proxy_to(emptied_postgres) as line, PostgresStore(line.url) as store:
        store.append([message_event(0)]).result(10)
        line.cut, line.outcome = "before", outcome
        store.append([message_event(1)]).result(20)
        assert list(store.read("s")) == message_events(2)
        assert store.sessions()[0].event_count == 2


@pytest.mark.parametrize("cut_query", ["before", "after"])
def test_a_commit_whose_response_was_lost_is_made_once(emptied_postgres: str, cut_query: str) -> None:
    with proxy_to(emptied_postgres) as line, PostgresStore(line.url) as store:
        store.append(message_events(2)).result(10)
        line.cut = "before" if cut_query == "before" else "after"
        store.append([message_event(2)]).result(20)
        assert line.cut is None
        store.append([message_event(3)]).result(10)
        assert list(store.read("s")) == message_events(4)
        assert store.sessions()[0].event_count == 4


@pytest.mark.parametrize("cut_query", ["before", "after"])
def test_a_deletion_whose_response_was_lost_still_returns_the_number_of_events(
    emptied_postgres: str, cut_query: str
) -> None:
    with proxy_to(emptied_postgres) as line, PostgresStore(line.url) as store:
        store.append(message_events(3)).result(10)
        line.cut = "before" if cut_query == "before" else "after"
        assert store.delete("s") == 3
        assert line.cut is None
        assert store.sessions() == ()


def test_after_a_commit_with_unknown_outcome_there_are_no_more_commits(emptied_postgres: str) -> None:
    with proxy_to(emptied_postgres) as line, PostgresStore(line.url, reconnect_seconds_max=0.3) as store:
        store.append([message_event(0)]).result(10)
        line.cut = "hanging"
        refusal = failure(store.append([message_event(1)]))
        assert "was lost during a commit, and it is unknown whether it took effect: open the store again" in refusal
        assert failure(store.append([message_event(2)])) == refusal
        assert list(store.read("s")) == message_events(1)


def test_a_server_that_does_not_return_fails_waiting_and_later_appends(emptied_postgres: str) -> None:
    with proxy_to(emptied_postgres) as line, PostgresStore(line.url, reconnect_seconds_max=0.3) as store:
        store.append([message_event(0)]).result(10)
        list(store.read("s"))
        line.dead = True
        line.hang_up()
        unreachable = re.compile(r"cannot be reached \([^)]+\): check that the server runs")
        refusal = failure(store.append([message_event(1)]))
        assert refusal.startswith("postgresql://127.0.0.1:")
        assert unreachable.search(refusal)
        with pytest.raises(StoreError, match=unreachable):
            list(store.read("s"))
        line.dead = False
        assert list(store.read("s")) == message_events(1)
        # Appends that were queued after the failed one would leave a gap.
        assert failure(store.append([message_event(2)])) == refusal
        with PostgresStore(line.url) as again:
            again.append([message_event(1)]).result(10)
            assert list(store.read("s")) == message_events(2)


def test_a_server_that_returns_in_time_is_waited_for(emptied_postgres: str) -> None:
    with proxy_to(emptied_postgres) as line, PostgresStore(line.url) as store:
        store.append([message_event(0)]).result(10)
        line.dead = True
        line.hang_up()
        waiting = store.append([message_event(1)])
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        line.dead = False
        waiting.result(20)
        assert list(store.read("s")) == message_events(2)
