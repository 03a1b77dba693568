"""Properties of single flight: one writer per new prefix, no endless wait, and nothing left over."""

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.clock import ManualClock
from holdfast.engine.cache.single_flight import (
    SHARED_BYTES_MIN,
    BreakpointPrefix,
    FlightKey,
    SingleFlight,
    Slot,
    acquire_slot,
)
from holdfast.errors import UserError

TTL_SECONDS = 300.0


def flight_key(*path: int, scope: str = "s") -> FlightKey:
    """The key of a request whose cached prefixes are the nodes of a path in a tree."""
    names = [".".join(map(str, path[: count + 1])) for count in range(len(path))]
    prefixes = (BreakpointPrefix(name, SHARED_BYTES_MIN * (count + 1), TTL_SECONDS) for count, name in enumerate(names))
    return FlightKey(scope, tuple(prefixes))


class Flight:
    """One request: arrives after some steps, runs for some, then starts its reply, fails or is cancelled."""

    def __init__(self, path: tuple[int, ...], arrives: int, takes: int, ends: str) -> None:
        self.flight_key = flight_key(*path)
        self.arrives = arrives
        self.takes = takes
        self.ends = ends


flights = st.builds(
    Flight,
    st.lists(st.integers(0, 1), min_size=1, max_size=4).map(tuple),
    st.integers(0, 6),
    st.integers(0, 6),
    st.sampled_from(["begins", "fails", "is cancelled"]),
)


@settings(max_examples=4 * settings().max_examples)
@given(st.lists(flights, min_size=1, max_size=12))
def test_a_new_prefix_has_one_writer_every_request_proceeds_and_nothing_is_left_over(
    requests: list[Flight],
) -> None:
    single_flight, clock = SingleFlight(), ManualClock()
    written: set[tuple[str, str]] = set()
    writing: Counter[tuple[str, str]] = Counter()

    async def fly(flight: Flight) -> None:
        for _ in range(flight.arrives):
            await asyncio.sleep(0)
        async with single_flight.acquire(flight.flight_key, clock) as slot:
            known_count = max(
                (count for count, key in enumerate(flight.flight_key.keys, 1) if key in written), default=0
            )
            new = flight.flight_key.keys[known_count:]
            assert slot.writes == bool(new)
            assert not any(writing[key] for key in new)
            writing.update(new)
            try:
                for _ in range(flight.takes):
                    await asyncio.sleep(0)
                if flight.ends == "is cancelled":
                    raise asyncio.CancelledError
                if flight.ends == "begins":
                    written.update(flight.flight_key.keys)
                    slot.mark_begun()
            finally:
                writing.subtract(new)

    async def fly_all() -> None:
        tasks = [asyncio.ensure_future(fly(request)) for request in requests]
        async with asyncio.timeout(5):
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [outcome for outcome in outcomes if isinstance(outcome, AssertionError)] == []

    asyncio.run(fly_all())
    assert single_flight.key_count == len(written)


async def acquire_and_begin(
    single_flight: SingleFlight, wanted: FlightKey, clock: ManualClock, seen: list[Slot]
) -> None:
    async with single_flight.acquire(wanted, clock) as slot:
        seen.append(slot)
        slot.mark_begun()


async def test_waiting_requests_proceed_in_order_of_arrival() -> None:
    single_flight, clock = SingleFlight(), ManualClock()
    seen: list[Slot] = []
    claims = [flight_key(0, number) for number in range(5)]
    async with single_flight.acquire(flight_key(0), clock) as first:
        turns = []
        for wanted in claims:
            turns.append(asyncio.ensure_future(acquire_and_begin(single_flight, wanted, clock, seen)))
            await asyncio.sleep(0)
        assert seen == []
        clock.advance(7)
        first.mark_begun()
        first.mark_begun()
    await asyncio.gather(*turns)
    assert [slot.flight_key for slot in seen] == claims
    assert [slot.waited_seconds for slot in seen] == [7.0] * 5
    assert [slot.started_at for slot in seen] == [clock()] * 5


