"""Decoding of chat completions requests."""

import json

import pytest

from holdfast.errors import ProviderError
from holdfast.providers.adapter import WireRequest
from holdfast.providers.openai_chat import openai_chat
from holdfast.providers.wire_request import BODY_BYTES_MAX
from holdfast.types.blocks import Base64Source, Block, FileSource, Image, Opaque, Text, ToolResult, ToolUse
from holdfast.types.prompt import Breakpoint, Parameters
from holdfast.types.tool_spec import ToolSpec


def read(*messages: object, **fields: object) -> WireRequest:
    return openai_chat.decode_request(json.dumps({"model": "m", "messages": messages, **fields}).encode())


def decode_contents(*messages: object) -> list[tuple[str, tuple[Block, ...]]]:
    return [(entry.role, entry.content) for entry in read(*messages).prompt.entries]


def decode_parameters(**fields: object) -> Parameters:
    return read(**fields).parameters


def round_trip(request: WireRequest) -> WireRequest:
    return openai_chat.decode_request(openai_chat.encode_request(request.prompt, request.plan, request.parameters))


def refusal_message(body: bytes) -> str:
    with pytest.raises(ProviderError) as refused:
        openai_chat.decode_request(body)
    assert refused.value.kind == "invalid_request"
    return str(refused.value)


def test_plain_texts_and_nulls_are_decoded() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": ""}}
    request = read(
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "hi", "name": None},
        {"role": "assistant", "content": "", "refusal": None, "annotations": [], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "name": "ls", "content": ""},
        {"role": "assistant", "content": "done", "tool_calls": []},
        {"role": "system", "content": "Hurry."},
    )
    assert [segment.system for segment in request.prompt.segments if segment.system] == [(Text("Be kind."),)]
    assert [(entry.role, entry.content) for entry in request.prompt.entries] == [
        ("user", (Text("hi"),)),
        ("assistant", (ToolUse("c", "ls", "{}"),)),
        ("user", (ToolResult("c", (Text(""),)),)),
        ("assistant", (Text("done"),)),
        ("system", (Text("Hurry."),)),
    ]
    assert round_trip(request) == request


def test_unknown_members_of_a_message_are_preserved_and_sent_back() -> None:
    custom = {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "x"}}
    strange = {"id": "d", "type": "function", "function": {"name": "ls", "arguments": "{}"}, "extra": 1}
    request = read(
        {"role": "user", "name": "bob", "content": "hi"},
        {"role": "assistant", "audio": {"id": "a"}, "refusal": "no"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "tool_calls": [custom, strange]},
        {"role": "assistant", "reasoning_details": [], "content": "x"},
    )
    kinds = [[block.kind for block in entry.content if isinstance(block, Opaque)] for entry in request.prompt.entries]
    assert kinds == [
        ["message.name"],
        ["message.audio", "message.refusal"],
        ["refusal", "tool_calls.custom", "tool_calls.function"],
        ["message.reasoning_details"],
    ]
    encoded = json.loads(openai_chat.encode_request(request.prompt, request.plan, request.parameters))
    assert encoded["messages"] == [
        {"role": "user", "name": "bob", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "audio": {"id": "a"}, "refusal": "no"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "tool_calls": [custom, strange]},
        {"role": "assistant", "reasoning_details": [], "content": [{"type": "text", "text": "x"}]},
    ]
    assert round_trip(request) == request


def test_images_and_files_are_decoded_and_those_with_unknown_members_are_preserved() -> None:
    inline = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}
    detailed = {"type": "image_url", "image_url": {"url": "https://x.example", "detail": "low"}}
    named = {"type": "file", "file": {"file_data": "data:", "filename": "a.pdf"}}
    file = {"type": "file", "file": {"file_id": "f"}}
    ((_, blocks),) = decode_contents({"role": "user", "content": [inline, detailed, named, file]})
    assert blocks == (
        Image(Base64Source("image/png", "iVBO")),
        Opaque("image_url", json.dumps(detailed).encode()),
        Opaque("file", json.dumps(named).encode()),
        Image(FileSource("f")),
    )


