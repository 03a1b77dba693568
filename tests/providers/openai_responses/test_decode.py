"""What a request to OpenAI's Responses API is understood as, whoever wrote it."""

import json
from typing import Any

import pytest

from holdfast.errors import ProviderError
from holdfast.providers.adapter import WireRequest
from holdfast.providers.openai_responses import openai_responses
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


def read(**given: Any) -> WireRequest:
    return openai_responses.decode_request(json.dumps({"model": "gpt", **given}).encode())


def messages_of(*items: Any) -> list[tuple[Role, tuple[Block, ...]]]:
    # Behind an opening word, so that no item is the first, which may be the system prompt.
    first = {"role": "user", "content": "first"}
    return [(passage.role, passage.content) for passage in read(input=[first, *items]).prompt.entries[1:]]


def rewritten(request: WireRequest) -> bytes:
    return openai_responses.encode_request(request.prompt, request.plan, request.parameters)


def refusal_of(body: bytes) -> str:
    with pytest.raises(ProviderError) as refused:
        openai_responses.decode_request(body)
    assert refused.value.kind == "invalid_request"
    return str(refused.value)


# Items


def test_a_text_alone_is_what_the_user_says() -> None:
    request = read(input="Hello.")
    assert [(passage.role, passage.content) for passage in request.prompt.entries] == [("user", (Text("Hello."),))]


def test_the_short_forms_of_clients_are_read() -> None:
    assert messages_of(
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


def test_what_a_client_appends_of_a_reply_is_read() -> None:
    said = {"type": "output_text", "text": "a", "annotations": [], "logprobs": []}
    assert messages_of(
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [said],
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
        ({"type": "function_call", "call_id": "c", "name": "t", "arguments": "{}", "namespace": "n"}, "assistant"),
        ({"type": "function_call_output", "call_id": "c", "output": "x", "name": "t"}, "user"),
        ({"type": "reasoning", "id": "rs_1", "summary": []}, "assistant"),
        ({"type": "reasoning", "encrypted_content": "g", "summary": [{"type": "new", "text": "x"}]}, "assistant"),
        (
            {"type": "reasoning", "encrypted_content": "g", "content": [{"type": "reasoning_text", "text": "x"}]},
            "assistant",
        ),
        ({"type": "message", "role": "assistant", "content": "x", "phase": "commentary"}, "assistant"),
        ({"type": "message", "role": "assistant", "content": [{"type": "new"}]}, "assistant"),
        ({"type": "message", "role": "user", "content": [{"type": "shell_call_output"}]}, "user"),
        ({"type": "web_search_call", "id": "ws_1"}, "assistant"),
        ({"type": "computer_call_output", "output": {}}, "user"),
        ({"type": "item_reference", "id": "x"}, "user"),
    ],
)
def test_an_item_with_more_than_we_know_is_kept_whole(item: dict[str, object], role: Role) -> None:
    assert messages_of(item) == [(role, (Opaque(str(item["type"]), json.dumps(item).encode()),))]
    request = read(input=[item])
    assert json.dumps(item).encode() in rewritten(request)
    assert rewritten(openai_responses.decode_request(rewritten(request))) == rewritten(request)


@pytest.mark.parametrize(
    ("part", "block"),
    [
        ({"type": "input_image", "image_url": "https://x", "detail": None}, Image(UrlSource("https://x"))),
        ({"type": "input_image", "image_url": "https://x", "file_id": None}, Image(UrlSource("https://x"))),
        ({"type": "input_image", "image_url": "data:a/b;base64,C"}, Image(Base64Source("a/b", "C"))),
        ({"type": "input_image", "file_id": "f", "detail": "auto"}, Image(FileSource("f"))),
    ],
)
def test_an_image_is_read(part: dict[str, object], block: Block) -> None:
    assert messages_of({"role": "user", "content": [part]}) == [("user", (block,))]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": "https://x", "detail": "high"},
        {"type": "input_image", "image_url": "https://x", "file_id": "f"},
        {"type": "input_file", "file_id": "f"},
        {"type": "input_text", "text": "a", "more": 1},
    ],
)
def test_a_part_with_more_than_we_know_is_kept(part: dict[str, object]) -> None:
    raw = json.dumps(part).encode()
    assert messages_of({"role": "user", "content": [part]}) == [("user", (Opaque(str(part["type"]), raw),))]


def test_text_with_citations_is_kept_as_it_came() -> None:
    cited = {"type": "output_text", "text": "a", "annotations": [{"type": "url_citation"}]}
    assert messages_of({"role": "assistant", "content": [cited]}) == [
        ("assistant", (Opaque("output_text", json.dumps(cited).encode()),))
    ]


def test_a_message_that_says_nothing_is_not_one() -> None:
    assert messages_of({"role": "user", "content": []}) == []


def test_arguments_that_are_no_object_are_held_by_one() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "t", "arguments": "[1"}
    assert messages_of(call) == [("assistant", (ToolUse("c", "t", '{"INVALID_JSON":"[1"}'),))]


# The system prompt


