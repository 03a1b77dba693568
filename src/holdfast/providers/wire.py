"""How a request reaches a provider, seen by everything that only wants the answer."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

from holdfast.errors import ProviderError
from holdfast.providers.adapter import Endpoint

REQUESTS_MAX = 16
"""How many requests to one provider are under way at once, unless somebody says otherwise."""

OnRetry = Callable[[int, ProviderError], None]
"""Told, before the pause, how many attempts have failed so far and how the last one did."""


class Wire(Protocol):
    """The network, or a simulator in its place."""

    def send(self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None) -> AsyncGenerator[bytes, None]:
        """One request. The bytes of its answer as they arrive, whole or streamed; at least one chunk.

        Raises `ProviderError`; after the first chunk nothing is tried again. Whoever stops early closes the
        generator, and with it the connection.
        """

    async def aclose(self) -> None:
        """Let go of all connections; nothing can be sent afterwards."""


async def whole_answer(sending: AsyncGenerator[bytes, None], *, bytes_max: int) -> bytes:
    """All bytes of an answer that is no stream; `ProviderError` where there are too many of them."""
    answer = bytearray()
    async with aclosing(sending) as chunks:
        async for chunk in chunks:
            answer += chunk
            if len(answer) > bytes_max:
                raise ProviderError("server_error", f"the provider sent an answer of over {bytes_max} bytes")
    return bytes(answer)
