"""Exports telemetry: listens to the live feed and sends spans to an OTLP collector without delaying the feed."""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from contextlib import aclosing, suppress
from urllib.parse import urlsplit

import aiohttp

from holdfast.errors import StoreError, UserError
from holdfast.events.records import Placed
from holdfast.service.hub import Hub
from holdfast.service.otlp import METRICS, TRACES, metrics, traces
from holdfast.service.telemetry import Span, Spans

PAUSE_SECONDS = 1.0
SPANS_AT_ONCE = 256
# A deque with this maxlen: if the collector is slow, the oldest spans are dropped and memory stays bounded.
QUEUE_SPANS_MAX = 4_096
SEND_SECONDS_MAX = 10.0
# At shutdown; below the server's own limit of CLOSING_SECONDS_MAX.
LAST_SECONDS_MAX = 3.0

logger = logging.getLogger(__name__)


class Exporter:
    """Spans that the collector does not accept are dropped, with one warning; nothing waits for the collector."""

    def __init__(
        self,
        hub: Hub,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bool = False,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._hub = hub
        self._url = checked_url(url)
        self._headers = {**(headers or {}), "content-type": "application/json"}
        self._spans = Spans(content=content)
        self._queue: deque[Span] = deque(maxlen=QUEUE_SPANS_MAX)
        self._pause_seconds = pause_seconds
        self._has_warned = False

    async def run(self) -> None:
        """Runs until the feed ends; then sends what is left."""
        timeout = aiohttp.ClientTimeout(total=SEND_SECONDS_MAX)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as http:
            sending = asyncio.ensure_future(self._send_repeatedly(http))
            try:
                await self._listen()
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_SECONDS_MAX):
                        await self._send(http)

    async def _listen(self) -> None:
        try:
            async with aclosing(self._hub.listen(to_the_end=True)) as items:
                async for item in items:
                    if isinstance(item, Placed) and item.event is not None:
                        self._queue.extend(self._spans.enter(item.event))
        except StoreError as error:
            logger.warning("telemetry stopped: %s", error)

    async def _send_repeatedly(self, http: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(self._pause_seconds)
            await self._send(http)

    async def _send(self, http: aiohttp.ClientSession) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), SPANS_AT_ONCE))]
            await self._post(http, TRACES, traces(batch))
            if any(span.usage is not None for span in batch):
                await self._post(http, METRICS, metrics(batch))

    async def _post(self, http: aiohttp.ClientSession, path: str, body: bytes) -> None:
        try:
            async with http.post(self._url + path, data=body) as response:
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._warn_once(type(error).__name__)
        else:
            if status >= 300:
                self._warn_once(f"status {status}")

    def _warn_once(self, what: str) -> None:
        if not self._has_warned:
            # Log neither the URL, which may contain a password, nor the response.
            logger.warning("the telemetry collector does not accept data: %s", what)
        self._has_warned = True


def checked_url(url: str) -> str:
    """The URL without a trailing slash. Raises UserError if it is not usable."""
    try:
        parts = urlsplit(url)
        is_plain = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
    except ValueError:
        is_plain = False
    if not is_plain:
        raise UserError("the collector must be a URL such as http://127.0.0.1:4318")
    return url.rstrip("/")


def headers_of(text: str) -> dict[str, str]:
    """Parses headers in the format of OTEL_EXPORTER_OTLP_HEADERS: `name=value`, separated by commas."""
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {name.strip(): value.strip() for name, _, value in pairs if name.strip()}
