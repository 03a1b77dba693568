"""Every fault of the simulator with every provider over real sockets: a typed error or a recovery, in time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.loopback import Pauses

from holdfast.errors import ProviderError
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed
from holdfast.events.payloads.session import TurnCancelled
from holdfast.ledger.calls import iter_calls
from holdfast.providers.connection_pool import Timeouts
from holdfast.providers.registry import get_provider
from holdfast.providers.transport import HttpTransport
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.server import serve_simulator
from holdfast.stores.memory import MemoryStore
from holdfast.types.transcript import validate_transcript

MODELS = [
    "anthropic:claude-sonnet-5-5",
    "openai:gpt-6-luna",
    "openai-chat:gpt-6-luna",
    "gemini:gemini-3.8-flash",
    "openrouter:anthropic/claude-sonnet-5.5",
]
LONG = "word " * 200
TIMEOUTS = Timeouts(connect_seconds=2.0, first_byte_seconds=0.4, idle_seconds=0.4)
HANGS_SECONDS_MAX = 10.0

RECOVERED = ["429;retry-after=1", "529", "500", "503", "slow;seconds=30"]
BROKEN = ["stall;after=1", "cut;after=1", "cut;after=2", "malformed;after=1", "malformed;after=2", "content-type"]


@asynccontextmanager
async def faulty_session(model: str, *faults: str) -> AsyncIterator[tuple[Session, MemoryStore]]:
    """A session over HTTP whose second call meets these faults."""
    lines = ['{"content": "One."}', *(f'{{"fault": "{fault}"}}' for fault in faults), f'{{"content": "{LONG}"}}']
    server = await serve_simulator(SimulatedProvider(script="\n".join([*lines, '{"content": "Three."}'])))
    provider, store = get_provider(model.partition(":")[0]), MemoryStore()
    transport = HttpTransport(
        provider.adapter,
        server.url + provider.path_prefix,
        "any",
        timeouts=TIMEOUTS,
        sleep=Pauses(),
        chance=lambda: 0.5,
    )
    try:
        async with Session.create(model=model, store=store, transport=transport, allow_uncached=True) as session:
            yield session, store
    finally:
        await transport.aclose()
        await server.aclose()


def payloads(store: MemoryStore) -> list[object]:
    (row,) = store.sessions()
    return [event.payload for event in store.read(row.id)]


@pytest.mark.parametrize("fault", RECOVERED)
@pytest.mark.parametrize("model", MODELS)
async def test_transient_faults_are_retried_and_the_retries_are_recorded(model: str, fault: str) -> None:
    async with faulty_session(model, fault) as (session, store), asyncio.timeout(HANGS_SECONDS_MAX):
        await session.send("one")
        answer = await session.send("two")
        assert answer.text.strip() == LONG.strip()
    completed = [payload for payload in payloads(store) if isinstance(payload, LlmCallCompleted)]
    assert [call.retry_count for call in completed] == [0, 1]


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("model", MODELS)
async def test_a_fault_after_the_first_byte_is_a_typed_error_and_the_session_continues(model: str, fault: str) -> None:
    async with faulty_session(model, fault) as (session, store), asyncio.timeout(HANGS_SECONDS_MAX):
        await session.send("one")
        with pytest.raises(ProviderError) as failed:
            await session.send("two")
        assert failed.value.kind in ("network", "server_error")
        assert len(str(failed.value).splitlines()) == 1
        assert LONG.strip()[:40] not in str(failed.value)
        answer = await session.send("go on")
        assert answer.text.strip() in (LONG.strip(), "Three.")
        assert not validate_transcript(session.history, complete=True)
    recorded = payloads(store)
    (failure,) = (payload for payload in recorded if isinstance(payload, LlmCallFailed))
    assert (failure.error_class, failure.retry_count) == (failed.value.kind, 0)
    assert [payload.reason for payload in recorded if isinstance(payload, TurnCancelled)] == ["error"]
    (row,) = store.sessions()
    assert all(record.is_prefix_unchanged for record in iter_calls(store.read(row.id)))


@pytest.mark.parametrize("model", MODELS)
async def test_a_permanent_fault_is_raised_after_the_last_retry(model: str) -> None:
    async with faulty_session(model, "500", "500", "500") as (session, store), asyncio.timeout(HANGS_SECONDS_MAX):
        await session.send("one")
        with pytest.raises(ProviderError) as failed:
            await session.send("two")
        assert (failed.value.kind, failed.value.status) == ("server_error", 500)
        await session.send("go on")
    (failure,) = (payload for payload in payloads(store) if isinstance(payload, LlmCallFailed))
    assert failure.retry_count == 2
