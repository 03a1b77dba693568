"""Processor time of planning and rewriting one call of a growing conversation, by the size of its body.

The same bodies through the rewrite that looks at each request alone (as for providers without a planner), and decoding
and encoding them once, in the same run.
"""

import json
import time
from collections.abc import Callable, Iterator

import msgspec

from holdfast.catalog.lookup import shipped_models
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.rewriter import RequestRewriter, analyze_request

SIZES = {"2 KB": 2, "100 KB": 100, "1 MB": 1_000}
BARS_MS = {"2 KB": 1.0, "100 KB": 2.0, "1 MB": 8.0}
CALLS = 30
RESPONSE = json.dumps({"usage": {"input_tokens": 9, "output_tokens": 9, "cache_read_input_tokens": 5_000}}).encode()


def run() -> Iterator[tuple[str, str]]:
    for size, messages in SIZES.items():
        bodies = [_body(messages + 2 * call) for call in range(CALLS + 1)]
        planner, stateless = ConversationRewriter(shipped_models()), RequestRewriter(shipped_models())

        def plan(body: bytes, at: float, planner: ConversationRewriter = planner) -> None:
            analysis = planner.analyze("anthropic", body, path="/v1/messages", account="a", at=at)
            assert analysis.call is not None
            planner.record_response(analysis.call, RESPONSE)

        def rewrite(body: bytes, at: float, stateless: RequestRewriter = stateless) -> None:
            analyze_request(stateless, "anthropic", body, path="/v1/messages", account="a")

        planned = _cpu_ms(plan, bodies)
        alone = _cpu_ms(rewrite, bodies[: 6 if messages == SIZES["1 MB"] else None])
        decoded = _cpu_ms(lambda body, at: msgspec.json.encode(msgspec.json.decode(body)), bodies)
        yield f"{size}: planned, ms a call (at most {BARS_MS[size]:g})", f"{planned:.2f}"
        yield f"{size}: by the request alone, over planned", f"{alone / planned:.1f}"
        yield f"{size}: planned, over decoding and encoding once", f"{planned / decoded:.1f}"


def _body(count: int) -> bytes:
    text = "The build failed again, so read the log before you change a line of it. " * 13
    messages = [{"role": ("user", "assistant")[at % 2], "content": f"{at}: {text}"} for at in range(count | 1)]
    tools = [{"name": "read", "description": "Reads a file.", "input_schema": {"type": "object"}}]
    body = {"model": "claude-sonnet-4-6", "max_tokens": 99, "system": "Be brief.", "tools": tools, "messages": messages}
    return json.dumps(body).encode()


def _cpu_ms(call: Callable[[bytes, float], object], bodies: list[bytes]) -> float:
    """Milliseconds a call, without the first, which meets a conversation that is new to it."""
    call(bodies[0], 0.0)
    started = time.process_time()
    for number, body in enumerate(bodies[1:]):
        call(body, 30.0 * number)
    return (time.process_time() - started) / (len(bodies) - 1) * 1_000
