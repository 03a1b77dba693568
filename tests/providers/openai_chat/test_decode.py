"""What is understood of a chat completions request, whoever wrote it."""

import json

import pytest

from holdfast.errors import ProviderError
from holdfast.providers.adapter import WireRequest
from holdfast.providers.openai_chat import openai_chat
from holdfast.providers.openai_chat.parameters import OUTPUT_TOKENS_DEFAULT
from holdfast.providers.wire_request import BODY_BYTES_MAX
from holdfast.types.blocks import Base64Source, Block, FileSource, Image, Opaque, Text, ToolResult, ToolUse
from holdfast.types.prompt import Breakpoint, Parameters
from holdfast.types.tool_spec import ToolSpec


def read(*messages: object, **fields: object) -> WireRequest:
    return openai_chat.decode_request(json.dumps({"model": "m", "messages": messages, **fields}).encode())


def content(*messages: object) -> list[tuple[str, tuple[Block, ...]]]:
    return [(passage.role, passage.content) for passage in read(*messages).prompt.entries]


def parameters(**fields: object) -> Parameters:
    return read(**fields).parameters


def again(request: WireRequest) -> WireRequest:
    return openai_chat.decode_request(openai_chat.encode_request(request.prompt, request.plan, request.parameters))


def refusal(body: bytes) -> str:
    with pytest.raises(ProviderError) as refused:
        openai_chat.decode_request(body)
    assert refused.value.kind == "invalid_request"
    return str(refused.value)


def test_plain_texts_and_nulls_are_what_most_clients_send() -> None:
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
    assert [(passage.role, passage.content) for passage in request.prompt.entries] == [
        ("user", (Text("hi"),)),
        ("assistant", (ToolUse("c", "ls", "{}"),)),
        ("user", (ToolResult("c", (Text(""),)),)),
        ("assistant", (Text("done"),)),
        ("system", (Text("Hurry."),)),
    ]
    assert again(request) == request


def test_what_a_message_says_beyond_what_we_know_is_kept_and_sent_back() -> None:
    custom = {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "x"}}
    strange = {"id": "d", "type": "function", "function": {"name": "ls", "arguments": "{}"}, "extra": 1}
    request = read(
        {"role": "user", "name": "bob", "content": "hi"},
        {"role": "assistant", "audio": {"id": "a"}, "refusal": "no"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "tool_calls": [custom, strange]},
        {"role": "assistant", "reasoning_details": [], "content": "x"},
    )
    kinds = [
        [block.kind for block in passage.content if isinstance(block, Opaque)] for passage in request.prompt.entries
    ]
    assert kinds == [
        ["message.name"],
        ["message.audio", "message.refusal"],
        ["refusal", "tool_calls.custom", "tool_calls.function"],
        ["message.reasoning_details"],
    ]
    written = json.loads(openai_chat.encode_request(request.prompt, request.plan, request.parameters))
    assert written["messages"] == [
        {"role": "user", "name": "bob", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "audio": {"id": "a"}, "refusal": "no"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "tool_calls": [custom, strange]},
        {"role": "assistant", "reasoning_details": [], "content": [{"type": "text", "text": "x"}]},
    ]
    assert again(request) == request


def test_images_and_files_are_read_and_those_with_more_to_them_are_kept() -> None:
    inline = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}
    detailed = {"type": "image_url", "image_url": {"url": "https://x.example", "detail": "low"}}
    named = {"type": "file", "file": {"file_data": "data:", "filename": "a.pdf"}}
    file = {"type": "file", "file": {"file_id": "f"}}
    ((_, blocks),) = content({"role": "user", "content": [inline, detailed, named, file]})
    assert blocks == (
        Image(Base64Source("image/png", "iVBO")),
        Opaque("image_url", json.dumps(detailed).encode()),
        Opaque("file", json.dumps(named).encode()),
        Image(FileSource("f")),
    )


def test_a_system_message_that_is_more_than_text_is_a_message_like_any_other() -> None:
    request = read({"role": "system", "name": "boss", "content": "hi"})
    assert [segment.section for segment in request.prompt.segments] == ["messages"]
    assert again(request) == request