async def test_the_first_reply_to_start_releases_the_waiting_requests() -> None:
    single_flight, clock = SingleFlight(wait_seconds_max=0.1), ManualClock()
    seen: list[Slot] = []
    async with single_flight.acquire(flight_key(0), clock), single_flight.acquire(flight_key(0), clock) as impatient:
        waiting = asyncio.ensure_future(acquire_and_begin(single_flight, flight_key(0), clock, seen))
        await asyncio.sleep(0)
        impatient.mark_begun()
        for _ in range(5):
            await asyncio.sleep(0)
        assert waiting.done()
    assert [slot.writes for slot in seen] == [False]


def test_sessions_in_two_threads_share_single_flight() -> None:
    single_flight, clock = SingleFlight(), ManualClock()
    order: list[str] = []
    acquired, waits = threading.Event(), threading.Event()

    async def lead() -> None:
        async with single_flight.acquire(flight_key(0), clock) as slot:
            acquired.set()
            await asyncio.to_thread(waits.wait, 5)
            order.append("the first begins")
            slot.mark_begun()

    async def follow() -> None:
        await asyncio.to_thread(acquired.wait, 5)
        waiting = asyncio.ensure_future(acquire_and_begin(single_flight, flight_key(0, 1), clock, []))
        await asyncio.sleep(0)
        waits.set()
        await waiting
        order.append("the second goes")

    threads = [threading.Thread(target=asyncio.run, args=(work(),)) for work in (lead, follow)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert order == ["the first begins", "the second goes"]


def test_an_event_loop_closed_while_it_waited_blocks_no_other() -> None:
    single_flight, clock = SingleFlight(), ManualClock()

    async def leave_waiting() -> None:
        asyncio.get_running_loop().create_task(acquire_and_begin(single_flight, flight_key(0), clock, []))
        await asyncio.sleep(0)

    async def lead() -> None:
        async with single_flight.acquire(flight_key(0), clock) as slot:
            await asyncio.to_thread(asyncio.run, leave_waiting())
            slot.mark_begun()

    asyncio.run(lead())
    assert single_flight.key_count == 1


async def test_the_number_of_prefixes_is_bounded_and_expired_ones_are_dropped() -> None:
    single_flight, clock = SingleFlight(keys_max=3), ManualClock()
    for number in range(5):
        await acquire_and_begin(single_flight, flight_key(number), clock, [])
    assert single_flight.key_count == 3
    clock.advance(TTL_SECONDS)
    await acquire_and_begin(single_flight, flight_key(9), clock, [])
    assert single_flight.key_count == 1


async def test_a_read_extends_the_ttl() -> None:
    single_flight, clock = SingleFlight(), ManualClock()
    seen: list[Slot] = []
    for _ in range(3):
        await acquire_and_begin(single_flight, flight_key(0), clock, seen)
        clock.advance(TTL_SECONDS - 1)
    assert [slot.writes for slot in seen] == [True, False, False]


async def test_a_shorter_ttl_does_not_shorten_a_longer_one() -> None:
    single_flight, clock = SingleFlight(), ManualClock()
    seen: list[Slot] = []
    for ttl_seconds in (3_600.0, TTL_SECONDS):
        wanted = FlightKey("s", (BreakpointPrefix("0", SHARED_BYTES_MIN, ttl_seconds),))
        await acquire_and_begin(single_flight, wanted, clock, seen)
    clock.advance(TTL_SECONDS + 1)
    await acquire_and_begin(single_flight, flight_key(0), clock, seen)
    assert [slot.writes for slot in seen] == [True, False, False]


async def test_without_single_flight_or_a_shared_prefix_no_request_waits() -> None:
    clock = ManualClock()
    async with acquire_slot(None, flight_key(0), clock), acquire_slot(None, flight_key(0), clock) as second:
        second.mark_begun()
        assert (second.writes, second.waited_seconds, second.started_at) == (True, 0.0, clock())
    single_flight = SingleFlight(wait_seconds_max=60)
    async with acquire_slot(single_flight, FlightKey(""), clock), acquire_slot(single_flight, FlightKey(""), clock):
        assert single_flight.key_count == 0


@pytest.mark.parametrize("limits", [{"wait_seconds_max": -1}, {"wait_seconds_max": float("nan")}, {"keys_max": 0}])
def test_invalid_limits_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="wait_seconds_max must be at least 0 and keys_max at least 1"):
        SingleFlight(**limits)
