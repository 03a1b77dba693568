"""How bytes get to a provider and back over HTTP: streamed, timed, and tried again where that is safe."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from holdfast.errors import ProviderError, UserError
from holdfast.providers.adapter import Adapter, Endpoint
from holdfast.providers.retry import ATTEMPTS_MAX, retry_delay
from holdfast.providers.wire import OnRetry

CONNECTIONS_MAX = 100
ERROR_BYTES_MAX = 64 * 1024
REPLY_BYTES_MAX = 64 * 1024 * 1024

KEY_CHARS_MIN = 8
"""What is shorter is no secret, and taking it out of a message would only garble it."""

Sleep = Callable[[float], Awaitable[None]]
Refusal = Callable[[int, Mapping[str, str], bytes], ProviderError]
"""Status, headers and body of an answer that is not 200, as an error."""

Answer = TypeVar("Answer")


class Timeouts(msgspec.Struct, frozen=True):
    """A whole reply sends no byte before it is ready, which can take minutes."""

    connect_seconds: float = 10.0
    first_byte_seconds: float = 600.0
    idle_seconds: float = 120.0


class Transport:
    """One pool of connections, opened with the first request."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def stream(
        self, method: str, url: str, headers: Mapping[str, str], *, body: bytes, refusal: Refusal
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of a good answer as they come, never empty; `ProviderError` for every other one."""
        host = urlsplit(url).netloc.rpartition("@")[2] or "the provider"
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeouts.first_byte_seconds
        session = self._open()
        # Not followed elsewhere: the key is for this host alone.
        asked = session.request(method, url, data=body or None, headers=headers, allow_redirects=False)
        response = await _until(deadline, asked, host)
        try:
            if response.status != 200:
                raise refusal(response.status, response.headers, await self._error_body(response, host))
            received = 0
            while chunk := await _until(deadline, response.content.readany(), host):
                received += len(chunk)
                if received > REPLY_BYTES_MAX:
                    raise ProviderError("server_error", f"{host} sent a reply of over {REPLY_BYTES_MAX} bytes")
                yield chunk
                deadline = loop.time() + self._timeouts.idle_seconds
            if not received:
                raise ProviderError("network", f"{host} ended its answer before the first byte")
        finally:
            # Frees the connection of a reply that was read to its end, and cuts every other.
            response.close()

    async def aclose(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise UserError("the connection to the provider is closed; open a new one")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeouts.connect_seconds),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"user-agent": "holdfast"},
            )
        return self._session

    async def _error_body(self, response: aiohttp.ClientResponse, host: str) -> bytes:
        deadline = asyncio.get_running_loop().time() + self._timeouts.idle_seconds
        body = bytearray()
        try:
            while len(body) < ERROR_BYTES_MAX:
                chunk = await _until(deadline, response.content.readany(), host)
                if not chunk:
                    break
                body += chunk
        except ProviderError:
            # The status alone already says what went wrong.
            pass
        return bytes(body)


async def _until(deadline: float, answer: Awaitable[Answer], host: str) -> Answer:
    """The answer, or an error that names the host and nothing of what was sent to it."""
    try:
        async with asyncio.timeout_at(deadline):
            return await answer
    except aiohttp.ServerTimeoutError:
        failure = f"{host} could not be reached in time"
    except TimeoutError:
        failure = f"{host} was silent for too long"
    except aiohttp.ClientConnectionError as fault:
        refused = isinstance(fault, aiohttp.ClientConnectorError) and isinstance(fault.os_error, ConnectionRefusedError)
        reason = "nothing listens there; is it running?" if refused else type(fault).__name__
        failure = f"the connection to {host} failed: {reason}"
    except (aiohttp.ClientError, OSError) as fault:
        failure = f"{host} broke off its answer: {type(fault).__name__}"
    # Outside of the handlers: aiohttp's errors can carry the request's headers, and with them the key.
    raise ProviderError("network", failure)


class HttpWire:
    """Sends one provider's requests to one base URL with one key."""

    def __init__(
        self,
        adapter: Adapter,
        base_url: str,
        api_key: str,
        *,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - a frozen value
        attempts_max: int = ATTEMPTS_MAX,
        sleep: Sleep = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._adapter = adapter
        self._base_url = _checked_url(base_url)
        self._api_key = _checked_key(api_key)
        self._attempts_max = attempts_max
        self._sleep = sleep
        self._chance = chance
        self._transport = Transport(timeouts)

    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        url = self._base_url + endpoint.path
        headers = dict(endpoint.headers) | dict(self._adapter.credentials(self._api_key))
        attempt = 0
        while True:
            attempt += 1
            answer = self._transport.stream(endpoint.method, url, headers, body=body, refusal=self._refusal)
            async with aclosing(answer) as chunks:
                try:
                    first = await anext(chunks)
                except ProviderError as error:
                    failure = error
                else:
                    yield first
                    async for chunk in chunks:
                        yield chunk
                    return
            delay = retry_delay(attempt, failure, self._chance(), attempts_max=self._attempts_max)
            if delay is None:
                raise failure
            if on_retry is not None:
                on_retry(attempt, failure)
            await self._sleep(delay)

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """Some servers quote the key they refuse."""
        key = self._api_key.encode()
        if len(key) >= KEY_CHARS_MIN:
            body = body.replace(key, b"[removed]")
        return self._adapter.read_error(status, headers, body)


def _checked_url(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise UserError("the base URL must be like https://host or http://host:port; check it for typing errors")
    return base_url.rstrip("/")


def _checked_key(api_key: str) -> str:
    if not api_key.isascii() or not api_key.isprintable() or api_key != api_key.strip():
        raise UserError("the API key has characters that no header can carry; check it for a stray line break")
    return api_key
