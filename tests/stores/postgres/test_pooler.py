"""A store behind PgBouncer in transaction mode: each transaction may run on another server connection."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.event_examples import message_event, message_events
from tests.support.pgbouncer import PROGRAM, pooler_to
from tests.support.postgres_server import run
from tests.support.replicas import run_replicas

from holdfast.errors import StoreError
from holdfast.stores.postgres.store import PostgresStore

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed: apt-get install pgbouncer")


@pytest.fixture
def pooled(postgres: str, tmp_path: Path) -> Iterator[str]:
    with pooler_to(postgres, tmp_path / "pooler") as address:
        yield address


def test_a_store_works_behind_a_pooler_in_transaction_mode(pooled: str) -> None:
    with PostgresStore(pooled) as first, PostgresStore(pooled) as second:
        for number in range(20):
            (first, second)[number % 2].append([message_event(number)]).result(10)
        assert list(first.read("s")) == message_events(20)
        assert first.records.shared.take_lease("job", "a", seconds=60)
        assert not second.records.shared.take_lease("job", "b", seconds=60)
        assert first.delete("s") == 20


def test_a_reader_behind_a_pooler_makes_no_other_client_read_only(pooled: str, postgres: str) -> None:
    with PostgresStore(pooled) as writer:
        for number in range(10):
            with PostgresStore(pooled, read_only=True) as reader:
                assert len(list(reader.read("s"))) == number
                with pytest.raises(StoreError, match="open for reading only"):
                    reader.append([message_event(99)]).result(10)
            writer.append([message_event(number)]).result(10)
            assert writer.records.shared.take_lease(f"job {number}", "a", seconds=60)
    settings = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    ((count,),) = run(postgres, settings)
    assert isinstance(count, int)
    assert count <= 7


@pytest.mark.timeout(180)
def test_replicas_behind_a_pooler_share_few_connections(pooled: str, postgres: str, tmp_path: Path) -> None:
    outcome = run_replicas(
        pooled,
        tmp_path,
        replicas=2,
        conversations=4,
        seconds=0.0,
        kill_seconds=0.0,
        turns_max=4,
        direct_db=postgres,
    )
    logging.getLogger(__name__).info("%s", outcome)
    assert (outcome.lost, outcome.double_counted, outcome.split, outcome.mixed, outcome.forked) == (0, 0, 0, 0, 0)
