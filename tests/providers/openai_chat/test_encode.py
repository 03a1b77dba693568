"""Encoding of prompts and parameters for OpenAI's chat completions."""

import json

import msgspec
import pytest

from holdfast.catalog.lookup import find_model
from holdfast.errors import OrderError, UserError
from holdfast.providers.openai_chat import openai_chat
from holdfast.types.blocks import (
    Base64Source,
    Block,
    FileSource,
    Image,
    Opaque,
    RedactedThinking,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    UrlSource,
)
from holdfast.types.prompt import Breakpoint, HistoryEntry, Parameters, Plan, Prompt, Segment, Stability
from holdfast.types.tool_spec import ToolSpec

PARAMETERS = Parameters("gpt-6-sol", 100)


def history(*entries: HistoryEntry) -> Segment:
    return Segment("history", Stability.GROWING, "messages", entries=entries)


def entry_of(role: Role, *content: Block) -> HistoryEntry:
    return HistoryEntry(role, content)


def encode_body(
    *segments: Segment, parameters: Parameters = PARAMETERS, breakpoints: tuple[Breakpoint, ...] = ()
) -> bytes:
    return openai_chat.encode_request(Prompt(segments), Plan(breakpoints), parameters)


def encode_messages(*entries: HistoryEntry) -> list[object]:
    decoded_messages = json.loads(encode_body(history(*entries)))["messages"]
    assert isinstance(decoded_messages, list)
    return decoded_messages


def encode_head(**changes: object) -> object:
    return json.loads(openai_chat.request_head(msgspec.structs.replace(PARAMETERS, **changes)) + b"}")


def test_a_request_has_a_fixed_field_order() -> None:
    tools = Segment("tools", Stability.FROZEN, "tools", tools=(ToolSpec("ls", "List.", '{"type": "object"}'),))
    system = Segment("system", Stability.EPOCH, "system", system=(Text("Be kind."), Text("Be brief.")))
    parameters = Parameters(
        "gpt-6-sol",
        100,
        stream=True,
        stop_sequences=("END",),
        temperature=0.5,
        tool_choice_json='{"type":"any","disable_parallel_tool_use":true}',
        thinking_json='{"effort": "low"}',
        extra=(("user", '"me"'),),
    )
    assert encode_body(tools, system, history(entry_of("user", Text("hi"))), parameters=parameters) == (
        b'{"model":"gpt-6-sol","max_completion_tokens":100,"stream":true,"stream_options":{"include_usage":true},'
        b'"temperature":0.5,"stop":["END"],"reasoning_effort":"low","tool_choice":"required",'
        b'"parallel_tool_calls":false,"user":"me",'
        b'"tools":[{"type":"function","function":{"name":"ls","description":"List.","parameters":{"type": "object"}}}],'
        b'"messages":[{"role":"system","content":[{"type":"text","text":"Be kind."},'
        b'{"type":"text","text":"Be brief."}]},'
        b'{"role":"user","content":[{"type":"text","text":"hi"}]}]}'
    )


def test_a_reply_is_one_message_with_its_text_before_its_calls() -> None:
    call = ToolUse("call_1", "ls", '{"path": "ä"}')
    assert encode_body(history(entry_of("assistant", call, Text("Let me see."), call))).endswith(
        b'"messages":[{"role":"assistant","content":[{"type":"text","text":"Let me see."}],"tool_calls":['
        b'{"id":"call_1","type":"function","function":{"name":"ls","arguments":"{\\"path\\": \\"\xc3\xa4\\"}"}},'
        b'{"id":"call_1","type":"function","function":{"name":"ls","arguments":"{\\"path\\": \\"\xc3\xa4\\"}"}}]}]}'
    )


def test_a_reply_with_only_calls_has_no_content() -> None:
    (message,) = encode_messages(entry_of("assistant", ToolUse("a", "ls", "{}")))
    assert message == {
        "role": "assistant",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "ls", "arguments": "{}"}}],
    }


def test_every_result_is_a_message_and_so_is_every_run_of_other_blocks() -> None:
    entry = entry_of(
        "user",
        ToolResult("a", (Text("1"), Text("2"))),
        ToolResult("b", ()),
        Text("now"),
        Text("then"),
        ToolResult("c", (Text("3"),)),
    )
    assert encode_messages(entry) == [
        {
            "role": "tool",
            "tool_call_id": "a",
            "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
        },
        {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": ""}]},
        {"role": "user", "content": [{"type": "text", "text": "now"}, {"type": "text", "text": "then"}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "3"}]},
    ]


def test_adjacent_entries_of_one_role_remain_separate_messages() -> None:
    assert encode_messages(entry_of("user", Text("a")), entry_of("user", Text("b")), entry_of("system", Text("c"))) == [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "system", "content": [{"type": "text", "text": "c"}]},
    ]