def test_a_system_message_that_is_not_only_text_is_an_ordinary_message() -> None:
    request = read({"role": "system", "name": "boss", "content": "hi"})
    assert [segment.section for segment in request.prompt.segments] == ["messages"]
    assert round_trip(request) == request


def test_arguments_that_are_not_an_object_are_wrapped_in_one() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": "[1"}}
    ((_, (block,)),) = decode_contents({"role": "assistant", "tool_calls": [call]})
    assert block == ToolUse("c", "ls", '{"INVALID_JSON":"[1"}')


@pytest.mark.parametrize(
    ("cache_breakpoint", "ttl"),
    [
        ({"mode": "explicit"}, "30m"),
        ({"mode": "explicit", "ttl": "30m"}, "30m"),
        ({"mode": "explicit", "ttl": "12h"}, "12h"),
        (None, None),
    ],
)
def test_a_breakpoint_is_decoded_at_every_position(cache_breakpoint: object, ttl: str | None) -> None:
    part = {"type": "text", "text": "a", "prompt_cache_breakpoint": cache_breakpoint}
    request = read(
        {"role": "system", "content": [part]},
        {"role": "assistant", "content": [part]},
        {"role": "tool", "tool_call_id": "c", "content": [part, {"type": "text", "text": "b"}]},
        tools=[{"type": "function", "function": {"name": "ls"}}],
    )
    assert [(point.block_index, point.ttl) for point in request.plan.breakpoints] == (
        [(1, ttl), (2, ttl), (3, ttl)] if ttl else []
    )
    assert request.prompt.entries[0].content == (Text("a"),)


@pytest.mark.parametrize(
    "cache_breakpoint", [{"mode": "implicit"}, {"mode": "explicit", "ttl": "5m"}, {"type": "ephemeral"}, {}, 5]
)
def test_a_breakpoint_that_openai_does_not_support_is_refused(cache_breakpoint: object) -> None:
    part = {"type": "text", "text": "a", "prompt_cache_breakpoint": cache_breakpoint}
    with pytest.raises(ProviderError, match=r"messages.0 cannot be read"):
        read({"role": "user", "content": [part]})


def test_an_unknown_part_loses_its_breakpoint_and_nothing_else() -> None:
    part = {"type": "input_audio", "prompt_cache_breakpoint": {"mode": "explicit"}, "input_audio": {"data": "x"}}
    request = read({"role": "user", "content": [part]})
    del part["prompt_cache_breakpoint"]
    ((block,),) = [entry.content for entry in request.prompt.entries]
    assert isinstance(block, Opaque)
    assert json.loads(block.raw) == part
    assert request.plan.breakpoints == (Breakpoint(0, "30m"),)


def test_tools_that_are_not_plain_functions_are_preserved() -> None:
    strict = {"type": "function", "function": {"name": "ls", "parameters": {"a": 1}, "strict": True}}
    custom = {"type": "custom", "custom": {"name": "sql", "description": None}}
    alone = {"type": "web_search"}
    tools = read(tools=[strict, custom, alone]).prompt.tools
    assert tools == (
        ToolSpec("ls", "", '{"a": 1}', json.dumps(strict)),
        ToolSpec("sql", "", "{}", json.dumps(custom)),
        ToolSpec("web_search", "", "{}", json.dumps(alone)),
    )


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_completion_tokens": 5, "max_tokens": 7}, 5),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": None, "max_tokens": 7}, 7),
        ({}, 0),
    ],
)
def test_the_output_limit_has_two_names(fields: dict[str, object], tokens: int) -> None:
    request = read(**fields)
    assert request.parameters.output_tokens_max == tokens
    assert request.parameters.extra == ()
    assert round_trip(request) == request


