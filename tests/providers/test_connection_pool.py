"""Transports that share a host: its connections, and the number of requests in progress."""

import asyncio
from contextlib import suppress

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loopback import ENDPOINT, open_transport, read_response, says, serving

from holdfast.providers.connection_pool import RequestQueue


class BlockedProvider:
    """A provider that responds only when it is released, and counts the requests inside."""

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


async def test_requests_in_progress_never_exceed_the_limit_across_transports() -> None:
    provider = BlockedProvider()
    async with (
        serving(provider) as server,
        open_transport(server.url, requests_max=2) as first,
        open_transport(server.url) as other,
    ):
        requests = [asyncio.ensure_future(read_response(first)) for _ in range(5)]
        for _ in range(2):
            await provider.entered.acquire()
        # Another transport with a higher limit does not overtake the waiting requests.
        requests.append(asyncio.ensure_future(read_response(other)))
        await asyncio.sleep(0.05)
        assert provider.inside == 2
        provider.open.set()
        assert await asyncio.gather(*requests) == [b"ok"] * 6
        assert provider.most <= 3


async def test_two_transports_share_a_connection_and_closing_one_leaves_the_other_open() -> None:
    async with serving(says("ok")) as server, open_transport(server.url) as first:
        async with open_transport(server.url) as other:
            await read_response(first)
            await read_response(other)
        await read_response(first)
        ports = {request.transport and request.transport.get_extra_info("peername") for request in server.requests}
        assert len(server.requests) == 3
        assert len(ports) == 1


async def test_a_stream_that_is_left_early_releases_its_slot() -> None:
    async with serving(says("ok")) as server, open_transport(server.url, requests_max=1) as transport:
        chunks = transport.send(ENDPOINT, b"")
        await anext(chunks)
        await chunks.aclose()
        assert await read_response(transport) == b"ok"


async def test_a_cancelled_waiter_takes_no_slot() -> None:
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


async def test_a_slot_granted_to_a_cancelled_waiter_goes_to_the_next() -> None:
    lane = RequestQueue()
    first = lane.slot(1)
    await first.__aenter__()
    leaving, staying = asyncio.ensure_future(hold(lane)), asyncio.ensure_future(hold(lane))
    await asyncio.sleep(0)
    # The slot is granted, and its owner is cancelled before it has run.
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
def test_a_request_queue_never_exceeds_the_highest_limit_and_is_empty_in_the_end(
    visits: list[tuple[int, int, bool]],
) -> None:
    async def visit(lane: RequestQueue, limit: int, stay: int) -> None:
        async with lane.slot(limit):
            assert lane.in_progress <= max(visit[0] for visit in visits)
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
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in done)
        assert lane.in_progress == 0

    asyncio.run(run())
