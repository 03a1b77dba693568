"""Decoding of requests to OpenAI's Responses API."""

import json
from typing import Any

import pytest

from holdfast.errors import ProviderError
from holdfast.providers.adapter import WireRequest
from holdfast.providers.openai_responses import openai_responses
from holdfast.providers.tolerant_decode import decode_request_tolerantly
from holdfast.providers.wire_request import BODY_BYTES_MAX
from holdfast.types.blocks import (
    Base64Source,
    Block,
    FileSource,
    Image,
    Opaque,
    Role,
    Text,
    ToolResult,
    ToolUse,
    UrlSource,
)
from holdfast.types.prompt import Breakpoint
from holdfast.types.tool_spec import ToolSpec

DEEP = "[" * 100_000


def read(**fields: Any) -> WireRequest:
    return openai_responses.decode_request(json.dumps({"model": "gpt", **fields}).encode())


def decode_messages(*items: Any) -> list[tuple[Role, tuple[Block, ...]]]:
    # After a first message, so that no item is the first, which may be the system prompt.
    first = {"role": "user", "content": "first"}
    return [(entry.role, entry.content) for entry in read(input=[first, *items]).prompt.entries[1:]]


def encode_again(request: WireRequest) -> bytes:
    return openai_responses.encode_request(request.prompt, request.plan, request.parameters)


def refusal_message(body: bytes) -> str:
    with pytest.raises(ProviderError) as refused:
        openai_responses.decode_request(body)
    assert refused.value.kind == "invalid_request"
    return str(refused.value)


# Items


def test_a_plain_string_is_the_users_message() -> None:
    request = read(input="Hello.")
    assert [(entry.role, entry.content) for entry in request.prompt.entries] == [("user", (Text("Hello."),))]


def test_the_short_forms_that_clients_send_are_decoded() -> None:
    assert decode_messages(
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "developer", "content": "c"},
        {"role": "system", "content": [{"type": "input_text", "text": "d"}]},
        {"type": "function_call_output", "call_id": "c", "output": "e"},
    ) == [
        ("user", (Text("a"),)),
        ("assistant", (Text("b"),)),
        ("system", (Text("c"),)),
        ("system", (Text("d"),)),
        ("user", (ToolResult("c", (Text("e"),)),)),
    ]


def test_reply_items_that_a_client_appends_are_decoded() -> None:
    text_part = {"type": "output_text", "text": "a", "annotations": [], "logprobs": []}
    assert decode_messages(
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [text_part],
            "phase": None,
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "status": "completed",
            "call_id": "c",
            "name": "t",
            "arguments": "",
            "caller": {"type": "direct"},
            "namespace": None,
        },
    ) == [("assistant", (Text("a"),)), ("assistant", (ToolUse("c", "t", "{}"),))]


@pytest.mark.parametrize(
    ("item", "role"),
    [
        ({"type": "reasoning", "id": "rs_1", "summary": []}, "assistant"),
        ({"type": "reasoning", "encrypted_content": "g", "summary": [{"type": "new", "text": "x"}]}, "assistant"),
        (
            {"type": "reasoning", "encrypted_content": "g", "content": [{"type": "reasoning_text", "text": "x"}]},
            "assistant",
        ),
        ({"type": "message", "role": "assistant", "content": [], "phase": "commentary"}, "assistant"),
        ({"type": "message", "role": "assistant", "content": [{"type": "new"}]}, "assistant"),
        ({"type": "message", "role": "user", "content": [{"type": "shell_call_output"}]}, "user"),
        ({"type": "web_search_call", "id": "ws_1"}, "assistant"),
        ({"type": "computer_call_output", "output": {}}, "user"),
        ({"type": "item_reference", "id": "x"}, "user"),
    ],
)
def test_an_item_without_canonical_form_is_preserved(item: dict[str, object], role: Role) -> None:
    assert decode_messages(item) == [(role, (Opaque(str(item["type"]), json.dumps(item).encode()),))]
    request = read(input=[item])
    assert json.dumps(item).encode() in encode_again(request)
    assert encode_again(openai_responses.decode_request(encode_again(request))) == encode_again(request)


@pytest.mark.parametrize(
    ("item", "block"),
    [
        (
            {"type": "function_call", "call_id": "c", "name": "t", "arguments": "{}", "namespace": "n"},
            ToolUse("c", "t", "{}"),
        ),
        (
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [{"type": "input_text", "text": "x"}],
                "name": "t",
            },
            ToolResult("c", (Text("x"),)),
        ),
        ({"type": "function_call_output", "call_id": "c", "output": "", "name": "t"}, ToolResult("c", ())),
        (
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "x", "annotations": []}],
                "phase": "commentary",
            },
            Text("x"),
        ),
        (
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "x"}],
                # Codex's.
                "internal_chat_message_metadata_passthrough": {"turn_id": "7", "parts": [1, None]},
            },
            Text("x"),
        ),
    ],
)
def test_an_item_with_unknown_members_is_readable_and_keeps_them(item: dict[str, object], block: Block) -> None:
    assert [content for _, content in decode_messages(item)] == [(block,)]
    other = {"type": "message", "role": item.get("role", "user"), "content": [{"type": "input_text", "text": "y"}]}
    for items in ([item], [item, other], [other, item], [item, item]):
        encoded = encode_again(read(input=items))
        assert [given for given in json.loads(encoded)["input"] if given == item] == [
            given for given in items if given == item
        ]
        assert encode_again(openai_responses.decode_request(encoded)) == encoded


