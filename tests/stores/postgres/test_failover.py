"""A primary that dies and a standby that takes its place, with synchronous replication."""

import logging
from pathlib import Path
from threading import Event, Thread

import pytest
from tests.support.event_examples import message_event
from tests.support.postgres_server import CONFIGURED_URL
from tests.support.replicas import run_replicas
from tests.support.standby import replicated_server

from holdfast.stores.postgres.store import PostgresStore

pytestmark = [
    pytest.mark.skipif(CONFIGURED_URL is not None, reason="starts its own servers"),
    pytest.mark.timeout(240),
]


def test_a_store_goes_on_with_the_promoted_standby_and_loses_nothing_that_was_acknowledged() -> None:
    with replicated_server() as server, PostgresStore(server.url, reconnect_seconds_max=60) as store:
        acknowledged, stop = list[int](), Event()

        def append() -> None:
            number = 0
            while not stop.is_set():
                store.append([message_event(number)]).result(120)
                acknowledged.append(number)
                number += 1

        thread = Thread(target=append)
        thread.start()
        while len(acknowledged) < 20:
            stop.wait(0.01)
        server.fail_over()
        before = len(acknowledged)
        while len(acknowledged) < before + 20:
            assert thread.is_alive()
            stop.wait(0.01)
        stop.set()
        thread.join()
        assert [event.id for event in store.read("s")] == [message_event(number).id for number in acknowledged]


def test_replicas_go_on_after_a_failover_and_lose_no_answered_call(tmp_path: Path) -> None:
    with replicated_server() as server:
        outcome = run_replicas(
            server.url, tmp_path, replicas=2, conversations=4, seconds=6.0, kill_seconds=0.0, fault=server.fail_over
        )
    logging.getLogger(__name__).info("%s", outcome)
    assert outcome.answered > 10
    assert (outcome.lost, outcome.double_counted, outcome.split, outcome.mixed, outcome.forked) == (0, 0, 0, 0, 0)
