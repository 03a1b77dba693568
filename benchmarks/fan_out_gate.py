"""What several sessions with the same prefix cost if they start at once, with and without single flight."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal

from holdfast import MemoryStore, Session, SimulatedProvider
from holdfast.engine.cache.single_flight import SingleFlight
from holdfast.simulator.server import serve_simulator

MODEL = "anthropic:claude-sonnet-5-5"
SESSIONS = 8
SYSTEM_PROMPT = "You look after the harbour, its cranes and its lights, and you answer in short sentences. " * 600
SCRIPT = '{"fault": "slow;seconds=0.2"}\n{"content": "The harbour is open."}\n'
"""Replies begin after a while, as a model's do."""


def run() -> Iterator[tuple[str, str]]:
    without, gated, warmed = (
        asyncio.run(_cost_usd(**how)) for how in ({"single_flight": False}, {}, {"prewarm": True})
    )
    yield f"{SESSIONS} sessions at once, without single flight", f"${without:.6f}"
    yield f"{SESSIONS} sessions at once, with single flight", f"${gated:.6f}"
    yield "with / without", f"{gated / without:.3f}"
    yield "with single flight and a prefix that one session has prewarmed / without", f"{warmed / without:.3f}"


async def _cost_usd(*, single_flight: bool = True, prewarm: bool = False) -> Decimal:
    async with _address() as url, AsyncExitStack() as stack:
        shared: SingleFlight | bool = SingleFlight() if single_flight else False
        sessions = [
            await stack.enter_async_context(
                Session.create(
                    model=MODEL,
                    system_prompt=SYSTEM_PROMPT,
                    base_url=url,
                    store=MemoryStore(),
                    single_flight=shared,
                    prewarm=prewarm and number == 0,
                )
            )
            for number in range(SESSIONS)
        ]
        await asyncio.gather(*(session.send(f"What about crane {number}?") for number, session in enumerate(sessions)))
        return sum((session.cost for session in sessions), Decimal(0))


@asynccontextmanager
async def _address() -> AsyncIterator[str]:
    server = await serve_simulator(SimulatedProvider(script=SCRIPT))
    try:
        yield server.url
    finally:
        await server.aclose()
