"""Requests to the simulator in Gemini's format: JSON in, status and JSON out."""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.simulator.provider import SimulatedProvider

FLASH = "gemini-3.8-flash"
OLDER = "gemini-2.5-flash"
ARGON = "gemini-4-argon"
LONG = "The quick brown fox jumps over the lazy dog. " * 500

Wire = dict[str, Any]  # The wire holds any JSON.


def content_of(role: str, *parts: Wire | str) -> Wire:
    return {"role": role, "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def user(*parts: Wire | str) -> Wire:
    return content_of("user", *parts)


def model(*parts: Wire | str) -> Wire:
    return content_of("model", *parts)


def call(name: str = "read", id: str | None = None) -> Wire:
    return {"functionCall": {"name": name, "args": {}, **({"id": id} if id else {})}}


def result(name: str = "read", id: str | None = None) -> Wire:
    return {"functionResponse": {"name": name, "response": {"result": "text"}, **({"id": id} if id else {})}}


def tool(name: str) -> Wire:
    schema = {"type": "object"}
    return {"functionDeclarations": [{"name": name, "description": "", "parametersJsonSchema": schema}]}


def request(*contents: Wire, system: str = "", **fields: Any) -> Wire:
    instruction = {"systemInstruction": {"parts": [{"text": system}]}} if system else {}
    return {**instruction, **fields, "contents": list(contents)}


def ask(
    provider: SimulatedProvider,
    method: str,
    path: str,
    body: Wire | bytes = b"",
    *,
    key: str = "key",
    query: Mapping[str, str] | None = None,
    version: str = "v1beta",
) -> tuple[int, Any]:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    response = provider.handle(
        method, f"/{version}/{path}", headers={"x-goog-api-key": key}, body=raw, query=query or {}
    )
    return response.status, msgspec.json.decode(response.read_body())


def post(provider: SimulatedProvider, body: Wire | bytes, *, name: str = FLASH, **options: Any) -> tuple[int, Any]:
    return ask(provider, "POST", f"models/{name}:generateContent", body, **options)


def post_ok(provider: SimulatedProvider, body: Wire, **options: Any) -> Wire:
    status, reply = post(provider, body, **options)
    assert status == 200, reply
    decoded: Wire = reply
    return decoded


def text(reply: Wire) -> str:
    return "".join(part.get("text", "") for part in reply["candidates"][0]["content"]["parts"])


def counts(reply: Wire) -> tuple[int, int]:
    """All tokens of the prompt, and the cached ones among them."""
    usage = reply["usageMetadata"]
    return usage["promptTokenCount"], usage.get("cachedContentTokenCount", 0)


def make_cache(provider: SimulatedProvider, *, name: str = FLASH, key: str = "key", **fields: Any) -> Wire:
    instruction = {"parts": [{"text": LONG}]}
    body = {"model": f"models/{name}", "systemInstruction": instruction, **fields}
    status, cache = ask(provider, "POST", "cachedContents", body, key=key)
    assert status == 200, cache
    content: Wire = cache
    return content


def error_of(response: tuple[int, Any]) -> tuple[int, str, str]:
    """Status, its name, and the message of an error."""
    status, body = response
    error = body["error"]
    assert set(error) == {"code", "message", "status"}
    assert error["code"] == status
    return status, error["status"], error["message"]
