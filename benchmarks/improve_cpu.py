"""Processor time of planning and rewriting one call of a growing conversation, by provider and size of the body.

Decoding and encoding the same body once is measured in the same run.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.catalog.lookup import shipped_models
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter

SIZES = {"2 KB": 2, "100 KB": 100, "1 MB": 1_000}
BARS_MS = {"2 KB": 1.0, "100 KB": 2.0, "1 MB": 8.0}
CALLS = 30
TEXT = "The build failed again, so read the log before you change a line of it. " * 13
MODELS = {
    "anthropic": "claude-sonnet-4-6",
    "openai": "gpt-6.1-sol",
    "openai-chat": "gpt-6.1-sol",
    "openrouter": "anthropic/claude-sonnet-5.5",
    "gemini": "gemini-3.8-flash",
}
RESPONSE = json.dumps({"usage": {"input_tokens": 9, "output_tokens": 9, "cache_read_input_tokens": 5_000}}).encode()


def run() -> Iterator[tuple[str, str]]:
    for size, messages in SIZES.items():
        for provider in MODELS:
            bodies = [make_body(provider, messages + 2 * call) for call in range(CALLS + 1)]
            rewriter = ConversationRewriter(shipped_models())

            def plan(
                body: bytes, at: float, rewriter: ConversationRewriter = rewriter, provider: str = provider
            ) -> None:
                path = f"/v1/models/{MODELS[provider]}:generateContent"
                analysis = rewriter.analyze(provider, body, path=path, account="a", at=at)
                assert analysis.call is not None
                rewriter.record_response(analysis.call, RESPONSE)

            planned = _cpu_ms(plan, bodies)
            decoded = _cpu_ms(lambda body, at: msgspec.json.encode(msgspec.json.decode(body)), bodies)
            title = f"{size}, {provider}: ms a call (at most {BARS_MS[size]:g})"
            yield title, f"{planned:.2f}; {planned / decoded:.1f} times decoding and encoding"


def make_body(provider: str, count: int) -> bytes:
    """A request with that many messages of a kilobyte each, and a tool."""
    texts = [f"{number}: {TEXT}" for number in range(count | 1)]
    body: dict[str, Any] = {"model": MODELS[provider]}
    schema, tools = {"type": "object"}, list[dict[str, Any]]()
    read: dict[str, Any] = {"name": "read", "description": "Reads a file."}
    spoken = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    match provider:
        case "gemini":
            contents = [{"role": ("user", "model")[at % 2], "parts": [{"text": text}]} for at, text in enumerate(texts)]
            tools = [{"functionDeclarations": [{**read, "parametersJsonSchema": schema}]}]
            body = {"systemInstruction": {"parts": [{"text": "Be brief."}]}, "tools": tools, "contents": contents}
        case "openai":
            tools = [{"type": "function", **read, "parameters": schema, "strict": False}]
            body |= {"instructions": "Be brief.", "tools": tools, "input": spoken, "store": False}
        case "anthropic":
            body |= {"max_tokens": 99, "system": "Be brief.", "messages": spoken}
            body["tools"] = [{**read, "input_schema": schema}]
        case _:
            body["messages"] = [{"role": "system", "content": "Be brief."}, *spoken]
            body["tools"] = [{"type": "function", "function": {**read, "parameters": schema}}]
    return json.dumps(body).encode()


def _cpu_ms(call: Callable[[bytes, float], object], bodies: list[bytes]) -> float:
    """Milliseconds a call, without the first, which meets a conversation that is new to it."""
    call(bodies[0], 0.0)
    started = time.process_time()
    for number, body in enumerate(bodies[1:]):
        call(body, 30.0 * number)
    return (time.process_time() - started) / (len(bodies) - 1) * 1_000
