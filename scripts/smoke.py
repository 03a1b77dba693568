"""Runs two turns with one model and shows what the second read from the cache, what both cost, and wire surprises."""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from decimal import Decimal
from pathlib import Path

import msgspec

from holdfast.catalog.lookup import find_model, price_at, shipped_models, utc_date
from holdfast.cli.sessions.sessions import describe_unreadable_calls
from holdfast.economics.cost import cost_usd
from holdfast.errors import BudgetError, HoldfastError, UserError
from holdfast.providers.adapter import Adapter, Endpoint
from holdfast.providers.registry import get_provider
from holdfast.providers.sse import SseParser
from holdfast.providers.wire_request import OnRetry, Transport
from holdfast.runtime.compose import open_transport
from holdfast.runtime.config import load_config
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.stores.open import open_store
from holdfast.types.reply import ReplyFinished
from holdfast.types.usage import Usage

SPEND_MAX_USD = Decimal("0.05")
OUTPUT_TOKENS_MAX = 256
PAUSE_SECONDS = 3.0
"""Some providers need a moment before a cache write can be read."""
PROMPT_TOKENS = 6_500
"""About what padding adds to the minimum, because it consists of whole texts, and what the conversation has."""
FIELDS_SHOWN_MAX = 30

SIMULATED_KEY = "simulated"
PASSED, FAILED, CANNOT = 0, 1, 2

NATURAL_PROMPT = "You are a careful assistant. Answer in one short sentence."
MESSAGES = ("What is a prompt cache?", "And what does it save?")


def estimate_cost(model: str) -> Decimal:
    """What two turns cost if the answers are as long as they may be: one writes the padded prompt, one reads it."""
    row = find_model(model, shipped_models())
    prompt = row.cache.tokens_min + PROMPT_TOKENS
    price = price_at(row, utc_date(time.time()), prompt)
    write = Usage(cache_write_other=prompt) if row.provider.startswith("openai") else Usage(cache_write_5m=prompt)
    answers = Usage(cache_read=prompt, output=2 * OUTPUT_TOKENS_MAX)
    return cost_usd(write, price) + cost_usd(answers, price)


def try_model(model: str, base_url: str | None, *, label: str | None = None, api_key: str | None = None) -> int:
    """Run the turns and print the result; 0 if the cache hit, 1 if not, 2 if the model cannot be called like this."""
    label = label or model
    try:
        return asyncio.run(_two_turns(model, base_url, label, api_key))
    except HoldfastError as error:
        print(f"{label}: {error}")
        return CANNOT if isinstance(error, UserError) and not isinstance(error, BudgetError) else FAILED


def try_gateway(model: str, upstream_url: str | None) -> int:
    """The same turns through a gateway of our own, and what it could not decode of them."""
    provider, label = get_provider(model.partition(":")[0]), f"{model} through the gateway"
    key = SIMULATED_KEY if upstream_url else os.environ.get(provider.key_variable)
    if not key:
        print(f"{label}: no key: set {provider.key_variable}")
        return CANNOT
    mount = "openai" if provider.name == "openai-chat" else provider.name
    with tempfile.TemporaryDirectory(prefix="holdfast-smoke-") as folder:
        store = Path(folder) / "calls.db"
        with _running_gateway(store, mount, upstream_url) as url:
            base_url = f"{url}/{mount}{provider.path_prefix.removeprefix('/api')}"
            result = try_model(model, base_url, label=label, api_key=key)
        with contextlib.closing(open_store(store, read_only=True)) as log:
            events = [event for row in log.sessions() for event in log.read(row.id)]
            calls = log.cost_queries().totals().calls
    lines = list(describe_unreadable_calls(events))
    for line in lines:
        print(f"{label}: {line}")
    print(f"{label}: {calls} of {len(MESSAGES)} calls recorded, {'not all of it' if lines else 'everything'} decoded")
    return result if calls == len(MESSAGES) and not lines else max(result, FAILED)


@contextlib.contextmanager
def _running_gateway(store: Path, mount: str, upstream_url: str | None) -> Iterator[str]:
    """The address of `holdfast serve` with this store; when it has stopped, everything is recorded."""
    upstream = f"{upstream_url}/api" if mount == "openrouter" else upstream_url
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--db", str(store)]
    words += ["--upstream", f"{mount}={upstream}"] if upstream_url else []
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    with process.stdout:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait(30)


