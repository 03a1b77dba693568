"""What holds at every gate: one writer for what is new, no wait without end, and nothing left behind."""

import asyncio
import threading
from collections import Counter

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

LIFETIME_SECONDS = 300.0


def claim(*path: int, scope: str = "s") -> FlightKey:
    """A request whose marked prefixes are those of a path in a tree."""
    names = [".".join(map(str, path[: count + 1])) for count in range(len(path))]
    prefixes = (
        BreakpointPrefix(name, SHARED_BYTES_MIN * (count + 1), LIFETIME_SECONDS) for count, name in enumerate(names)
    )
    return FlightKey(scope, tuple(prefixes))


class Passenger:
    """One request: arrives after some steps, is under way for some, then begins, fails or is cancelled."""

    def __init__(self, path: tuple[int, ...], arrives: int, takes: int, ends: str) -> None:
        self.claim = claim(*path)
        self.arrives = arrives
        self.takes = takes
        self.ends = ends


passengers = st.builds(
    Passenger,
    st.lists(st.integers(0, 1), min_size=1, max_size=4).map(tuple),
    st.integers(0, 6),
    st.integers(0, 6),
    st.sampled_from(["begins", "fails", "is cancelled"]),
)


@settings(max_examples=4 * settings().max_examples)
@given(st.lists(passengers, min_size=1, max_size=12))
def test_nothing_new_is_written_twice_at_once_everybody_passes_and_nothing_is_left_behind(
    ship: list[Passenger],
) -> None:
    gate, clock = SingleFlight(), ManualClock()
    written: set[tuple[str, str]] = set()
    writing: Counter[tuple[str, str]] = Counter()

    async def travel(one: Passenger) -> None:
        for _ in range(one.arrives):
            await asyncio.sleep(0)
        async with gate.acquire(one.claim, clock) as crossing:
            known = max((count for count, key in enumerate(one.claim.keys, 1) if key in written), default=0)
            new = one.claim.keys[known:]
            assert crossing.writes == bool(new)
            assert not any(writing[key] for key in new)
            writing.update(new)
            try:
                for _ in range(one.takes):
                    await asyncio.sleep(0)
                if one.ends == "is cancelled":
                    raise asyncio.CancelledError
                if one.ends == "begins":
                    written.update(one.claim.keys)
                    crossing.mark_begun()
            finally:
                writing.subtract(new)

    async def all_of_it() -> None:
        travels = [asyncio.ensure_future(travel(one)) for one in ship]
        async with asyncio.timeout(5):
            outcomes = await asyncio.gather(*travels, return_exceptions=True)
        assert [one for one in outcomes if isinstance(one, AssertionError)] == []

    asyncio.run(all_of_it())
    assert gate.key_count == len(written)


async def arrive(gate: SingleFlight, wanted: FlightKey, clock: ManualClock, seen: list[Slot]) -> None:
    async with gate.acquire(wanted, clock) as crossing:
        seen.append(crossing)
        crossing.mark_begun()


async def test_those_who_wait_pass_in_the_order_in_which_they_came() -> None:
    gate, clock = SingleFlight(), ManualClock()
    seen: list[Slot] = []
    claims = [claim(0, number) for number in range(5)]
    async with gate.acquire(claim(0), clock) as first:
        turns = []
        for wanted in claims:
            turns.append(asyncio.ensure_future(arrive(gate, wanted, clock, seen)))
            await asyncio.sleep(0)
        assert seen == []
        clock.advance(7)
        first.mark_begun()
        first.mark_begun()
    await asyncio.gather(*turns)
    assert [crossing.flight_key for crossing in seen] == claims
    assert [crossing.waited_seconds for crossing in seen] == [7.0] * 5
    assert [crossing.started_at for crossing in seen] == [clock()] * 5