@pytest.mark.parametrize(
    ("part", "block"),
    [
        ({"type": "input_image", "image_url": "https://x", "detail": None}, Image(UrlSource("https://x"))),
        ({"type": "input_image", "image_url": "https://x", "file_id": None}, Image(UrlSource("https://x"))),
        ({"type": "input_image", "image_url": "data:a/b;base64,C"}, Image(Base64Source("a/b", "C"))),
        ({"type": "input_image", "file_id": "f", "detail": "auto"}, Image(FileSource("f"))),
    ],
)
def test_an_image_is_decoded(part: dict[str, object], block: Block) -> None:
    assert decode_messages({"role": "user", "content": [part]}) == [("user", (block,))]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": "https://x", "detail": "high"},
        {"type": "input_image", "image_url": "https://x", "file_id": "f"},
        {"type": "input_file", "file_id": "f"},
        {"type": "input_text", "text": "a", "more": 1},
    ],
)
def test_a_part_with_unknown_members_is_preserved(part: dict[str, object]) -> None:
    raw = json.dumps(part).encode()
    assert decode_messages({"role": "user", "content": [part]}) == [("user", (Opaque(str(part["type"]), raw),))]


def test_text_with_citations_is_preserved() -> None:
    cited = {"type": "output_text", "text": "a", "annotations": [{"type": "url_citation"}]}
    assert decode_messages({"role": "assistant", "content": [cited]}) == [
        ("assistant", (Opaque("output_text", json.dumps(cited).encode()),))
    ]


def test_a_message_without_content_is_dropped() -> None:
    assert decode_messages({"role": "user", "content": []}) == []


def test_arguments_that_are_not_an_object_are_wrapped_in_one() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "t", "arguments": "[1"}
    assert decode_messages(call) == [("assistant", (ToolUse("c", "t", '{"INVALID_JSON":"[1"}'),))]


# The system prompt


def decode_system_texts(**fields: Any) -> list[str]:
    return [text.text for segment in read(**fields).prompt.segments for text in segment.system]


def test_instructions_come_before_the_first_developer_message() -> None:
    first = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "b"}]}
    assert decode_system_texts(instructions="a", input=[first, first]) == ["a", "b"]
    assert len(read(instructions="a", input=[first, first]).prompt.entries) == 1
    assert decode_system_texts(instructions="a", input="hi") == ["a"]
    assert decode_system_texts(instructions="", input=[first]) == ["b"]


def test_a_system_message_is_accepted_in_place_of_a_developer_message() -> None:
    assert decode_system_texts(input=[{"role": "system", "content": "a"}]) == ["a"]


def test_a_first_message_that_is_not_only_text_is_not_the_system_prompt() -> None:
    first = {"role": "developer", "content": [{"type": "input_image", "file_id": "f"}]}
    request = read(input=[first])
    assert [entry.role for entry in request.prompt.entries] == ["system"]


# Breakpoints


def part_with_breakpoint(**cache_breakpoint: object) -> dict[str, object]:
    return {"type": "input_text", "text": "a", "prompt_cache_breakpoint": cache_breakpoint or None}


def test_breakpoints_are_decoded_at_every_position() -> None:
    explicit = part_with_breakpoint(mode="explicit")
    request = read(
        instructions="none can stand here",
        tools=[{"type": "web_search"}],
        input=[
            {"role": "developer", "content": [part_with_breakpoint(), explicit]},
            {"type": "function_call", "call_id": "c", "name": "t", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [explicit, part_with_breakpoint(mode="explicit", ttl="12h")],
            },
            {"type": "function_call_output", "call_id": "c", "output": [explicit, part_with_breakpoint()]},
            {"role": "user", "content": [part_with_breakpoint(mode="explicit", ttl="30m")]},
        ],
    )
    assert request.plan.breakpoints == (
        Breakpoint(3, "30m"),
        Breakpoint(5, "12h"),
        Breakpoint(6, "30m"),
        Breakpoint(7, "30m"),
    )


def test_a_breakpoint_is_removed_from_a_preserved_part() -> None:
    part = {"type": "input_file", "file_id": "f", "prompt_cache_breakpoint": {"mode": "explicit"}}
    request = read(input=[{"role": "user", "content": [part]}])
    (preserved,) = request.prompt.entries[0].content
    assert isinstance(preserved, Opaque)
    assert json.loads(preserved.raw) == {"type": "input_file", "file_id": "f"}
    assert request.plan.breakpoints == (Breakpoint(0, "30m"),)


