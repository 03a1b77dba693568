"""The live feed: every event in order, to several listeners, from any process; slow listeners delay no other."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.support.event_examples import message_event, message_events
from tests.support.served_service import serve_store
from tests.support.simulated_gemini import LONG

from holdfast.clock import ManualClock, system_clock
from holdfast.events.log import Event
from holdfast.events.records import PositionedEvent
from holdfast.runtime.session import Session
from holdfast.service.live.hub import MISSING_POSITION_SECONDS_MAX, EventHub, FeedItem, SkippedEvents
from holdfast.service.live.sse import KEY_CHECK_SECONDS
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore

SECONDS_MAX = 10.0


class Frame:
    def __init__(self, text: str) -> None:
        fields = dict(line.split(": ", 1) for line in text.splitlines())
        self.id = int(fields["id"])
        self.event = fields["event"]
        self.data: dict[str, Any] = json.loads(fields["data"])


async def frames(response: aiohttp.ClientResponse, count: int) -> list[Frame]:
    """The next events of a feed; comments are skipped."""
    found: list[Frame] = []
    async with asyncio.timeout(SECONDS_MAX):
        while len(found) < count:
            text = (await response.content.readuntil(b"\n\n")).decode().strip()
            if not text.startswith(":"):
                found.append(Frame(text))
    return found


async def receive(feed_items: AsyncIterator[FeedItem], count: int) -> list[FeedItem]:
    async with asyncio.timeout(SECONDS_MAX):
        return [await anext(feed_items) for _ in range(count)]


def positions_of(items: Sequence[FeedItem]) -> list[int]:
    return [item.position for item in items if isinstance(item, PositionedEvent)]


async def test_every_listener_receives_every_event_in_order(tmp_path: Path) -> None:
    with (
        SqliteStore(tmp_path / "log.db") as store,
        SqliteStore(tmp_path / "log.db") as elsewhere,
        serve_store(store) as client,
    ):
        address = f"{client.url}/api/cache/stream"
        async with aiohttp.ClientSession() as http, http.get(address) as one, http.get(address) as two:
            assert one.headers["content-type"].startswith("text/event-stream")
            for response in (one, two):
                assert await response.content.readuntil(b"\n\n") == b": listening\n\n"
            await asyncio.to_thread(_wait_until_listening, client.service.hub, 2)
            # Written by another store, as another process would.
            async with Session.create(
                model="anthropic:claude-sonnet-5-5", system_prompt=LONG, store=elsewhere, transport=SimulatedProvider()
            ) as session:
                await session.send("Say canary.")
            events = list(store.read(session.id))
            first, second = await frames(one, len(events)), await frames(two, len(events))
    assert [frame.data["id"] for frame in first] == [event.id for event in events]
    assert [frame.id for frame in first] == sorted(frame.id for frame in first)
    assert [(frame.id, frame.event, frame.data) for frame in first] == [
        (frame.id, frame.event, frame.data) for frame in second
    ]
    completed = next(frame.data for frame in first if frame.event == "llm.call_completed")
    assert completed["payload"]["usage"]["cache_write_5m"] > 0
    marked = next(frame.data for frame in first if frame.event == "request.prepared")
    assert marked["payload"]["breakpoints"]
    assert all("canary" not in json.dumps(frame.data) for frame in first)
    assert all("quick brown fox" not in json.dumps(frame.data) for frame in first)


def _wait_until_listening(hub: EventHub, count: int) -> None:
    """Return once so many listeners wait."""
    while hub.listener_count < count or hub._task is None:
        pass


async def test_listener_resumes_after_the_last_event_it_received() -> None:
    store = MemoryStore()
    store.append(message_events(6)).result(10)
    with serve_store(store) as client:
        async with aiohttp.ClientSession() as http:
            address = f"{client.url}/api/cache/stream"
            async with http.get(address, params={"after": "0"}) as response:
                first = await frames(response, 3)
            async with http.get(address, headers={"last-event-id": str(first[-1].id)}) as response:
                rest = await frames(response, 3)
                store.append([message_event(9)]).result(10)
                newest = await frames(response, 1)
    assert [frame.data["id"] for frame in (*first, *rest, *newest)] == [
        event.id for event in (*message_events(6), message_event(9))
    ]


@pytest.mark.parametrize("ending", ["revoked", "expired", "first_key"])
async def test_feed_ends_once_its_key_is_not_accepted_any_more(ending: str) -> None:
    """Without another event; a feed that needed no key ends once there is one."""
    clock, store = ManualClock(1_800_000_000.0), MemoryStore()
    with serve_store(store, clock=clock) as client:
        key = None if ending == "first_key" else client.key("read", expires_at=clock() + 3_600)
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession() as http, http.get(f"{client.url}/api/cache/stream", headers=headers) as feed:
            assert await feed.content.readuntil(b"\n\n") == b": listening\n\n"
            await asyncio.to_thread(_wait_until_listening, client.service.hub, 1)
            store.append(message_events(2)).result(10)
            await frames(feed, 2)
            if ending == "first_key":
                client.key("admin")
            elif ending == "revoked":
                assert key is not None
                assert client.service.records.revoke_key(key.split("_")[1], at=clock())
            clock.advance(3_600 if ending == "expired" else KEY_CHECK_SECONDS)
            store.append([message_event(9)]).result(10)
            async with asyncio.timeout(SECONDS_MAX):
                rest = await feed.content.read()
    assert b"event:" not in rest


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_listener_resumes_after_a_service_restart(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address = str(tmp_path / "log.db") if engine == "sqlite" else request.getfixturevalue("postgres")
    with open_store(address) as store:
        store.append(message_events(4)).result(10)
        with serve_store(store) as client:
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"{client.url}/api/cache/stream", params={"after": "0"}) as response,
            ):
                first = await frames(response, 2)
    with open_store(address) as store:
        # While no service was running.
        store.append([message_event(9)]).result(10)
    with open_store(address) as store, serve_store(store) as client:
        headers = {"last-event-id": str(first[-1].id)}
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{client.url}/api/cache/stream", headers=headers) as response,
        ):
            rest = await frames(response, 3)
    assert [frame.data["id"] for frame in (*first, *rest)] == [
        event.id for event in (*message_events(4), message_event(9))
    ]


async def test_listener_can_follow_a_single_session() -> None:
    store = MemoryStore()
    store.append([message_event(1, "a"), message_event(1, "b"), message_event(2, "a")]).result(10)
    with serve_store(store) as client:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{client.url}/api/cache/stream", params={"after": "0", "session": "a"}) as response,
        ):
            found = await frames(response, 2)
    assert [frame.data["session_id"] for frame in found] == ["a", "a"]


@pytest.mark.parametrize("last", ["x", "-1", "1" * 30, "١"])
def test_last_event_id_that_is_not_a_number_is_refused(last: str) -> None:
    with serve_store(MemoryStore()) as client:
        response = client.request(
            "GET", "/api/cache/stream", headers={"last-event-id": last.encode().decode("latin-1")}
        )
    assert (response.status, response.code) == (400, "invalid_last_event_id")


class SteadyFeed:
    """A store with a given number of events; positions in `missing` have none."""

    def __init__(self, newest: int = 0, missing: Sequence[int] = ()) -> None:
        self.newest = newest
        self.missing = set(missing)
        self.looks = 0

    def newest_position(self) -> int:
        return self.newest

    def events_after(self, place: int, *, limit: int) -> tuple[PositionedEvent, ...]:
        self.looks += 1
        there = (at for at in range(place + 1, self.newest + 1) if at not in self.missing)
        return tuple(PositionedEvent(at, event(at)) for _, at in zip(range(limit), there, strict=False))


def event(at: int) -> Event:
    return message_event(at)


async def test_slow_listener_delays_no_other_and_misses_nothing_within_the_limit() -> None:
    feed = SteadyFeed()
    hub = EventHub(feed, ManualClock(), poll_seconds=0.0, ring_events_max=10, lag_positions_max=500)
    slow, fast = hub.listen(0), hub.listen(0)
    feed.newest = 1
    assert positions_of(await receive(slow, 1)) == [1]
    feed.newest = 300
    assert positions_of(await receive(fast, 300)) == list(range(1, 301))
    # The ring buffer has dropped most of them; the store has not.
    assert positions_of(await receive(slow, 299)) == list(range(2, 301))
    assert len(hub._ring) <= 10
    await hub.close()


async def test_listener_that_lags_too_far_is_sent_the_count_of_dropped_events() -> None:
    feed = SteadyFeed()
    hub = EventHub(feed, ManualClock(), poll_seconds=0.0, ring_events_max=10, lag_positions_max=50)
    slow, fast = hub.listen(0), hub.listen(0)
    feed.newest = 20
    assert positions_of(await receive(slow, 1)) == [1]
    assert positions_of(await receive(fast, 20)) == list(range(1, 21))
    for newest in (60, 110):
        feed.newest = newest
        assert positions_of(await receive(fast, newest - 20 if newest == 60 else 50))[-1] == newest
    rest = await receive(slow, 25)
    dropped = next(one for one in rest if isinstance(one, SkippedEvents))
    next_item = rest[rest.index(dropped) + 1]
    assert isinstance(next_item, PositionedEvent)
    assert (dropped.until, next_item.position) == (next_item.position - 1, dropped.until + 1)
    assert dropped.until - dropped.after > 0
    await hub.close()


async def test_dropped_events_are_reported_in_the_stream() -> None:
    store = MemoryStore()
    store.append(message_events(30)).result(10)
    with serve_store(store) as client:
        client.service.hub._lag_positions_max = 10
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{client.url}/api/cache/stream", params={"after": "0"}) as response,
        ):
            first, *rest = await frames(response, 11)
    assert (first.event, first.id, first.data) == ("dropped", 20, {"after": 0, "until": 20})
    assert [frame.id for frame in rest] == list(range(21, 31))


async def test_feed_waits_for_a_position_that_may_still_be_filled() -> None:
    clock = ManualClock()
    feed = SteadyFeed()
    hub = EventHub(feed, clock, poll_seconds=0.0)
    feed_items = hub.listen(0)
    waiting = asyncio.ensure_future(receive(feed_items, 3))
    await wait_for_polls(feed, 2)
    feed.missing, feed.newest = {2}, 3
    await wait_for_polls(feed, 4)
    feed.missing = set()
    assert positions_of(await waiting) == [1, 2, 3]
    feed.missing, feed.newest = {4}, 5
    waiting = asyncio.ensure_future(receive(feed_items, 1))
    await wait_for_polls(feed, 4)
    assert not waiting.done()
    clock.advance(MISSING_POSITION_SECONDS_MAX)
    assert positions_of(await waiting) == [5]
    await hub.close()


async def wait_for_polls(feed: SteadyFeed, times: int) -> None:
    """Return once the store was polled so many more times."""
    until = feed.looks + times
    async with asyncio.timeout(SECONDS_MAX):
        while feed.looks < until:  # noqa: ASYNC110 - the feed is asked in another thread
            await asyncio.sleep(0)


async def test_store_is_not_polled_without_listeners() -> None:
    feed = SteadyFeed(5)
    hub = EventHub(feed, ManualClock(), poll_seconds=0.0)
    feed_items = hub.listen(0)
    await receive(feed_items, 5)
    assert hub._task is not None
    await feed_items.aclose()
    assert hub._task is None
    assert positions_of(await receive(hub.listen(3), 2)) == [4, 5]
    await hub.close()


async def test_listener_that_disconnects_is_removed() -> None:
    store = MemoryStore()
    store.append(message_events(3)).result(10)
    with serve_store(store) as client:
        hub = client.service.hub
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{client.url}/api/cache/stream", params={"after": "0"}) as response,
        ):
            await frames(response, 3)
            assert hub.listener_count == 1
        await asyncio.to_thread(_wait_until_removed, hub)
        assert hub.listener_count == 0


def _wait_until_removed(hub: EventHub) -> None:
    while hub.listener_count:
        pass


async def test_deleted_events_are_skipped() -> None:
    store = MemoryStore()
    store.append([message_event(1, "a"), *message_events(200, start=2)]).result(10)
    store.append([message_event(2, "a")]).result(10)
    store.delete("s")
    hub = EventHub(store.records, ManualClock())
    assert [
        one.event.id for one in await receive(hub.listen(0), 2) if isinstance(one, PositionedEvent) and one.event
    ] == [
        "a-000001",
        "a-000002",
    ]
    await hub.close()


async def test_newest_position_is_sent_once_when_all_events_are_deleted() -> None:
    feed = SteadyFeed(300, missing=range(1, 301))
    hub = EventHub(feed, ManualClock(), poll_seconds=0.0)
    feed_items = hub.listen(0)
    assert await receive(feed_items, 1) == [PositionedEvent(300, None)]
    feed.newest = 301
    assert positions_of(await receive(feed_items, 1)) == [301]
    await hub.close()


async def test_events_written_by_two_servers_at_once_are_all_received(postgres: str) -> None:
    with PostgresStore(postgres) as one, PostgresStore(postgres) as two:
        # Real time: an append that is rolled back and repeated leaves a gap, which the feed skips after a while.
        hub = EventHub(one.records, system_clock, poll_seconds=0.0)
        feed_items = hub.listen(0)
        waiting = asyncio.ensure_future(receive(feed_items, 400))
        for number in range(200):
            one.append([message_event(number, "a")])
            two.append([message_event(number, "b")])
        found = [placed.event for placed in await waiting if isinstance(placed, PositionedEvent) and placed.event]
        await hub.close()
    for session in ("a", "b"):
        received = [event for event in found if event.session_id == session]
        assert received == [message_event(number, session) for number in range(200)]
