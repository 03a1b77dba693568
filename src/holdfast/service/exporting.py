"""Who tells a collector of what happens: a listener of the feed that sends what it heard, and never holds it up."""

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
QUEUE_SPANS_MAX = 4_096
SEND_SECONDS_MAX = 10.0
LAST_SECONDS_MAX = 3.0

logger = logging.getLogger(__name__)


class Exporter:
    """What a collector does not take is left out, and said once; nobody waits for it."""

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
        self._complained = False

    async def run(self) -> None:
        """Until the feed ends; then what is left is sent."""
        timeout = aiohttp.ClientTimeout(total=SEND_SECONDS_MAX)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as http:
            sending = asyncio.ensure_future(self._send_always(http))
            try:
                await self._hear()
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_SECONDS_MAX):
                        await self._send(http)

    async def _hear(self) -> None:
        try:
            async with aclosing(self._hub.listen(to_the_end=True)) as listening:
                async for heard in listening:
                    if isinstance(heard, Placed) and heard.event is not None:
                        self._queue.extend(self._spans.enter(heard.event))
        except StoreError as error:
            logger.warning("telemetry has ended: %s", error)

    async def _send_always(self, http: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(self._pause_seconds)
            await self._send(http)

    async def _send(self, http: aiohttp.ClientSession) -> None:
        while self._queue:
            some = [self._queue.popleft() for _ in range(min(len(self._queue), SPANS_AT_ONCE))]
            await self._post(http, TRACES, traces(some))
            if any(span.usage is not None for span in some):
                await self._post(http, METRICS, metrics(some))

    async def _post(self, http: aiohttp.ClientSession, path: str, body: bytes) -> None:
        try:
            async with http.post(self._url + path, data=body) as response:
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._complain(type(error).__name__)
        else:
            if status >= 300:
                self._complain(f"status {status}")

    def _complain(self, what: str) -> None:
        if not self._complained:
            # The address may hold a password, and the answer anything.
            logger.warning("the collector of telemetry does not take what it is sent: %s", what)
        self._complained = True


def checked_url(url: str) -> str:
    """The address without the slash at its end; raises UserError."""
    try:
        parts = urlsplit(url)
        is_plain = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
    except ValueError:
        is_plain = False
    if not is_plain:
        raise UserError("a collector has an address such as http://127.0.0.1:4318")
    return url.rstrip("/")


def headers_of(told: str) -> dict[str, str]:
    """Headers as OTEL_EXPORTER_OTLP_HEADERS has them: `name=value`, with commas between."""
    pairs = (pair.partition("=") for pair in told.split(",") if "=" in pair)
    return {name.strip(): value.strip() for name, _, value in pairs if name.strip()}