@pytest.mark.parametrize(
    "cache_breakpoint", [{"mode": "implicit"}, {"mode": "explicit", "ttl": "5m"}, {"mode": "explicit", "x": 1}]
)
def test_a_breakpoint_that_the_provider_would_refuse_is_refused(cache_breakpoint: dict[str, object]) -> None:
    body = {"model": "m", "input": [{"role": "user", "content": [part_with_breakpoint(**cache_breakpoint)]}]}
    assert "input.0 cannot be read" in refusal_message(json.dumps(body).encode())


# Tools and parameters


def test_a_plain_function_is_a_tool_and_every_other_tool_is_preserved() -> None:
    plain = {"type": "function", "name": "t", "description": "d", "parameters": {}, "strict": False}
    strict = {**plain, "strict": True}
    own = {"type": "web_search"}
    assert read(tools=[plain, strict, own], input="x").prompt.tools == (
        ToolSpec("t", "d", "{}"),
        ToolSpec("t", "d", "{}", json.dumps(strict)),
        ToolSpec("web_search", "", "{}", json.dumps(own)),
    )


def test_a_token_count_request_needs_neither_limit_nor_input() -> None:
    parameters = read().parameters
    assert (parameters.output_tokens_max, parameters.stream) == (0, False)
    assert read(max_output_tokens=None, stream=None, tools=None, instructions=None).parameters == parameters


def test_omitted_settings_are_decoded_as_the_providers_defaults() -> None:
    request = read(input="x", user="u")
    assert request.parameters.extra == (("user", '"u"'), ("store", "true"), ("include", "[]"))
    body = encode_again(request)
    assert json.loads(body)["store"] is True
    assert encode_again(openai_responses.decode_request(body)) == body


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}, "parallel_tool_calls": False},
        {"tool_choice": {"type": "function", "name": "t", "x": 1}},
        {"tool_choice": None},
        {"parallel_tool_calls": False},
        {"tool_choice": "auto", "parallel_tool_calls": True},
        {"store": None, "include": ["reasoning.encrypted_content", "x"]},
        {"reasoning": {"effort": "high"}, "previous_response_id": "r"},
    ],
)
def test_a_parameter_without_canonical_form_is_preserved(fields: dict[str, object]) -> None:
    body = encode_again(read(input="x", **fields))
    assert {name: json.loads(body)[name] for name in fields} == fields
    assert encode_again(openai_responses.decode_request(body)) == body


# Refusals


@pytest.mark.parametrize(
    "fields",
    [
        {"input": 1},
        {"input": [1]},
        {"input": [{}]},
        {"input": [{"type": 1}]},
        {"input": [{"type": None, "role": "user"}]},
        {"input": [{"role": "nobody", "content": "secret"}]},
        {"input": [{"role": "user"}]},
        {"input": [{"role": "user", "content": [{"text": "secret"}]}]},
        {"input": [{"type": "function_call", "call_id": 1, "name": "t", "arguments": "secret"}]},
        {"input": [{"type": "function_call_output", "call_id": "c", "output": {"secret": 1}}]},
        {"input": [{"type": "reasoning", "summary": "secret", "encrypted_content": "g"}]},
        {"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": 1}]}]},
        {"tools": [{"name": "secret"}]},
        {"instructions": ["secret"]},
        {"max_output_tokens": 0},
        {"max_output_tokens": -1},
        {"model": 1},
    ],
)
def test_undecodable_requests_are_refused_without_quoting_them(fields: dict[str, object]) -> None:
    refusal = refusal_message(json.dumps({"model": "m", **fields}).encode())
    assert "cannot be read" in refusal
    assert "secret" not in refusal
    assert len(refusal.splitlines()) == 1


@pytest.mark.parametrize(
    "body",
    [
        '{"model":"m","input":' + DEEP,
        '{"model":"m","tool_choice":' + DEEP + "]" * len(DEEP) + "}",
        '{"model":"m","input":[{"role":"user","content":"\\ud800"}]}',
        '{"model":"m","input":[{"role":"user","phase":' + DEEP + "]" * len(DEEP) + ',"content":"x"}]}',
    ],
)
def test_hostile_bytes_are_refused(body: str) -> None:
    assert "cannot be read" in refusal_message(body.encode())


def test_bytes_that_are_not_utf8_are_refused() -> None:
    assert "not UTF-8" in refusal_message(b'{"model":"m","x":"\xff"}')


def test_a_request_that_is_too_large_is_refused() -> None:
    assert f"more than {BODY_BYTES_MAX} bytes" in refusal_message(b" " * (BODY_BYTES_MAX + 1))


def test_an_observed_item_is_the_same_in_whatever_order_its_members_are() -> None:
    """Codex sends a `custom_tool_call` back with its members in an order of its own."""
    item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "run", "input": "ls"}
    bodies = [
        json.dumps({"model": "gpt-5.6", "input": [dict(order)]}).encode()
        for order in (item.items(), reversed(item.items()))
    ]
    first, second = (decode_request_tolerantly(openai_responses, body, {}).wire.prompt for body in bodies)
    assert first == second
    assert openai_responses.decode_request(bodies[0]).prompt != openai_responses.decode_request(bodies[1]).prompt