def test_arguments_that_are_no_object_are_made_fit_to_be_sent_to_anyone() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": "[1"}}
    ((_, (block,)),) = content({"role": "assistant", "tool_calls": [call]})
    assert block == ToolUse("c", "ls", '{"INVALID_JSON":"[1"}')


@pytest.mark.parametrize(
    ("mark", "ttl"),
    [
        ({"mode": "explicit"}, "30m"),
        ({"mode": "explicit", "ttl": "30m"}, "30m"),
        ({"mode": "explicit", "ttl": "12h"}, "12h"),
        (None, None),
    ],
)
def test_a_mark_is_read_wherever_it_stands(mark: object, ttl: str | None) -> None:
    part = {"type": "text", "text": "a", "prompt_cache_breakpoint": mark}
    request = read(
        {"role": "system", "content": [part]},
        {"role": "assistant", "content": [part]},
        {"role": "tool", "tool_call_id": "c", "content": [part, {"type": "text", "text": "b"}]},
        tools=[{"type": "function", "function": {"name": "ls"}}],
    )
    assert [(mark.block_index, mark.ttl) for mark in request.plan.breakpoints] == (
        [(1, ttl), (2, ttl), (3, ttl)] if ttl else []
    )
    assert request.prompt.entries[0].content == (Text("a"),)


@pytest.mark.parametrize(
    "mark", [{"mode": "implicit"}, {"mode": "explicit", "ttl": "5m"}, {"type": "ephemeral"}, {}, 5]
)
def test_a_mark_that_openai_does_not_know_is_refused(mark: object) -> None:
    part = {"type": "text", "text": "a", "prompt_cache_breakpoint": mark}
    with pytest.raises(ProviderError, match=r"messages.0 cannot be read"):
        read({"role": "user", "content": [part]})


def test_a_marked_part_that_we_do_not_know_loses_its_mark_and_nothing_else() -> None:
    part = {"type": "input_audio", "prompt_cache_breakpoint": {"mode": "explicit"}, "input_audio": {"data": "x"}}
    request = read({"role": "user", "content": [part]})
    del part["prompt_cache_breakpoint"]
    ((block,),) = [passage.content for passage in request.prompt.entries]
    assert isinstance(block, Opaque)
    assert json.loads(block.raw) == part
    assert request.plan.breakpoints == (Breakpoint(0, "30m"),)


def test_tools_that_are_not_just_functions_are_kept_as_they_came() -> None:
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
        ({}, OUTPUT_TOKENS_DEFAULT),
    ],
)
def test_the_limit_on_output_goes_by_two_names(fields: dict[str, object], tokens: int) -> None:
    request = read(**fields)
    assert request.parameters.output_tokens_max == tokens
    assert request.parameters.extra == ()
    assert again(request) == request


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
def test_a_choice_of_tools_is_read_and_one_without_canonical_form_is_kept(
    fields: dict[str, object], choice: str | None, extra: dict[str, str]
) -> None:
    request = read(**fields)
    assert request.parameters.tool_choice_json == choice
    assert dict(request.parameters.extra) == extra
    assert again(request) == request


def test_the_other_parameters_are_read() -> None:
    told = parameters(stop="END", temperature=1, reasoning_effort="high", stream=True, user="me")
    assert told == Parameters(
        "m",
        OUTPUT_TOKENS_DEFAULT,
        stream=True,
        stop_sequences=("END",),
        temperature=1.0,
        thinking_json='{"effort":"high"}',
        extra=(("user", '"me"'),),
    )
    assert parameters(stop=None, reasoning_effort=None, temperature=None) == Parameters("m", OUTPUT_TOKENS_DEFAULT)
    assert parameters(stop=["a", "b"]).stop_sequences == ("a", "b")


def test_options_of_the_stream_are_kept_unless_they_are_our_own() -> None:
    ours, theirs = {"include_usage": True}, {"include_usage": False}
    assert parameters(stream=True, stream_options=ours).extra == ()
    assert parameters(stream=True, stream_options=theirs).extra == (("stream_options", '{"include_usage": false}'),)
    assert parameters(stream=False, stream_options=ours).extra == (("stream_options", '{"include_usage": true}'),)
    assert again(read(stream=True, stream_options=theirs)) == read(stream=True, stream_options=theirs)


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
def test_a_message_that_cannot_be_read_is_refused_by_its_place(message: object, reason: str) -> None:
    told = refusal(json.dumps({"model": "m", "messages": [message]}).encode())
    assert told.startswith("messages.0 cannot be read: ")
    assert reason in told


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"messages":[]}', "missing required field `model`"),
        (b'{"model":"m"}', "missing required field `messages`"),
        (b'{"model":"m","messages":[],"max_tokens":-1}', "Expected `int` >= 0"),
        (b'{"model":"m","messages":[],"reasoning_effort":5}', "Expected `str`"),
        (b'{"model":"m","messages":[],"x":"\xff"}', "not UTF-8"),
        (b'{"model":"m","messages":[],"tool_choice":' + b"[" * 9999 + b"]" * 9999 + b"}", "nested too deeply"),
        (b'{"model":"m","messages":[],"tools":[{"name":"a"}]}', "tools.0 cannot be read"),
        (b'{"model":"\\ud800","messages":[]}', "the request cannot be read"),
        (b" " * (BODY_BYTES_MAX + 1), f"more than {BODY_BYTES_MAX} bytes"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_in_one_line(body: bytes, reason: str) -> None:
    told = refusal(body)
    assert reason in told
    assert len(told.splitlines()) == 1