@pytest.mark.parametrize(
    ("fields", "choice", "extra"),
    [
        ({"tool_choice": "required"}, '{"type":"any"}', {}),
        ({"tool_choice": "auto", "parallel_tool_calls": True}, '{"type":"auto"}', {"parallel_tool_calls": "true"}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "ls"}}, "parallel_tool_calls": False},
            '{"type":"tool","name":"ls","disable_parallel_tool_use":true}',
            {},
        ),
        ({"parallel_tool_calls": False}, None, {"parallel_tool_calls": "false"}),
        ({"tool_choice": "sometimes"}, None, {"tool_choice": '"sometimes"'}),
        (
            {"tool_choice": {"type": "custom", "custom": {"name": "x"}}},
            None,
            {"tool_choice": '{"type": "custom", "custom": {"name": "x"}}'},
        ),
        (
            {"tool_choice": {"type": "other", "function": {"name": "x"}}},
            None,
            {"tool_choice": '{"type": "other", "function": {"name": "x"}}'},
        ),
        ({"tool_choice": None}, None, {}),
    ],
)
def test_a_tool_choice_is_decoded_and_one_without_canonical_form_is_preserved(
    fields: dict[str, object], choice: str | None, extra: dict[str, str]
) -> None:
    request = read(**fields)
    assert request.parameters.tool_choice_json == choice
    assert dict(request.parameters.extra) == extra
    assert round_trip(request) == request


def test_the_other_parameters_are_decoded() -> None:
    decoded = decode_parameters(stop="END", temperature=1, reasoning_effort="high", stream=True, user="me")
    assert decoded == Parameters(
        "m",
        0,
        stream=True,
        stop_sequences=("END",),
        temperature=1.0,
        thinking_json='{"effort":"high"}',
        extra=(("user", '"me"'),),
    )
    assert decode_parameters(stop=None, reasoning_effort=None, temperature=None) == Parameters("m", 0)
    assert decode_parameters(stop=["a", "b"]).stop_sequences == ("a", "b")


def test_stream_options_are_preserved_unless_they_are_our_own() -> None:
    ours, theirs = {"include_usage": True}, {"include_usage": False}
    assert decode_parameters(stream=True, stream_options=ours).extra == ()
    assert decode_parameters(stream=True, stream_options=theirs).extra == (
        ("stream_options", '{"include_usage": false}'),
    )
    assert decode_parameters(stream=False, stream_options=ours).extra == (
        ("stream_options", '{"include_usage": true}'),
    )
    assert round_trip(read(stream=True, stream_options=theirs)) == read(stream=True, stream_options=theirs)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "function", "name": "f", "content": "x"}, "the role must be tool or one of user, assistant"),
        ({"content": "x"}, "missing required field `role`"),
        ({"role": "tool", "content": "x"}, "missing required field `tool_call_id`"),
        ({"role": "tool", "tool_call_id": "c", "content": "x", "status": "failed"}, "unknown field `status`"),
        ({"role": "user", "content": [{"type": "message.role"}]}, "a part of this type is not allowed in content"),
        ({"role": "user", "content": [{"text": "a"}]}, "missing required field `type`"),
        ({"role": "user", "content": 5}, "Expected `str | array | null`"),
        ({"role": "assistant", "tool_calls": [{"id": 5}]}, "missing required field `type`"),
        ({"role": "assistant", "tool_calls": {}}, "Expected `array`"),
        ([], "Expected `object`"),
    ],
)
def test_an_undecodable_message_is_refused_by_its_index(message: object, reason: str) -> None:
    message_text = refusal_message(json.dumps({"model": "m", "messages": [message]}).encode())
    assert message_text.startswith("messages.0 cannot be read: ")
    assert reason in message_text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"messages":[]}', "missing required field `model`"),
        (b'{"model":"m"}', "missing required field `messages`"),
        (b'{"model":"m","messages":[],"max_tokens":0}', "Expected `int` >= 1"),
        (b'{"model":"m","messages":[],"reasoning_effort":5}', "Expected `str`"),
        (b'{"model":"m","messages":[],"x":"\xff"}', "not UTF-8"),
        (b'{"model":"m","messages":[],"tool_choice":' + b"[" * 9999 + b"]" * 9999 + b"}", "nested too deeply"),
        (b'{"model":"m","messages":[],"tools":[{"name":"a"}]}', "tools.0 cannot be read"),
        (b'{"model":"\\ud800","messages":[]}', "the request cannot be read"),
        (b" " * (BODY_BYTES_MAX + 1), f"more than {BODY_BYTES_MAX} bytes"),
    ],
)
def test_an_undecodable_body_is_refused_in_one_line(body: bytes, reason: str) -> None:
    message_text = refusal_message(body)
    assert reason in message_text
    assert len(message_text.splitlines()) == 1