def test_a_conversation_that_begins_with_a_system_message_does_not_become_a_system_prompt() -> None:
    first = entry_of("system", Text("late"))
    assert encode_messages(first)[0] == {"role": "system", "content": ""}
    read = openai_chat.decode_request(encode_body(history(first)))
    assert [segment.section for segment in read.prompt.segments] == ["messages"]


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (
            Base64Source("image/png", "iVBO"),
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}},
        ),
        (UrlSource("https://x.example/a.png"), {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}),
        (FileSource("file-1"), {"type": "file", "file": {"file_id": "file-1"}}),
    ],
)
def test_an_image_is_a_content_part(source: Base64Source | UrlSource | FileSource, part: object) -> None:
    assert encode_messages(entry_of("user", Image(source))) == [{"role": "user", "content": [part]}]


def test_a_data_url_image_is_decoded_as_an_inline_image() -> None:
    entry = openai_chat.lower_entry(entry_of("user", Image(UrlSource("data:image/gif;base64,R0lG"))))
    assert entry == entry_of("user", Image(Base64Source("image/gif", "R0lG")))


def test_blocks_that_chat_lacks_are_omitted_or_encoded_as_text() -> None:
    image = Image(UrlSource("https://x.example"))
    assert openai_chat.lower_entry(entry_of("assistant", Thinking("hm", "sig"), RedactedThinking("x"))) is None
    assert openai_chat.lower_entry(entry_of("assistant", Thinking("hm"), Text("so"))) == entry_of(
        "assistant", Text("so")
    )
    assert openai_chat.lower_entry(entry_of("assistant", image)) == entry_of("assistant", Text("[image]"))
    assert openai_chat.lower_entry(entry_of("assistant", Opaque("reasoning_details.reasoning.summary", b"{}"))) is None
    assert openai_chat.lower_entry(entry_of("assistant", ToolResult("a", ()))) is None
    assert openai_chat.lower_entry(entry_of("user", ToolUse("a", "ls", "{}"))) is None
    assert openai_chat.lower_entry(entry_of("user", Thinking("hm"))) is None
    result = openai_chat.lower_entry(entry_of("user", ToolResult("a", (image, Text("b")))))
    assert result == entry_of("user", ToolResult("a", (Text("[image]"), Text("b"))))


def test_a_failed_result_says_so_in_its_first_part_and_only_once() -> None:
    failed = ToolResult("a", (Text("no such file"),), is_error=True)
    once = openai_chat.lower_entry(entry_of("user", failed))
    assert once == entry_of("user", ToolResult("a", (Text("Error:"), Text("no such file")), is_error=True))
    assert openai_chat.lower_entry(once) == once
    empty = openai_chat.lower_entry(entry_of("user", ToolResult("a", (), is_error=True)))
    assert empty == entry_of("user", ToolResult("a", (Text("Error:"),), is_error=True))


@pytest.mark.parametrize("id", ["x" * 41, "", "a b", "ü"])
def test_an_id_that_openai_refuses_is_replaced_equally_in_call_and_result(id: str) -> None:
    call, result = encode_messages(entry_of("assistant", ToolUse(id, "ls", "{}")), entry_of("user", ToolResult(id, ())))
    assert isinstance(call, dict)
    assert isinstance(result, dict)
    new = call["tool_calls"][0]["id"]
    assert new.startswith("call_")
    assert len(new) <= 40
    assert result["tool_call_id"] == new


def test_an_id_of_forty_characters_is_preserved() -> None:
    entry = entry_of("user", ToolResult("x" * 40, (Text("a"),)))
    assert openai_chat.lower_entry(entry) == entry


def test_a_breakpoint_is_the_last_member_of_a_part_and_of_the_last_part_of_a_result() -> None:
    prompt = (history(entry_of("user", Text("a"), ToolResult("t", (Text("1"), Text("2"))))),)
    body = encode_body(*prompt, breakpoints=(Breakpoint(0, "30m"), Breakpoint(1, "12h")))
    assert b'{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"explicit"}}' in body
    assert b'{"type":"text","text":"2","prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}}' in body
    assert body.count(b"prompt_cache_breakpoint") == 2


def test_only_content_parts_accept_breakpoints() -> None:
    tools = Segment("tools", Stability.FROZEN, "tools", tools=(ToolSpec("ls", "List.", "{}"),))
    segment = history(
        entry_of("assistant", Text("a"), ToolUse("t", "ls", "{}"), Opaque("message.name", b'"bob"')),
        entry_of("user", Text(" "), Image(FileSource("f")), Image(UrlSource("u")), ToolResult("t", ()), Text("b")),
        entry_of("user", Opaque("input_audio", b"{}"), Opaque("video", b"{}"), Opaque("text", b'{"text":"x"}')),
        entry_of("user", Opaque("text", b'{"text":" "}'), Opaque("text", b'{"text":5}')),
    )
    blocks = (*openai_chat.encode_segment(tools), *openai_chat.encode_segment(segment))
    assert [block.accepts_breakpoint for block in blocks] == [
        False,
        *(False, True, False),
        *(False, True, True, False, True),
        *(True, False, True),
        *(False, False),
    ]