def system_of(**given: Any) -> list[str]:
    return [text.text for segment in read(**given).prompt.segments for text in segment.system]


def test_instructions_come_before_the_first_message_to_the_developer() -> None:
    first = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "b"}]}
    assert system_of(instructions="a", input=[first, first]) == ["a", "b"]
    assert len(read(instructions="a", input=[first, first]).prompt.entries) == 1
    assert system_of(instructions="a", input="hi") == ["a"]
    assert system_of(instructions="", input=[first]) == ["b"]


def test_a_client_may_speak_to_the_system_instead() -> None:
    assert system_of(input=[{"role": "system", "content": "a"}]) == ["a"]


def test_a_first_message_that_is_not_just_text_is_no_system_prompt() -> None:
    first = {"role": "developer", "content": [{"type": "input_image", "file_id": "f"}]}
    request = read(input=[first])
    assert [passage.role for passage in request.prompt.entries] == ["system"]


# Marks


def marked(**mark: object) -> dict[str, object]:
    return {"type": "input_text", "text": "a", "prompt_cache_breakpoint": mark or None}


def test_marks_are_found_where_they_stand() -> None:
    explicit = marked(mode="explicit")
    request = read(
        instructions="none can stand here",
        tools=[{"type": "web_search"}],
        input=[
            {"role": "developer", "content": [marked(), explicit]},
            {"type": "function_call", "call_id": "c", "name": "t", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [explicit, marked(mode="explicit", ttl="12h")]},
            {"type": "function_call_output", "call_id": "c", "output": [explicit, marked()]},
            {"role": "user", "content": [marked(mode="explicit", ttl="30m")]},
        ],
    )
    assert request.plan.breakpoints == (
        Breakpoint(3, "30m"),
        Breakpoint(5, "12h"),
        Breakpoint(6, "30m"),
        Breakpoint(7, "30m"),
    )


def test_a_mark_is_taken_off_a_part_that_is_kept() -> None:
    part = {"type": "input_file", "file_id": "f", "prompt_cache_breakpoint": {"mode": "explicit"}}
    request = read(input=[{"role": "user", "content": [part]}])
    (kept,) = request.prompt.entries[0].content
    assert isinstance(kept, Opaque)
    assert json.loads(kept.raw) == {"type": "input_file", "file_id": "f"}
    assert request.plan.breakpoints == (Breakpoint(0, "30m"),)


@pytest.mark.parametrize(
    "mark", [{"mode": "implicit"}, {"mode": "explicit", "ttl": "5m"}, {"mode": "explicit", "x": 1}]
)
def test_a_mark_that_the_provider_would_not_take_is_refused(mark: dict[str, object]) -> None:
    body = {"model": "m", "input": [{"role": "user", "content": [marked(**mark)]}]}
    assert "input.0 cannot be read" in refusal_of(json.dumps(body).encode())


# Tools and parameters


def test_a_plain_function_is_a_tool_and_every_other_is_kept() -> None:
    plain = {"type": "function", "name": "t", "description": "d", "parameters": {}, "strict": False}
    strict = {**plain, "strict": True}
    own = {"type": "web_search"}
    assert read(tools=[plain, strict, own], input="x").prompt.tools == (
        ToolSpec("t", "d", "{}"),
        ToolSpec("t", "d", "{}", json.dumps(strict)),
        ToolSpec("web_search", "", "{}", json.dumps(own)),
    )


def test_a_request_to_count_needs_neither_limit_nor_input() -> None:
    parameters = read().parameters
    assert (parameters.output_tokens_max, parameters.stream) == (0, False)
    assert read(max_output_tokens=None, stream=None, tools=None, instructions=None).parameters == parameters


def test_what_a_request_leaves_to_the_provider_is_said_in_its_words() -> None:
    request = read(input="x", user="u")
    assert request.parameters.extra == (("user", '"u"'), ("store", "true"), ("include", "[]"))
    body = rewritten(request)
    assert json.loads(body)["store"] is True
    assert rewritten(openai_responses.decode_request(body)) == body


@pytest.mark.parametrize(
    "given",
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
def test_a_parameter_that_has_no_word_of_ours_comes_back_as_it_was(given: dict[str, object]) -> None:
    body = rewritten(read(input="x", **given))
    assert {name: json.loads(body)[name] for name in given} == given
    assert rewritten(openai_responses.decode_request(body)) == body


# Refusals


@pytest.mark.parametrize(
    "given",
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
def test_what_cannot_be_read_is_refused_without_quoting_it(given: dict[str, object]) -> None:
    refusal = refusal_of(json.dumps({"model": "m", **given}).encode())
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
    assert "cannot be read" in refusal_of(body.encode())


def test_bytes_that_are_not_utf8_are_refused() -> None:
    assert "not UTF-8" in refusal_of(b'{"model":"m","x":"\xff"}')


def test_a_request_that_is_too_large_is_refused() -> None:
    assert f"more than {BODY_BYTES_MAX} bytes" in refusal_of(b" " * (BODY_BYTES_MAX + 1))