async def test_whoever_begins_first_lets_the_others_read() -> None:
    gate, clock = SingleFlight(wait_seconds_max=0.1), ManualClock()
    seen: list[Slot] = []
    async with gate.acquire(claim(0), clock), gate.acquire(claim(0), clock) as impatient:
        waiting = asyncio.ensure_future(arrive(gate, claim(0), clock, seen))
        await asyncio.sleep(0)
        impatient.mark_begun()
        for _ in range(5):
            await asyncio.sleep(0)
        assert waiting.done()
    assert [crossing.writes for crossing in seen] == [False]


def test_sessions_in_two_threads_share_a_gate() -> None:
    gate, clock = SingleFlight(), ManualClock()
    order: list[str] = []
    under_way, waits = threading.Event(), threading.Event()

    async def lead() -> None:
        async with gate.acquire(claim(0), clock) as crossing:
            under_way.set()
            await asyncio.to_thread(waits.wait, 5)
            order.append("the first begins")
            crossing.mark_begun()

    async def follow() -> None:
        await asyncio.to_thread(under_way.wait, 5)
        waiting = asyncio.ensure_future(arrive(gate, claim(0, 1), clock, []))
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


def test_a_loop_that_was_closed_while_it_waited_holds_nobody_up() -> None:
    gate, clock = SingleFlight(), ManualClock()

    async def leave_waiting() -> None:
        asyncio.get_running_loop().create_task(arrive(gate, claim(0), clock, []))
        await asyncio.sleep(0)

    async def lead() -> None:
        async with gate.acquire(claim(0), clock) as crossing:
            await asyncio.to_thread(asyncio.run, leave_waiting())
            crossing.mark_begun()

    asyncio.run(lead())
    assert gate.key_count == 1


async def test_only_so_many_prefixes_are_remembered_and_none_that_has_lapsed() -> None:
    gate, clock = SingleFlight(keys_max=3), ManualClock()
    for number in range(5):
        await arrive(gate, claim(number), clock, [])
    assert gate.key_count == 3
    clock.advance(LIFETIME_SECONDS)
    await arrive(gate, claim(9), clock, [])
    assert gate.key_count == 1


async def test_what_is_read_again_lives_on() -> None:
    gate, clock = SingleFlight(), ManualClock()
    seen: list[Slot] = []
    for _ in range(3):
        await arrive(gate, claim(0), clock, seen)
        clock.advance(LIFETIME_SECONDS - 1)
    assert [crossing.writes for crossing in seen] == [True, False, False]


async def test_a_shorter_lifetime_takes_nothing_from_a_longer_one() -> None:
    gate, clock = SingleFlight(), ManualClock()
    seen: list[Slot] = []
    for lifetime_seconds in (3_600.0, LIFETIME_SECONDS):
        wanted = FlightKey("s", (BreakpointPrefix("0", SHARED_BYTES_MIN, lifetime_seconds),))
        await arrive(gate, wanted, clock, seen)
    clock.advance(LIFETIME_SECONDS + 1)
    await arrive(gate, claim(0), clock, seen)
    assert [crossing.writes for crossing in seen] == [True, False, False]


async def test_without_a_gate_or_without_anything_to_share_everybody_goes() -> None:
    clock = ManualClock()
    async with acquire_slot(None, claim(0), clock), acquire_slot(None, claim(0), clock) as second:
        second.mark_begun()
        assert (second.writes, second.waited_seconds, second.started_at) == (True, 0.0, clock())
    gate = SingleFlight(wait_seconds_max=60)
    async with acquire_slot(gate, FlightKey(""), clock), acquire_slot(gate, FlightKey(""), clock):
        assert gate.key_count == 0


@pytest.mark.parametrize("limits", [{"wait_seconds_max": -1}, {"wait_seconds_max": float("nan")}, {"keys_max": 0}])
def test_a_gate_without_sense_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(UserError, match="wait_seconds_max must be at least 0 and keys_max at least 1"):
        SingleFlight(**limits)
