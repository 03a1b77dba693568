"""Sends requests to a provider over HTTP: streamed, with timeouts, retried where that is safe."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from holdfast.clock import RandomSource, Sleep, system_random
from holdfast.errors import ProviderError, UserError
from holdfast.providers.adapter import Adapter, Endpoint
from holdfast.providers.connection_pool import REPLY_BYTES_MAX, PooledHost, Timeouts, acquire_host, release_host
from holdfast.providers.retry import RETRY_ATTEMPTS_MAX, retry_delay
from holdfast.providers.wire_request import CONCURRENT_REQUESTS_MAX, OnRetry
from holdfast.redaction import REDACTION_MASK
from holdfast.types.json_encoding import sha256_hex

ERROR_BYTES_MAX = 64 * 1024

REDACTED_KEY_CHARS_MIN = 8
"""A shorter key, as in tests, is not removed from error messages: the removal would only garble them."""

ErrorDecoder = Callable[[int, Mapping[str, str], bytes], ProviderError]
"""Turns status, headers and body of a response other than 200 into an error."""

Result = TypeVar("Result")


class HttpRequest(msgspec.Struct, frozen=True):
    """The headers include the API key: never log or show them."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes


async def stream_response(
    connections: aiohttp.ClientSession,
    request: HttpRequest,
    *,
    timeouts: Timeouts,
    refusal: ErrorDecoder,
) -> AsyncGenerator[bytes, None]:
    """The chunks of a 200 response as they arrive, at least one; raises `ProviderError` for any other outcome."""
    host = urlsplit(request.url).netloc.rpartition("@")[2] or "the provider"
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeouts.first_byte_seconds
    # Redirects are not followed: the API key must not reach another host.
    pending = connections.request(
        request.method,
        request.url,
        data=request.body or None,
        headers=request.headers,
        allow_redirects=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect_seconds),
    )
    response = await _until(deadline, pending, host)
    try:
        if response.status != 200:
            body = await _error_body(response, host, idle_seconds=timeouts.idle_seconds)
            raise refusal(response.status, response.headers, body)
        received = 0
        while chunk := await _until(deadline, response.content.readany(), host):
            received += len(chunk)
            if received > REPLY_BYTES_MAX:
                raise ProviderError("server_error", f"{host} sent a response of over {REPLY_BYTES_MAX} bytes")
            yield chunk
            deadline = loop.time() + timeouts.idle_seconds
        if not received:
            raise ProviderError("network", f"{host} closed the connection before the first byte")
    finally:
        # Returns the connection to the pool if the response was read to its end, and closes it otherwise.
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
        # The status alone is enough to report the failure.
        pass
    return bytes(body)


async def _until(deadline: float, operation: Awaitable[Result], host: str) -> Result:
    """The result, or an error that names the host and quotes nothing that was sent to it."""
    try:
        async with asyncio.timeout_at(deadline):
            return await operation
    except aiohttp.ServerTimeoutError:
        failure = f"connecting to {host} timed out"
    except TimeoutError:
        failure = f"{host} sent nothing for too long"
    except aiohttp.ClientConnectionError as error:
        failure = f"the connection to {host} failed: {_connection_advice(error)}"
    except (aiohttp.ClientError, OSError) as error:
        failure = f"{host} broke off its response: {type(error).__name__}"
    # Raised outside the handlers, so that no aiohttp error is chained: it can carry the headers and thus the API key.
    raise ProviderError("network", failure)


def _connection_advice(error: aiohttp.ClientConnectionError) -> str:
    """Why there is no connection, and what to check."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "the host name cannot be resolved; check the network, and the base URL for typing errors"
        case aiohttp.ClientConnectorCertificateError():
            return "its certificate is not trusted; check the base URL, the clock, and any proxy in between"
        case aiohttp.ClientSSLError():
            return "it does not speak TLS; check whether the base URL begins with https or http"
        case aiohttp.ClientConnectorError(os_error=ConnectionRefusedError()):
            return "nothing listens there; is it running? Check the base URL and the network"
        case aiohttp.ClientConnectorError():
            return "it cannot be reached; check the network"
        case _:
            return type(error).__name__


class HttpTransport:
    """Sends one provider's requests to one base URL with one key.

    All transports of the event loop to the same host share their connections and the limit of `requests_max` concurrent
    requests.
    """

    def __init__(
        self,
        adapter: Adapter,
        base_url: str,
        api_key: str,
        *,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - a frozen value
        attempts_max: int = RETRY_ATTEMPTS_MAX,
        requests_max: int = CONCURRENT_REQUESTS_MAX,
        sleep: Sleep = asyncio.sleep,
        chance: RandomSource = system_random,
    ) -> None:
        self._adapter = adapter
        self._base_url = _validate_url(base_url)
        self._api_key = _validate_key(api_key)
        self._attempts_max = attempts_max
        self._sleep = sleep
        self._chance = chance
        self._timeouts = timeouts
        self._requests_max = requests_max
        self._host: PooledHost | None = None
        self._closed = False

    @property
    def account(self) -> str:
        """Identifies the provider's cache namespace: one key at one address, hashed so that it reveals neither."""
        return sha256_hex(f"{self._base_url}\n{self._api_key}".encode())

    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        headers = dict(endpoint.headers) | dict(self._adapter.credentials(self._api_key))
        request = HttpRequest(endpoint.method, self._base_url + endpoint.path, headers, body)
        attempt = 0
        while True:
            attempt += 1
            host = self._open()
            response = stream_response(host.connections, request, timeouts=self._timeouts, refusal=self._refusal)
            async with host.queue.slot(self._requests_max), aclosing(response) as chunks:
                try:
                    first = await anext(chunks)
                except ProviderError as error:
                    failure = error
                else:
                    # From the first chunk on nothing is retried: the caller has seen part of the response.
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
            await release_host(self._base_url)

    def _open(self) -> PooledHost:
        if self._closed:
            raise UserError("the connection to the provider is closed; open a new one")
        if self._host is None:
            self._host = acquire_host(self._base_url)
        return self._host

    def _refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """Decode an error response, without the API key: some servers quote the key they refuse."""
        key = self._api_key.encode()
        if len(key) >= REDACTED_KEY_CHARS_MIN:
            body = body.replace(key, REDACTION_MASK.encode())
        return self._adapter.decode_error(status, headers, body)


def _validate_url(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise UserError("the base URL must be like https://host or http://host:port; check it for typing errors")
    return base_url.rstrip("/")


def _validate_key(api_key: str) -> str:
    if not api_key.isascii() or not api_key.isprintable() or api_key != api_key.strip():
        raise UserError("the API key has characters that no header can carry; check it for a stray line break")
    return api_key
