"""How bytes get to a provider and back over HTTP: streamed, timed, and tried again where that is safe."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from holdfast.canonical.encoding import digest
from holdfast.clock import Chance, system_chance
from holdfast.errors import ProviderError, UserError
from holdfast.providers.adapter import Adapter, Endpoint
from holdfast.providers.pool import Host, give_back_host, take_host
from holdfast.providers.retry import ATTEMPTS_MAX, retry_delay
from holdfast.providers.wire import REQUESTS_MAX, OnRetry

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


class Request(msgspec.Struct, frozen=True):
    """The key is among the headers: never to be shown."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes


async def receive(
    connections: aiohttp.ClientSession,
    request: Request,
    *,
    timeouts: Timeouts,
    refusal: Refusal,
) -> AsyncGenerator[bytes, None]:
    """The bytes of a good answer as they come, never empty; `ProviderError` for every other one."""
    host = urlsplit(request.url).netloc.rpartition("@")[2] or "the provider"
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeouts.first_byte_seconds
    # Not followed elsewhere: the key is for this host alone.
    asked = connections.request(
        request.method,
        request.url,
        data=request.body or None,
        headers=request.headers,
        allow_redirects=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect_seconds),
    )
    response = await _until(deadline, asked, host)
    try:
        if response.status != 200:
            body = await _error_body(response, host, idle_seconds=timeouts.idle_seconds)
            raise refusal(response.status, response.headers, body)
        received = 0
        while chunk := await _until(deadline, response.content.readany(), host):
            received += len(chunk)
            if received > REPLY_BYTES_MAX:
                raise ProviderError("server_error", f"{host} sent a reply of over {REPLY_BYTES_MAX} bytes")
            yield chunk
            deadline = loop.time() + timeouts.idle_seconds
        if not received:
            raise ProviderError("network", f"{host} ended its answer before the first byte")
    finally:
        # Frees the connection of a reply that was read to its end, and cuts every other.
        response.close()


async def _error_body(response: aiohttp.ClientResponse, host: str, *, idle_seconds: float) -> bytes:
    deadline = asyncio.get_running_loop().time() + idle_seconds
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
        failure = f"the connection to {host} failed: {_way_out(fault)}"
    except (aiohttp.ClientError, OSError) as fault:
        failure = f"{host} broke off its answer: {type(fault).__name__}"
    # Outside of the handlers: aiohttp's errors can carry the request's headers, and with them the key.
    raise ProviderError("network", failure)


def _way_out(fault: aiohttp.ClientConnectionError) -> str:
    """Why there is no connection, and what to look at."""
    match fault:
        case aiohttp.ClientConnectorDNSError():
            return "nobody knows a host of that name; check the network, and the base URL for typing errors"
        case aiohttp.ClientConnectorCertificateError():
            return "its certificate is not trusted; check the base URL, the clock, and a proxy in between"
        case aiohttp.ClientSSLError():
            return "it does not speak TLS; check whether the base URL begins with https or http"
        case aiohttp.ClientConnectorError(os_error=ConnectionRefusedError()):
            return "nothing listens there; is it running? Check the base URL and the network"
        case aiohttp.ClientConnectorError():
            return "it cannot be reached; check the network"
        case _:
            return type(fault).__name__


class HttpWire:
    """Sends one provider's requests to one base URL with one key.

    Connections are shared with all wires of the loop to the same host, and so is the count of requests under way
    there: no more than `requests_max` at once.
    """

    def __init__(
        self,
        adapter: Adapter,
        base_url: str,
        api_key: str,
        *,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - a frozen value
        attempts_max: int = ATTEMPTS_MAX,
        requests_max: int = REQUESTS_MAX,
        sleep: Sleep = asyncio.sleep,
        chance: Chance = system_chance,
    ) -> None:
        self._adapter = adapter
        self._base_url = _checked_url(base_url)
        self._api_key = _checked_key(api_key)
        self._attempts_max = attempts_max
        self._sleep = sleep
        self._chance = chance
        self._timeouts = timeouts
        self._requests_max = requests_max
        self._host: Host | None = None
        self._closed = False

    @property
    def account(self) -> str:
        """The same for all wires that lead to the same caches: one key at one address. Tells neither."""
        return digest(f"{self._base_url}\n{self._api_key}".encode())

    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        headers = dict(endpoint.headers) | dict(self._adapter.credentials(self._api_key))
        request = Request(endpoint.method, self._base_url + endpoint.path, headers, body)
        attempt = 0
        while True:
            attempt += 1
            host = self._open()
            answer = receive(host.connections, request, timeouts=self._timeouts, refusal=self._refusal)
            async with host.lane.place(self._requests_max), aclosing(answer) as chunks:
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
        self._closed = True
        if self._host is not None:
            self._host = None
            await give_back_host(self._base_url)

    def _open(self) -> Host:
        if self._closed:
            raise UserError("the connection to the provider is closed; open a new one")
        if self._host is None:
            self._host = take_host(self._base_url)
        return self._host

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
