"""Requests to the simulator in OpenAI's format: one conversation, as Chat Completions or Responses."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.simulator.provider import SimulatedProvider

SOL = "gpt-6.1-sol"
OLDER = "gpt-5.4"
LONG = "The quick brown fox jumps over the lazy dog. " * 150
BREAKPOINT = {"mode": "explicit"}

Wire = dict[str, Any]  # The wire holds any JSON.


class Chat:
    """Chat completions."""

    path = "/v1/chat/completions"
    provider = "openai"
    call_prefix, reply_prefix = "call_", "chatcmpl-"

    def part(self, words: str, breakpoint: Mapping[str, str] | None = None) -> Wire:
        return {"type": "text", "text": words, **({"prompt_cache_breakpoint": breakpoint} if breakpoint else {})}

    def message(self, role: str, *parts: Wire | str) -> Wire:
        return {"role": role, "content": [self.part(part) if isinstance(part, str) else part for part in parts]}

    def body(self, *messages: Wire, **fields: Any) -> Wire:
        return {"model": SOL, **fields, "messages": list(messages)}

    def tool(self, name: str) -> Wire:
        return {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}

    def calls(self, *ids: str) -> list[Wire]:
        calls = [{"id": id, "type": "function", "function": {"name": "read", "arguments": "{}"}} for id in ids]
        return [{"role": "assistant", "content": None, "tool_calls": calls}]

    def result(self, id: str, words: str = "text") -> Wire:
        return {"role": "tool", "tool_call_id": id, "content": words}

    def reply_messages(self, reply: Wire) -> Sequence[Wire]:
        """The messages of the reply as the next request contains them."""
        return [reply["choices"][0]["message"]]

    def text(self, reply: Wire) -> str | None:
        messages: str | None = reply["choices"][0]["message"]["content"]
        return messages

    def buckets(self, reply: Wire) -> tuple[int, int, int]:
        """Tokens neither read nor written, read, written."""
        usage = reply["usage"]
        details = usage["prompt_tokens_details"]
        return _split(usage["prompt_tokens"], details["cached_tokens"], details.get("cache_write_tokens", 0))


class Responses(Chat):
    """The Responses API."""

    path = "/v1/responses"
    reply_prefix = "resp_"

    def part(self, words: str, breakpoint: Mapping[str, str] | None = None) -> Wire:
        return {**super().part(words, breakpoint), "type": "input_text"}

    def message(self, role: str, *parts: Wire | str) -> Wire:
        if role == "assistant":
            return {"role": role, "content": [{"type": "output_text", "text": part} for part in parts]}
        return super().message(role, *parts)

    def body(self, *messages: Wire, **fields: Any) -> Wire:
        return {"model": SOL, **fields, "input": list(messages)}

    def tool(self, name: str) -> Wire:
        return {"type": "function", "name": name, "description": "", "parameters": {"type": "object"}}

    def calls(self, *ids: str) -> list[Wire]:
        return [{"type": "function_call", "call_id": id, "name": "read", "arguments": "{}"} for id in ids]

    def result(self, id: str, words: str = "text") -> Wire:
        return {"type": "function_call_output", "call_id": id, "output": words}

    def reply_messages(self, reply: Wire) -> Sequence[Wire]:
        output: list[Wire] = reply["output"]
        return output

    def text(self, reply: Wire) -> str | None:
        messages = [item for item in reply["output"] if item["type"] == "message"]
        return messages[0]["content"][0]["text"] if messages else None

    def buckets(self, reply: Wire) -> tuple[int, int, int]:
        usage = reply["usage"]
        details = usage["input_tokens_details"]
        return _split(usage["input_tokens"], details["cached_tokens"], details.get("cache_write_tokens", 0))


def _split(total: int, read: int, written: int) -> tuple[int, int, int]:
    return total - read - written, read, written


def post(
    simulator: SimulatedProvider,
    path: str,
    body: Wire | bytes,
    *,
    key: str = "key",
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Wire]:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    sent = {"authorization": f"Bearer {key}", **(headers or {})}
    response = simulator.handle("POST", path, headers=sent, body=raw)
    return response.status, msgspec.json.decode(response.read_body())


def get(simulator: SimulatedProvider, path: str, *, headers: Mapping[str, str] | None = None) -> tuple[int, Wire]:
    response = simulator.handle("GET", path, headers={"authorization": "Bearer key", **(headers or {})})
    return response.status, msgspec.json.decode(response.read_body())


def models_with(id: str, *, context_tokens_max: int | None = None, **cache: object) -> Models:
    """The shipped models, one of them with another window or other cache rules."""
    row = shipped_models()[id]
    rules = msgspec.structs.replace(row.cache, **cache)
    window = row.context_tokens_max if context_tokens_max is None else context_tokens_max
    return {**shipped_models(), id: msgspec.structs.replace(row, cache=rules, context_tokens_max=window)}
