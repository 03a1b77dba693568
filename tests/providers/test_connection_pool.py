"""How wires share a host: its connections, and the number of requests under way."""

import asyncio
from contextlib import suppress

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loopback import ENDPOINT, open_transport, read_response, says, serving

from holdfast.providers.connection_pool import RequestQueue


class Doors:
    """A provider that answers only when it is let, and counts who is inside."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.open = asyncio.Event()
        self.entered = asyncio.Semaphore(0)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.release()
        await self.open.wait()
        self.inside -= 1
        return web.Response(text="ok")


async def test_no_more_requests_are_under_way_than_allowed_whatever_wire_they_come_from() -> None:
    doors = Doors()
    async with (
        serving(doors) as server,
        open_transport(server.url, requests_max=2) as one,
        open_transport(server.url) as other,
    ):
        asked = [asyncio.ensure_future(read_response(one)) for _ in range(5)]
        for _ in range(2):
            await doors.entered.acquire()
        # Another wire with a higher limit does not overtake those who wait.
        asked.append(asyncio.ensure_future(read_response(other)))
        await asyncio.sleep(0.05)
        assert doors.inside == 2
        doors.open.set()
        assert await asyncio.gather(*asked) == [b"ok"] * 6
        assert doors.most <= 3


async def test_two_wires_to_one_host_use_one_connection_and_closing_one_leaves_the_other() -> None:
    async with serving(says("ok")) as server, open_transport(server.url) as one:
        async with open_transport(server.url) as other:
            await read_response(one)
            await read_response(other)
        await read_response(one)
        ports = {request.transport and request.transport.get_extra_info("peername") for request in server.requests}
        assert len(server.requests) == 3
        assert len(ports) == 1


async def test_a_stream_that_is_left_early_gives_its_place_up() -> None:
    async with serving(says("ok")) as server, open_transport(server.url, requests_max=1) as wire:
        chunks = wire.send(ENDPOINT, b"")
        await anext(chunks)
        await chunks.aclose()
        assert await read_response(wire) == b"ok"


async def test_whoever_waits_and_leaves_takes_nobodys_place() -> None:
    lane = RequestQueue()
    async with lane.slot(1):
        waiting = asyncio.ensure_future(hold(lane))
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
    assert lane.in_progress == 0
    async with asyncio.timeout(1):
        await hold(lane)


async def test_a_place_given_to_someone_who_just_left_goes_to_the_next() -> None:
    lane = RequestQueue()
    first = lane.slot(1)
    await first.__aenter__()
    leaving, staying = asyncio.ensure_future(hold(lane)), asyncio.ensure_future(hold(lane))
    await asyncio.sleep(0)
    # The place is given, and before its owner has run he is told to stop.
    await first.__aexit__(None, None, None)
    leaving.cancel()
    async with asyncio.timeout(1):
        await staying
    assert lane.in_progress == 0
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def hold(lane: RequestQueue) -> None:
    async with lane.slot(1):
        await asyncio.sleep(0)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.booleans()), max_size=12))
def test_a_lane_never_holds_more_than_the_highest_limit_and_empties_in_the_end(
    visits: list[tuple[int, int, bool]],
) -> None:
    async def visit(lane: RequestQueue, limit: int, stay: int) -> None:
        async with lane.slot(limit):
            assert lane.in_progress <= max(one[0] for one in visits)
            for _ in range(stay):
                await asyncio.sleep(0)

    async def run() -> None:
        lane = RequestQueue()
        tasks = [asyncio.ensure_future(visit(lane, limit, stay)) for limit, stay, _ in visits]
        await asyncio.sleep(0)
        for task, (_, _, leaves) in zip(tasks, visits, strict=True):
            if leaves:
                task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(one is None or isinstance(one, asyncio.CancelledError) for one in done)
        assert lane.in_progress == 0

    asyncio.run(run())
