"""The official clients through the gateway to the simulator: their results are the same without it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support import sdk_clients as players
from tests.support.served_gateway import serve_gateway

from holdfast.clock import ManualClock
from holdfast.ledger.calls import iter_calls
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.server_thread import serve_provider

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

CLIENTS: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "anthropic": ("anthropic", players.anthropic_sync, players.anthropic_async),
    "openai chat": ("openai", players.chat_sync, players.chat_async),
    "openai responses": ("openai", players.responses_sync, players.responses_async),
    "openrouter": ("openrouter", players.openrouter_sync, players.openrouter_async),
    "google-genai": ("gemini", players.gemini_sync, players.gemini_async),
}


def play_client(url: str, name: str, *, stream: bool, blocking: bool) -> list[players.ShownUsage]:
    _, plain, asynchronous = CLIENTS[name]
    results: list[players.ShownUsage] = (
        plain(url, stream=stream) if blocking else asyncio.run(asynchronous(url, stream=stream))
    )
    return results


def simulated() -> SimulatedProvider:
    return SimulatedProvider(clock=ManualClock(1_000), script=players.SCRIPT)


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_gets_the_same_results_through_the_gateway_as_without_it(
    name: str, stream: bool, blocking: bool
) -> None:
    with serve_provider(simulated()) as url:
        direct = play_client(url, name, stream=stream, blocking=blocking)
    with serve_provider(simulated()) as url, serve_gateway(url) as gateway:
        through = play_client(f"{gateway.url}/{CLIENTS[name][0]}", name, stream=stream, blocking=blocking)
        (session,) = gateway.recorded_sessions()
        recorded = list(iter_calls(gateway.store.read(session)))
    assert through == direct
    assert len(recorded) == 3
    assert [call.usage.cache_read for call in recorded] == [read for _, read, _, _ in direct]
    assert [call.usage.output for call in recorded] == [output for *_, output in direct]
    assert all(call.cost_usd > 0 for call in recorded)


@pytest.mark.parametrize(("name", "base"), [("anthropic", ""), ("openai chat", ""), ("google-genai", "")])
def test_the_root_serves_the_same_paths(name: str, base: str) -> None:
    with serve_provider(simulated()) as url, serve_gateway(url) as gateway:
        through = play_client(f"{gateway.url}{base}", name, stream=False, blocking=True)
        assert len(gateway.recorded_sessions()) == 1
    assert len(through) == 3
