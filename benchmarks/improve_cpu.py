"""Processor time of planning and rewriting one call of a growing conversation, by provider and size of the body.

Decoding and encoding the same body once is measured in the same run, and so are whole gateways in front of one
upstream: ours with `--improve`, Portkey's, and LiteLLM's proxy.
"""

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import msgspec

from benchmarks._gateway_ends import upstream
from benchmarks._proxies import (
    PEER_ERRORS,
    Proxy,
    child_processes,
    cpu_seconds,
    explain_peer_error,
    start_holdfast,
    start_litellm,
    start_portkey,
)
from holdfast.catalog.lookup import shipped_models
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter

SIZES = {"2 KB": 2, "100 KB": 100, "1 MB": 1_000}
BARS_MS = {"2 KB": 1.0, "100 KB": 2.0, "1 MB": 8.0}
CALLS = 30
# Processor time of another process is counted in hundredths of a second: these 70 calls show 0.15 ms a call.
CONVERSATIONS = 10
CONVERSATION_CALLS = 7
TEXT = "The build failed again, so read the log before you change a line of it. " * 13
MODELS = {
    "anthropic": "claude-sonnet-4-6",
    "openai": "gpt-6.1-sol",
    "openai-chat": "gpt-6.1-sol",
    "openrouter": "anthropic/claude-sonnet-5.5",
    "gemini": "gemini-3.8-flash",
}
PEERS = {"portkey": start_portkey, "litellm": start_litellm}
RESPONSE = json.dumps({"usage": {"input_tokens": 9, "output_tokens": 9, "cache_read_input_tokens": 5_000}}).encode()


def run() -> Iterator[tuple[str, str]]:
    for size, messages in SIZES.items():
        slowest = 0.0
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
            slowest = max(slowest, planned)
        yield f"{size}, the slowest of {len(MODELS)} APIs: ms a call (at most {BARS_MS[size]:g})", f"{slowest:.2f}"
    yield from _compare_gateways()


def _compare_gateways() -> Iterator[tuple[str, str]]:
    """Milliseconds a call of each whole gateway: HTTP, decoding, rewriting, forwarding and answering."""
    yield "whole gateways", f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    with upstream() as port:
        with start_holdfast(port, "--improve") as proxy:
            ours, recording = _measure_proxy(proxy)
        with start_holdfast(port) as proxy:
            forwarded, _ = _measure_proxy(proxy)
        yield "holdfast serve --improve: ms a call", _format_sizes(ours)
        yield "its recorder, in a process of its own: ms a call", _format_sizes(recording)
        yield "holdfast serve: ms a call", _format_sizes(forwarded)
        yield from compare_with_peers(port, ours)


def compare_with_peers(port: int, ours: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    for name, start in PEERS.items():
        try:
            with start(port) as proxy:
                yield f"{name}: version", proxy.version
                theirs, _ = _measure_proxy(proxy)
        except PEER_ERRORS as error:
            yield name, explain_peer_error(error)
            continue
        yield f"{name}: ms a call", _format_sizes(theirs)
        ratios = {size: ours[size] / max(theirs[size], 0.01) for size in SIZES}
        bar = " (below 1)" if name == "portkey" else ""
        yield f"holdfast serve --improve to {name}{bar}", _format_sizes(ratios)


def _measure_proxy(proxy: Proxy) -> tuple[dict[str, float], dict[str, float]]:
    """For each size the milliseconds of the gateway's process and of its children."""
    own, of_children = dict[str, float](), dict[str, float]()
    with closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)) as connection:
        for size, messages in SIZES.items():
            # The first call of each conversation is new to a gateway and is not measured.
            for conversation in range(CONVERSATIONS):
                _send(connection, proxy, make_body("anthropic", messages, about=f"{size} {conversation}"))
            children = child_processes(proxy.process)
            before = cpu_seconds(proxy.process), sum(map(cpu_seconds, children))
            for call in range(1, CONVERSATION_CALLS + 1):
                for conversation in range(CONVERSATIONS):
                    body = make_body("anthropic", messages + 2 * call, about=f"{size} {conversation}")
                    _send(connection, proxy, body)
            after = cpu_seconds(proxy.process), sum(map(cpu_seconds, children))
            calls = CONVERSATIONS * CONVERSATION_CALLS
            own[size], of_children[size] = (
                (end - start) / calls * 1_000 for start, end in zip(before, after, strict=True)
            )
    return own, of_children


def _send(connection: http.client.HTTPConnection, proxy: Proxy, body: bytes) -> None:
    headers = {"content-type": "application/json", "x-api-key": "any", "anthropic-version": "2023-06-01"}
    connection.request("POST", proxy.path, body, headers | dict(proxy.headers))
    response = connection.getresponse()
    content = response.read()
    if response.status != http.client.OK:
        raise RuntimeError(f"{response.status} from {proxy.path}: {content[:200].decode(errors='replace')}")


def _format_sizes(figures: dict[str, float]) -> str:
    return ", ".join(f"{figure:.2f} at {size}" for size, figure in figures.items())


def make_body(provider: str, count: int, *, about: str = "") -> bytes:
    """A request with that many messages of a kilobyte each, and a tool."""
    texts = [f"{about} {number}: {TEXT}" for number in range(count | 1)]
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
