"""Requests to the simulator without a socket: JSON in, status and JSON out."""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.clock import ManualClock
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import parse_script

SONNET = "claude-sonnet-5-5"
LONG = "The quick brown fox jumps over the lazy dog. " * 80
CACHE_CONTROL = {"type": "ephemeral"}
CACHE_CONTROL_1H = {"type": "ephemeral", "ttl": "1h"}

Wire = dict[str, Any]  # The wire holds any JSON.


def simulator(script: str = "", *, models: Models | None = None, start: float = 1_000.0) -> SimulatedProvider:
    return SimulatedProvider(clock=ManualClock(start), script=parse_script(script), models=models)


def models_with(name: str = SONNET, **cache: object) -> Models:
    """The shipped models, one of them with other cache rules."""
    models = dict(shipped_models())
    row = models[f"anthropic:{name}"]
    rules = msgspec.structs.replace(row.cache, **cache)
    models[row.id] = msgspec.structs.replace(row, cache=rules)
    return models


def text(words: str, cache_control: Mapping[str, str] | None = None) -> Wire:
    block: Wire = {"type": "text", "text": words}
    return block if cache_control is None else {**block, "cache_control": cache_control}


def user(*content: Wire | str) -> Wire:
    return {"role": "user", "content": [text(part) if isinstance(part, str) else part for part in content]}


def assistant(*content: Wire | str) -> Wire:
    return {**user(*content), "role": "assistant"}


def tool(name: str, cache_control: Mapping[str, str] | None = None, description: str = LONG) -> Wire:
    spec: Wire = {"name": name, "description": description, "input_schema": {"type": "object"}}
    return spec if cache_control is None else {**spec, "cache_control": cache_control}


def request(*messages: Wire, **fields: Any) -> Wire:
    return {"model": SONNET, "max_tokens": 100, **fields, "messages": list(messages)}


def post(
    provider: SimulatedProvider,
    body: Wire | bytes,
    *,
    path: str = "/v1/messages",
    key: str = "key",
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Wire]:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    sent = {"x-api-key": key, **(headers or {})}
    response = provider.handle("POST", path, headers=sent, body=raw)
    return response.status, msgspec.json.decode(response.read_body())


def usage(provider: SimulatedProvider, body: Wire, **options: Any) -> Wire:
    status, reply = post(provider, body, **options)
    assert status == 200, reply
    reported: Wire = reply["usage"]
    return reported


def buckets(reported: Wire) -> tuple[int, int, int, int]:
    """Tokens uncached, read, written for five minutes, written for an hour."""
    created = reported["cache_creation"]
    assert reported["cache_creation_input_tokens"] == sum(created.values())
    return (
        reported["input_tokens"],
        reported["cache_read_input_tokens"],
        created["ephemeral_5m_input_tokens"],
        created["ephemeral_1h_input_tokens"],
    )


def count_tokens(provider: SimulatedProvider, body: Wire) -> int:
    fields = {name: value for name, value in body.items() if name not in ("max_tokens", "stream")}
    status, reply = post(provider, fields, path="/v1/messages/count_tokens")
    assert status == 200, reply
    tokens: int = reply["input_tokens"]
    return tokens


def refusal(provider: SimulatedProvider, body: Wire | bytes, **options: Any) -> tuple[int, str, str]:
    """Status, type and message of an error."""
    status, reply = post(provider, body, **options)
    assert reply["type"] == "error", reply
    return status, reply["error"]["type"], reply["error"]["message"]
