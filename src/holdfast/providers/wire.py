"""The transport protocol: how the engine sends a request without knowing about HTTP."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

from holdfast.errors import ProviderError
from holdfast.providers.adapter import Endpoint

REQUESTS_MAX = 16
"""Default limit of concurrent requests to one provider."""

OnRetry = Callable[[int, ProviderError], None]
"""Called before the delay with the number of failed attempts and the last error."""


class Wire(Protocol):
    """The network, or a simulator in its place."""

    def send(self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None) -> AsyncGenerator[bytes, None]:
        """Send one request; yields the chunks of the response as they arrive, at least one.

        Raises `ProviderError`. Nothing is retried after the first chunk. A caller that stops early must close the
        generator, which closes the connection.
        """

    async def aclose(self) -> None:
        """Release all connections; nothing can be sent afterwards."""


async def whole_answer(response: AsyncGenerator[bytes, None], *, bytes_max: int) -> bytes:
    """All bytes of a response that is not streamed; `ProviderError` if there are too many."""
    body = bytearray()
    async with aclosing(response) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > bytes_max:
                raise ProviderError("server_error", f"the provider sent a response of over {bytes_max} bytes")
    return bytes(body)