class _Tap:
    """A transport that keeps the bytes of the responses, to compare them with what we know."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.responses: list[bytearray] = []

    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        response = bytearray()
        self.responses.append(response)
        chunks = self._transport.send(endpoint, body, on_retry=on_retry)
        try:
            async for chunk in chunks:
                response += chunk
                yield chunk
        finally:
            await chunks.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()


def list_unknown_fields(adapter: Adapter, response: bytes) -> set[str]:
    """Fields of a streamed response that our own encoding of the same reply does not have, as the simulator sends it.

    What is in them is not read. Raises HoldfastError if the response cannot be decoded.
    """
    replies = [
        delta.reply for delta in adapter.make_stream_decoder().feed(response) if isinstance(delta, ReplyFinished)
    ]
    known = {path for reply in replies for path in _field_paths(b"".join(adapter.encode_stream(reply)))}
    return _field_paths(response) - known if replies else set()


def _field_paths(stream: bytes) -> set[str]:
    parser = SseParser(event_bytes_max=len(stream) + 1)
    parser.feed(stream + b"\n\n")
    paths: set[str] = set()
    for event in parser.events():
        try:
            document = msgspec.json.decode(event.data)
        except msgspec.DecodeError:
            continue
        kind = document.get("type") if isinstance(document, dict) else None
        _add_paths(document, str(kind or "event"), paths)
    return paths


def _add_paths(value: object, path: str, paths: set[str]) -> None:
    if isinstance(value, dict):
        for name, member in value.items():
            paths.add(f"{path}.{name}")
            _add_paths(member, f"{path}.{name}", paths)
    elif isinstance(value, list):
        for item in value:
            _add_paths(item, f"{path}[]", paths)


async def _two_turns(model: str, base_url: str | None, label: str, api_key: str | None) -> int:
    options = _options(model, base_url, api_key)
    provider = get_provider(model.partition(":")[0])
    tap = _Tap(open_transport(options, load_config(os.environ), provider))
    try:
        async with Session.create(**(options | Options(transport=tap))) as session:
            first = await session.send(MESSAGES[0])
            _show(label, 1, first.usage, first.cost_usd)
            if base_url is None or api_key not in (None, SIMULATED_KEY):
                await asyncio.sleep(PAUSE_SECONDS)
            second = await session.send(MESSAGES[1])
            _show(label, 2, second.usage, second.cost_usd)
            cost = session.cost
    finally:
        await tap.aclose()
    if not provider.is_command:
        unknown = sorted(
            {path for body in tap.responses for path in list_unknown_fields(provider.adapter, bytes(body))}
        )
        shown = ", ".join(unknown[:FIELDS_SHOWN_MAX]) + (", ..." if len(unknown) > FIELDS_SHOWN_MAX else "")
        counted = "1 field is" if len(unknown) == 1 else f"{len(unknown)} fields are"
        print(f"{label}: " + (f"{counted} new to us: {shown}" if unknown else "no field is new to us"))
    held = second.usage.cache_read > 0
    verdict = "the cache held" if held else "the second turn read nothing from the cache"
    print(f"{label}: {verdict}; ${cost:.6f} spent of at most ${SPEND_MAX_USD}")
    return PASSED if held else FAILED


def _options(model: str, base_url: str | None, api_key: str | None) -> Options:
    """A short prompt without tools or skills, padded regardless of the cost."""
    options: Options = {
        "model": model,
        "system_prompt": NATURAL_PROMPT,
        "padding": "always",
        # For a route without known caching, this script is how to find out.
        "allow_uncached": True,
        "output_tokens_max": OUTPUT_TOKENS_MAX,
        "spend_max_usd": SPEND_MAX_USD,
        "store": "memory:",
    }
    if base_url is None:
        return options
    if api_key is not None:
        return options | Options(base_url=base_url, api_key=api_key)
    path = get_provider(model.partition(":")[0]).path_prefix
    # A real key must not be sent to any other address.
    return options | Options(base_url=base_url.rstrip("/") + path, api_key=SIMULATED_KEY)


def _show(label: str, turn: int, usage: Usage, cost_usd: Decimal) -> None:
    read, written = usage.cache_read, usage.cache_write
    print(f"{label}: turn {turn}: {usage.tokens_sent} tokens sent, {read} read, {written} written, ${cost_usd:.6f}")