def test_a_ttl_of_another_provider_is_refused() -> None:
    with pytest.raises(UserError, match="OpenAI's cache TTL is 30m or 12h, not 5m"):
        openai_chat.encode_breakpoint("5m")


def test_a_layer_in_the_wrong_section_is_refused() -> None:
    system = Segment("system", Stability.EPOCH, "system", system=(Text("a"),))
    with pytest.raises(OrderError, match=r"layer 'system' .system. comes after layer 'history' .messages."):
        encode_body(history(entry_of("user", Text("a"))), system)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ('{"type":"auto"}', {"tool_choice": "auto"}),
        ('{"type":"any"}', {"tool_choice": "required"}),
        ('{"type":"none"}', {"tool_choice": "none"}),
        ('{"type":"tool","name":"ls"}', {"tool_choice": {"type": "function", "function": {"name": "ls"}}}),
        (
            '{"type":"auto","disable_parallel_tool_use":true}',
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
    ],
)
def test_a_tool_choice_is_encoded_in_the_providers_form(choice: str, expected: dict[str, object]) -> None:
    head = encode_head(tool_choice_json=choice)
    assert head == {"model": "gpt-6-sol", "max_completion_tokens": 100, **expected}


@pytest.mark.parametrize(
    "choice",
    ['"auto"', "{", '{"type":"tool"}', '{"type":"auto","name":"x"}', '{"type":"some"}', '{"type":"any","x":1}'],
)
def test_a_tool_choice_that_cannot_be_encoded_is_refused(choice: str) -> None:
    with pytest.raises(UserError, match="the tool choice must be"):
        encode_head(tool_choice_json=choice)


@pytest.mark.parametrize("thinking", ['{"type":"enabled","budget_tokens":1}', "{", '{"effort":5}', "null"])
def test_thinking_is_encoded_as_an_effort_only(thinking: str) -> None:
    with pytest.raises(UserError, match=r'OpenAI takes thinking as {"effort": "high"} and nothing else'):
        encode_head(thinking_json=thinking)


def test_betas_are_refused_because_they_are_anthropics() -> None:
    parameters = msgspec.structs.replace(PARAMETERS, betas=("context-1m",))
    for write in (openai_chat.request_head, openai_chat.endpoint):
        with pytest.raises(UserError, match="beta 'context-1m' is Anthropic's; OpenAI takes none"):
            write(parameters)


@pytest.mark.parametrize(
    "name", ["model", "max_tokens", "max_completion_tokens", "stream", "stop", "reasoning_effort", "messages", "tools"]
)
def test_an_extra_field_that_has_a_parameter_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"extra field '{name}' has a place of its own"):
        encode_head(extra=((name, "1"),))


def test_an_extra_tool_choice_is_allowed_only_without_a_parameter() -> None:
    extra = (("tool_choice", '{"type":"allowed_tools"}'), ("parallel_tool_calls", "true"))
    assert encode_head(extra=extra) == {
        "model": "gpt-6-sol",
        "max_completion_tokens": 100,
        "tool_choice": {"type": "allowed_tools"},
        "parallel_tool_calls": True,
    }
    with pytest.raises(UserError, match="extra field 'tool_choice'"):
        encode_head(extra=extra, tool_choice_json='{"type":"auto"}')


def test_stream_options_replace_our_own() -> None:
    head = encode_head(stream=True, extra=(("stream_options", '{"include_obfuscation":false}'),))
    assert isinstance(head, dict)
    assert head["stream_options"] == {"include_obfuscation": False}


def test_a_session_keeps_one_cache_in_the_way_its_model_supports() -> None:
    newest, older = find_model("openai:gpt-6.1-sol"), find_model("openai:gpt-5.4")
    assert openai_chat.session_fields(newest, "s-1") == (
        ("prompt_cache_key", '"s-1"'),
        ("prompt_cache_options", '{"mode":"implicit","ttl":"30m"}'),
    )
    assert openai_chat.session_fields(older, "s-1") == (
        ("prompt_cache_key", '"s-1"'),
        ("prompt_cache_retention", '"24h"'),
    )
    without_day = msgspec.structs.replace(older.cache, ttls_seconds={"in_memory": 300})
    assert openai_chat.session_fields(msgspec.structs.replace(older, cache=without_day), "s-1") == (
        ("prompt_cache_key", '"s-1"'),
    )
    uncached = msgspec.structs.replace(older.cache, kind="none")
    assert openai_chat.session_fields(msgspec.structs.replace(older, cache=uncached), "s-1") == ()


def test_a_key_that_is_too_long_is_replaced_by_its_digest() -> None:
    model = find_model("openai:gpt-5.4")
    (_, session_key), *_ = openai_chat.session_fields(model, "s" * 64)
    assert json.loads(session_key) == "s" * 64
    (_, long), *_ = openai_chat.session_fields(model, "s" * 65)
    (_, other), *_ = openai_chat.session_fields(model, "s" * 66)
    assert len(json.loads(long)) == 64
    assert len({session_key, long, other}) == 3
