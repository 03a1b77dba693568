"""Every official client runs the same scripted session against the simulator, and our numbers equal the client's."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
from tests.support import sdk_clients as players

from holdfast.clock import ManualClock
from holdfast.providers.adapter import Adapter
from holdfast.providers.registry import get_adapter
from holdfast.simulator.exchange import Chunk, SimulatedResponse
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.server import serve_simulator
from holdfast.types.reply import ReplyFinished
from holdfast.types.usage import Usage

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

CLIENTS: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "anthropic": ("anthropic", players.anthropic_sync, players.anthropic_async),
    "openai chat": ("openai-chat", players.chat_sync, players.chat_async),
    "openai responses": ("openai", players.responses_sync, players.responses_async),
    "openrouter": ("openrouter", players.openrouter_sync, players.openrouter_async),
    "google-genai": ("gemini", players.gemini_sync, players.gemini_async),
}


class RecordingProvider(SimulatedProvider):
    """The simulator, recording every response as it is sent over the wire."""

    def __init__(self) -> None:
        super().__init__(clock=ManualClock(1_000), script=players.SCRIPT)
        self.answers: list[bytearray] = []

    def handle(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] = {},
        body: bytes = b"",
        query: Mapping[str, str] = {},
    ) -> SimulatedResponse:
        response = super().handle(method, path, headers=headers, body=body, query=query)
        assert response.status == 200, response.read_body()
        self.answers.append(bytearray())
        return SimulatedResponse(response.status, response.headers, self._record(response.chunks, self.answers[-1]))

    def _record(self, chunks: Iterable[Chunk], recorded: bytearray) -> Iterator[Chunk]:
        for chunk in chunks:
            if isinstance(chunk, bytes):
                recorded += chunk
            yield chunk


def decode_usage(adapter: Adapter, answer: bytes, *, stream: bool) -> Usage:
    if not stream:
        return adapter.decode_reply(answer).usage
    (finished,) = (delta for delta in adapter.make_stream_decoder().feed(answer) if isinstance(delta, ReplyFinished))
    return finished.reply.usage


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("waits", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_scripted_session_reads_its_cache_and_client_and_we_count_the_same_usage(
    client: str, waits: bool, stream: bool
) -> None:
    provider, sync_player, async_player = CLIENTS[client]
    simulated = RecordingProvider()
    server = await serve_simulator(simulated)
    try:
        session: Awaitable[list[players.ShownUsage]] = (
            async_player(server.url, stream=stream)
            if waits
            else asyncio.to_thread(sync_player, server.url, stream=stream)
        )
        shown = await asyncio.wait_for(session, 30)
    finally:
        await server.aclose()
    ours = [decode_usage(get_adapter(provider), bytes(answer), stream=stream) for answer in simulated.answers]
    assert shown == [(usage.tokens_sent, usage.cache_read, usage.cache_write, usage.output) for usage in ours]
    assert [read > 0 for _, read, _, _ in shown] == [False, True, True]
    assert len(shown) == 3
