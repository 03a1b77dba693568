"""The live feed on PostgreSQL: notified at once of what any process appends, and polling while it is not."""

import asyncio
import logging
import statistics
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import psycopg
import pytest
from tests.support.event_examples import message_event
from tests.support.pgbouncer import PROGRAM, pooler_to
from tests.support.postgres_server import run

from holdfast.clock import system_clock
from holdfast.events.records import PositionedEvent
from holdfast.service.live.hub import EventHub, FeedItem
from holdfast.stores.postgres.server import CHANNEL, NOTIFY_SECONDS_MIN, EventNotifications
from holdfast.stores.postgres.store import PostgresStore

SECONDS_MAX = 20.0
NEVER_SECONDS = 1_000.0
HANG_UP = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN {CHANNEL}%'"


class NotifiedHub(EventHub):
    """A hub that finds nothing by polling in the time of a test, unless it is given a shorter pause."""

    def __init__(self, store: PostgresStore, *, direct_url: str | None = None, poll_seconds: float = NEVER_SECONDS):
        super().__init__(store.records, system_clock, poll_seconds=poll_seconds)
        self.opened: list[EventNotifications] = []
        make = store.make_notifications(direct_url)

        def open_notifications(on_events: object) -> EventNotifications:
            notifications = make(on_events)  # type: ignore[arg-type]
            assert isinstance(notifications, EventNotifications)
            self.opened.append(notifications)
            return notifications

        self.open_notifications = open_notifications

    async def wait_until(self, *, connected: bool) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while (bool(self.opened) and self.opened[-1].is_connected) != connected:
            assert time.monotonic() < deadline
            await asyncio.to_thread(time.sleep, 0.005)


async def read_one(feed: AsyncGenerator[FeedItem, None]) -> str:
    async with asyncio.timeout(SECONDS_MAX):
        async for item in feed:
            if isinstance(item, PositionedEvent) and item.event is not None:
                return item.event.id
    raise AssertionError("the feed has ended")


async def measure(store: PostgresStore, hub: EventHub, count: int, *, first: int = 0) -> list[float]:
    """Milliseconds from the end of an append to its event on the feed."""
    feed = hub.listen()
    reading = asyncio.ensure_future(read_one(feed))
    if isinstance(hub, NotifiedHub):
        await hub.wait_until(connected=True)
    await asyncio.sleep(0.3)
    taken = []
    for number in range(first, first + count):
        await asyncio.to_thread(store.append([message_event(number)]).result, SECONDS_MAX)
        started = time.monotonic()
        assert await reading == message_event(number).id
        taken.append((time.monotonic() - started) * 1000)
        reading = asyncio.ensure_future(read_one(feed))
        await asyncio.sleep(0.06)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await hub.close()
    return taken


async def test_the_feed_is_notified_of_events_that_another_process_appends(postgres: str) -> None:
    with PostgresStore(postgres) as store, PostgresStore(postgres) as elsewhere:
        taken = await measure(elsewhere, NotifiedHub(store), 5)
    logging.getLogger(__name__).info("ms until an event is on the feed: %s", [round(ms, 1) for ms in sorted(taken)])
    # Much less than a poll takes; the machine may be busy.
    assert statistics.median(taken) < 100


async def test_events_that_follow_a_notification_too_soon_for_another_are_found(postgres: str) -> None:
    with PostgresStore(postgres) as store:
        hub = NotifiedHub(store)
        feed = hub.listen()
        reading = asyncio.ensure_future(read_one(feed))
        await hub.wait_until(connected=True)
        await asyncio.sleep(0.3)
        for number in range(10):
            await asyncio.to_thread(store.append([message_event(number)]).result, SECONDS_MAX)
        found = [await reading]
        found += [await read_one(feed) for _ in range(9)]
        assert found == [message_event(number).id for number in range(10)]
        await feed.aclose()
        await hub.close()


async def test_the_feed_polls_while_the_notifying_connection_is_lost_and_is_notified_again(postgres: str) -> None:
    with PostgresStore(postgres) as store:
        hub = NotifiedHub(store, poll_seconds=0.05)
        feed = hub.listen()
        reading = asyncio.ensure_future(read_one(feed))
        await hub.wait_until(connected=True)
        assert run(postgres, HANG_UP) == [(True,)]
        await hub.wait_until(connected=False)
        await asyncio.to_thread(store.append([message_event(0)]).result, SECONDS_MAX)
        assert await reading == message_event(0).id
        await hub.wait_until(connected=True)
        await feed.aclose()
        await hub.close()


def test_a_notification_has_no_content(postgres: str) -> None:
    with PostgresStore(postgres) as store, psycopg.connect(postgres, autocommit=True) as listener:
        listener.execute(f"LISTEN {CHANNEL}")
        # A store that has just been opened has notified already.
        time.sleep(2 * NOTIFY_SECONDS_MIN)
        store.append([message_event(0)]).result(SECONDS_MAX)
        (notification,) = listener.notifies(timeout=SECONDS_MAX, stop_after=1)
        assert (notification.channel, notification.payload) == (CHANNEL, "")


@pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed: apt-get install pgbouncer")
async def test_behind_a_pooler_the_feed_is_notified_through_the_direct_address(postgres: str, tmp_path: Path) -> None:
    with pooler_to(postgres, tmp_path / "pooler") as pooled, PostgresStore(pooled) as store:
        taken = await measure(store, NotifiedHub(store, direct_url=postgres), 3)
    assert statistics.median(taken) < 100


@pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed: apt-get install pgbouncer")
async def test_behind_a_pooler_without_a_direct_address_the_feed_polls_and_says_so(
    postgres: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pooler_to(postgres, tmp_path / "pooler") as pooled, PostgresStore(pooled) as store:
        hub = NotifiedHub(store, poll_seconds=0.05)
        feed = hub.listen()
        reading = asyncio.ensure_future(read_one(feed))
        await asyncio.sleep(0.3)
        await asyncio.to_thread(store.append([message_event(0)]).result, SECONDS_MAX)
        assert await reading == message_event(0).id
        assert not hub.opened[0].is_connected
        await feed.aclose()
        await hub.close()
    assert "the live feed polls" in caplog.text
    assert "use --db-direct" in caplog.text
