"""An in-process transport to the simulator, without a socket."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

from holdfast.errors import ProviderError
from holdfast.providers.adapter import Endpoint
from holdfast.providers.registry import Provider
from holdfast.providers.retry import retry_delay
from holdfast.providers.wire import OnRetry
from holdfast.simulator.answer import Answer, Cut, Pause


class Answering(Protocol):
    @property
    def account(self) -> str: ...

    def answer(
        self, method: str, path: str, *, headers: Mapping[str, str], body: bytes, query: Mapping[str, str]
    ) -> Answer: ...


class SimulatedWire:
    """Replaces the network transport: it retries after the same failures, but without waiting."""

    def __init__(self, simulator: Answering, provider: Provider, *, api_key: str = "simulated") -> None:
        self._simulator = simulator
        self._adapter = provider.adapter
        self._prefix = provider.path_prefix
        self._credentials = provider.adapter.credentials(api_key)
        self._closed = False

    @property
    def account(self) -> str:
        """All transports to one simulator share one API key."""
        return self._simulator.account

    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        if self._closed:
            raise ProviderError("network", "the connection to the simulator was closed")
        headers = {**dict(endpoint.headers), **self._credentials}
        attempt = 1
        address = urlsplit(self._prefix + endpoint.path)
        query = dict(parse_qsl(address.query))
        while (
            response := self._simulator.answer(endpoint.method, address.path, headers=headers, body=body, query=query)
        ).status >= 400:
            failure = self._adapter.read_error(response.status, response.headers, response.body())
            # The delay is not waited for; a fixed jitter keeps the transport deterministic.
            if retry_delay(attempt, failure, 0.5) is None:
                raise failure
            if on_retry is not None:
                on_retry(attempt, failure)
            attempt += 1
        for chunk in response.chunks:
            match chunk:
                case Pause(seconds=seconds):
                    await asyncio.sleep(seconds)
                case Cut():
                    raise ProviderError("network", "the simulated connection was cut")
                case bytes():
                    yield chunk

    async def aclose(self) -> None:
        self._closed = True
