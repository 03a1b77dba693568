"""Bodies of today's clients are read without loss: decoded and encoded again, they have the same fields and values.

`python -m conformance --corpus` writes the files beside this one. What an adapter may write differently is listed in
the functions `normalize_*`, and nothing else may differ.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from conformance.clients import CLIENTS
from conformance.corpus import TEXT_CHARS_MAX
from tests.support.wire_corpus import FILES, WireExchange, load_exchanges

from holdfast.providers.adapter import PATH_HEADER
from holdfast.types.blocks import Opaque
from holdfast.types.reply import ReplyFinished

EXCHANGES = [
    pytest.param(exchange, id=f"{file.stem}-{number}")
    for file in FILES
    for number, exchange in enumerate(load_exchanges(file), start=1)
]


def as_parts(content: Any, kind: str = "text") -> Any:
    """A text is the short form of a list with one part."""
    return [{"type": kind, "text": content}] if isinstance(content, str) else content


def drop_defaults(value: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    """A field with its default means the same as no field."""
    return {name: member for name, member in value.items() if name not in defaults or member != defaults[name]}


def normalize_anthropic(body: dict[str, Any]) -> dict[str, Any]:
    body = drop_defaults(body, tools=[], system="", stream=False)
    if "system" in body:
        body["system"] = [_anthropic_block(block) for block in as_parts(body["system"])]
    body["tools"] = [_anthropic_block(tool) for tool in body.get("tools", [])]
    body["messages"] = [
        {**message, "content": [_anthropic_block(block) for block in as_parts(message["content"])]}
        for message in body["messages"]
    ]
    return body


def _anthropic_block(block: dict[str, Any]) -> dict[str, Any]:
    block = drop_defaults(block, is_error=False)
    if "cache_control" in block:
        block["cache_control"] = drop_defaults(block["cache_control"], ttl="5m")
    if block.get("type") == "tool_result":
        block["content"] = [_anthropic_block(part) for part in as_parts(block.get("content", []))]
    return block


def normalize_responses(body: dict[str, Any]) -> dict[str, Any]:
    """`instructions` become the first item, which is sent at the same place of the prompt and can have breakpoints.

    The API fills in `id` and `status` of the items it returns; they are no part of what the model reads.
    """
    body = drop_defaults(body, tools=[], include=[], store=True, stream=False)
    instructions = body.pop("instructions", None)
    items = [{"role": "developer", "content": instructions}] if instructions else []
    items += [{"role": "user", "content": body["input"]}] if isinstance(body["input"], str) else body["input"]
    body["input"] = [_responses_item(item) for item in items]
    return body


def _responses_item(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind not in ("message", "function_call", "function_call_output"):
        return item
    item = {name: value for name, value in item.items() if name not in ("id", "status")}
    if kind == "message":
        part_kind = "output_text" if item["role"] == "assistant" else "input_text"
        parts = [drop_defaults(part, annotations=[], logprobs=[]) for part in as_parts(item["content"], part_kind)]
        return {**item, "type": kind, "content": parts}
    return {**item, "output": as_parts(item["output"], "input_text")} if "output" in item else item


def normalize_chat(body: dict[str, Any]) -> dict[str, Any]:
    body = drop_defaults(body, tools=[], stream=False)
    body["messages"] = [
        {
            **drop_defaults(message, content=None),
            **({"content": as_parts(message["content"])} if message.get("content") else {}),
        }
        for message in body["messages"]
    ]
    return body


def normalize_gemini(body: dict[str, Any]) -> dict[str, Any]:
    """Function declarations may be grouped in any number of tools; a system instruction needs no role."""
    body = drop_defaults(body, generationConfig={})
    body["systemInstruction"] = {**body.get("systemInstruction", {})}
    body["systemInstruction"].pop("role", None)
    tools = body.pop("tools", [])
    body["declarations"] = [declaration for tool in tools for declaration in tool.get("functionDeclarations", [])]
    body["tools"] = [rest for tool in tools if (rest := {k: v for k, v in tool.items() if k != "functionDeclarations"})]
    return body


NORMALIZE: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "anthropic": normalize_anthropic,
    "openai": normalize_responses,
    "openai-chat": normalize_chat,
    "gemini": normalize_gemini,
}


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_request_keeps_every_field(exchange: WireExchange) -> None:
    headers = {**exchange.headers, PATH_HEADER: exchange.path}
    decoded = exchange.adapter.decode_request(json.dumps(exchange.request).encode(), headers)
    encoded = json.loads(exchange.adapter.encode_request(decoded.prompt, decoded.plan, decoded.parameters))
    normalize = NORMALIZE[exchange.provider]
    assert normalize(encoded) == normalize(exchange.request)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_the_betas_and_the_method_of_a_request_are_kept(exchange: WireExchange) -> None:
    headers = {**exchange.headers, PATH_HEADER: exchange.path}
    decoded = exchange.adapter.decode_request(json.dumps(exchange.request).encode(), headers)
    endpoint = exchange.adapter.endpoint(decoded.parameters)
    assert exchange.headers.get("anthropic-beta") == dict(endpoint.headers).get("anthropic-beta")
    # Gemini's API has the same methods under several versions.
    assert exchange.path.partition("?")[0].rpartition("/")[2] == endpoint.path.partition("?")[0].rpartition("/")[2]


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_what_people_and_models_wrote_is_readable(exchange: WireExchange) -> None:
    """Only items of types that no other provider has are carried as their bytes."""
    headers = {**exchange.headers, PATH_HEADER: exchange.path}
    prompt = exchange.adapter.decode_request(json.dumps(exchange.request).encode(), headers).prompt
    entries = [entry for segment in prompt.segments for entry in segment.entries]
    kinds = {block.kind for entry in entries for block in entry.content if isinstance(block, Opaque)}
    assert kinds <= {"additional_tools", "custom_tool_call", "custom_tool_call_output"}


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_response_keeps_every_field(exchange: WireExchange) -> None:
    adapter = exchange.adapter
    if exchange.response is not None:
        reply = adapter.decode_reply(json.dumps(exchange.response).encode())
        assert _comparable(json.loads(adapter.encode_reply(reply))) == _comparable(exchange.response)
        return
    decoder = adapter.make_stream_decoder()
    deltas = [delta for event in exchange.stream for delta in decoder.feed(event.encode() + b"\n\n")]
    assert isinstance(deltas[-1], ReplyFinished)
    encoded = b"".join(adapter.encode_stream(deltas[-1].reply)).decode()
    events = [event for event in re.split(r"(?:\r?\n){2}", encoded) if event]
    assert [_read_event(event) for event in events] == [_read_event(event) for event in exchange.stream]


def _read_event(event: str) -> Any:
    data = event.partition("data:")[2].strip()
    return _comparable(json.loads(data)) if data.startswith("{") else event


def _comparable(value: Any) -> Any:
    """Encoding depends on no clock; and what the API reports about the request is no part of the reply."""
    if isinstance(value, dict):
        left_out = ("created", "created_at", "completed_at", "input_transformations")
        return {name: _comparable(member) for name, member in value.items() if name not in left_out}
    return [_comparable(item) for item in value] if isinstance(value, list) else value


def test_every_client_has_bodies_of_its_pinned_version() -> None:
    packages = {file.stem: json.loads(file.read_text())["packages"] for file in FILES}
    assert packages == {client.name: dict(client.packages) for client in CLIENTS}


def test_the_bodies_name_no_machine_and_copy_no_prompt() -> None:
    for file in FILES:
        text = file.read_text()
        assert not re.search(r"/tmp/|/root\b|/home/|127\.0\.0\.1", text), file.name
        longest = max(
            len(part) for part in re.findall(r'"((?:[^"\\]|\\.)*)"', text) if not part.startswith(("data", "event"))
        )
        assert longest <= 2 * TEXT_CHARS_MAX, file.name
