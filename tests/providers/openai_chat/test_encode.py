"""How a prompt and its parameters are spelled for OpenAI's chat completions."""

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


def history(*passages: HistoryEntry) -> Segment:
    return Segment("history", Stability.GROWING, "messages", entries=passages)


def said(role: Role, *content: Block) -> HistoryEntry:
    return HistoryEntry(role, content)


def written(*segments: Segment, parameters: Parameters = PARAMETERS, marks: tuple[Breakpoint, ...] = ()) -> bytes:
    return openai_chat.encode_request(Prompt(segments), Plan(marks), parameters)


def messages(*passages: HistoryEntry) -> list[object]:
    found = json.loads(written(history(*passages)))["messages"]
    assert isinstance(found, list)
    return found


def opening(**changes: object) -> object:
    return json.loads(openai_chat.request_head(msgspec.structs.replace(PARAMETERS, **changes)) + b"}")


def test_a_request_is_spelled_in_one_order() -> None:
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
    assert written(tools, system, history(said("user", Text("hi"))), parameters=parameters) == (
        b'{"model":"gpt-6-sol","max_completion_tokens":100,"stream":true,"stream_options":{"include_usage":true},'
        b'"temperature":0.5,"stop":["END"],"reasoning_effort":"low","tool_choice":"required",'
        b'"parallel_tool_calls":false,"user":"me",'
        b'"tools":[{"type":"function","function":{"name":"ls","description":"List.","parameters":{"type": "object"}}}],'
        b'"messages":[{"role":"system","content":[{"type":"text","text":"Be kind."},'
        b'{"type":"text","text":"Be brief."}]},'
        b'{"role":"user","content":[{"type":"text","text":"hi"}]}]}'
    )


def test_an_answer_is_one_message_with_its_text_in_front_of_its_calls() -> None:
    call = ToolUse("call_1", "ls", '{"path": "ä"}')
    assert written(history(said("assistant", call, Text("Let me see."), call))).endswith(
        b'"messages":[{"role":"assistant","content":[{"type":"text","text":"Let me see."}],"tool_calls":['
        b'{"id":"call_1","type":"function","function":{"name":"ls","arguments":"{\\"path\\": \\"\xc3\xa4\\"}"}},'
        b'{"id":"call_1","type":"function","function":{"name":"ls","arguments":"{\\"path\\": \\"\xc3\xa4\\"}"}}]}]}'
    )


def test_an_answer_of_nothing_but_calls_has_no_content() -> None:
    (message,) = messages(said("assistant", ToolUse("a", "ls", "{}")))
    assert message == {
        "role": "assistant",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "ls", "arguments": "{}"}}],
    }


def test_every_result_is_a_message_and_so_is_every_run_of_other_blocks() -> None:
    passage = said(
        "user",
        ToolResult("a", (Text("1"), Text("2"))),
        ToolResult("b", ()),
        Text("now"),
        Text("then"),
        ToolResult("c", (Text("3"),)),
    )
    assert messages(passage) == [
        {
            "role": "tool",
            "tool_call_id": "a",
            "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
        },
        {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": ""}]},
        {"role": "user", "content": [{"type": "text", "text": "now"}, {"type": "text", "text": "then"}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "3"}]},
    ]


def test_neighbouring_passages_of_one_role_stay_messages_of_their_own() -> None:
    assert messages(said("user", Text("a")), said("user", Text("b")), said("system", Text("c"))) == [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "system", "content": [{"type": "text", "text": "c"}]},
    ]


def test_a_conversation_that_begins_with_the_system_is_not_taken_for_a_prompt_of_it() -> None:
    first = said("system", Text("late"))
    assert messages(first)[0] == {"role": "system", "content": ""}
    read = openai_chat.decode_request(written(history(first)))
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
def test_an_image_is_a_part_of_the_content(source: Base64Source | UrlSource | FileSource, part: object) -> None:
    assert messages(said("user", Image(source))) == [{"role": "user", "content": [part]}]


def test_an_inline_image_under_an_address_is_read_as_the_image_that_it_is() -> None:
    lowered = openai_chat.lower_entry(said("user", Image(UrlSource("data:image/gif;base64,R0lG"))))
    assert lowered == said("user", Image(Base64Source("image/gif", "R0lG")))


def test_what_chat_has_no_words_for_is_left_out_or_said_in_text() -> None:
    image = Image(UrlSource("https://x.example"))
    assert openai_chat.lower_entry(said("assistant", Thinking("hm", "sig"), RedactedThinking("x"))) is None
    assert openai_chat.lower_entry(said("assistant", Thinking("hm"), Text("so"))) == said("assistant", Text("so"))
    assert openai_chat.lower_entry(said("assistant", image)) == said("assistant", Text("[image]"))
    assert openai_chat.lower_entry(said("assistant", Opaque("reasoning_details.reasoning.summary", b"{}"))) is None
    assert openai_chat.lower_entry(said("assistant", ToolResult("a", ()))) is None
    assert openai_chat.lower_entry(said("user", ToolUse("a", "ls", "{}"))) is None
    assert openai_chat.lower_entry(said("user", Thinking("hm"))) is None
    result = openai_chat.lower_entry(said("user", ToolResult("a", (image, Text("b")))))
    assert result == said("user", ToolResult("a", (Text("[image]"), Text("b"))))


def test_a_failed_result_says_so_in_its_first_part_and_only_once() -> None:
    failed = ToolResult("a", (Text("no such file"),), is_error=True)
    once = openai_chat.lower_entry(said("user", failed))
    assert once == said("user", ToolResult("a", (Text("Error:"), Text("no such file")), is_error=True))
    assert openai_chat.lower_entry(once) == once
    empty = openai_chat.lower_entry(said("user", ToolResult("a", (), is_error=True)))
    assert empty == said("user", ToolResult("a", (Text("Error:"),), is_error=True))


@pytest.mark.parametrize("id", ["x" * 41, "", "a b", "ü"])
def test_an_id_that_openai_refuses_is_spelled_anew_alike_for_call_and_result(id: str) -> None:
    call, result = messages(said("assistant", ToolUse(id, "ls", "{}")), said("user", ToolResult(id, ())))
    assert isinstance(call, dict)
    assert isinstance(result, dict)
    new = call["tool_calls"][0]["id"]
    assert new.startswith("call_")
    assert len(new) <= 40
    assert result["tool_call_id"] == new


def test_an_id_of_forty_characters_is_kept() -> None:
    passage = said("user", ToolResult("x" * 40, (Text("a"),)))
    assert openai_chat.lower_entry(passage) == passage


def test_a_mark_is_the_last_member_of_a_part_and_of_the_last_part_of_a_result() -> None:
    prompt = (history(said("user", Text("a"), ToolResult("t", (Text("1"), Text("2"))))),)
    body = written(*prompt, marks=(Breakpoint(0, "30m"), Breakpoint(1, "12h")))
    assert b'{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"explicit"}}' in body
    assert b'{"type":"text","text":"2","prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}}' in body
    assert body.count(b"prompt_cache_breakpoint") == 2


def test_only_parts_of_content_can_be_marked() -> None:
    tools = Segment("tools", Stability.FROZEN, "tools", tools=(ToolSpec("ls", "List.", "{}"),))
    passages = history(
        said("assistant", Text("a"), ToolUse("t", "ls", "{}"), Opaque("message.name", b'"bob"')),
        said("user", Text(" "), Image(FileSource("f")), Image(UrlSource("u")), ToolResult("t", ()), Text("b")),
        said("user", Opaque("input_audio", b"{}"), Opaque("video", b"{}"), Opaque("text", b'{"text":"x"}')),
        said("user", Opaque("text", b'{"text":" "}'), Opaque("text", b'{"text":5}')),
    )
    pieces = (*openai_chat.encode_segment(tools), *openai_chat.encode_segment(passages))
    assert [piece.accepts_breakpoint for piece in pieces] == [
        False,
        *(False, True, False),
        *(False, True, True, False, True),
        *(True, False, True),
        *(False, False),
    ]


def test_a_lifetime_of_another_provider_is_refused() -> None:
    with pytest.raises(UserError, match="OpenAI's cache TTL is 30m or 12h, not 5m"):
        openai_chat.encode_breakpoint("5m")


def test_a_layer_in_the_wrong_place_is_refused() -> None:
    system = Segment("system", Stability.EPOCH, "system", system=(Text("a"),))
    with pytest.raises(OrderError, match=r"layer 'system' .system. comes after layer 'history' .messages."):
        written(history(said("user", Text("a"))), system)


@pytest.mark.parametrize(
    ("choice", "spelled"),
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
def test_the_choice_of_tools_has_other_words(choice: str, spelled: dict[str, object]) -> None:
    said = opening(tool_choice_json=choice)
    assert said == {"model": "gpt-6-sol", "max_completion_tokens": 100, **spelled}


@pytest.mark.parametrize(
    "choice",
    ['"auto"', "{", '{"type":"tool"}', '{"type":"auto","name":"x"}', '{"type":"some"}', '{"type":"any","x":1}'],
)
def test_a_choice_that_cannot_be_told_is_refused(choice: str) -> None:
    with pytest.raises(UserError, match="the tool choice must be"):
        opening(tool_choice_json=choice)


@pytest.mark.parametrize("thinking", ['{"type":"enabled","budget_tokens":1}', "{", '{"effort":5}', "null"])
def test_thinking_is_an_effort_and_nothing_else(thinking: str) -> None:
    with pytest.raises(UserError, match=r'OpenAI takes thinking as {"effort": "high"} and nothing else'):
        opening(thinking_json=thinking)


def test_betas_are_refused_because_they_are_anthropics() -> None:
    parameters = msgspec.structs.replace(PARAMETERS, betas=("context-1m",))
    for write in (openai_chat.request_head, openai_chat.endpoint):
        with pytest.raises(UserError, match="beta 'context-1m' is Anthropic's; OpenAI takes none"):
            write(parameters)


@pytest.mark.parametrize(
    "name", ["model", "max_tokens", "max_completion_tokens", "stream", "stop", "reasoning_effort", "messages", "tools"]
)
def test_an_extra_field_with_a_place_of_its_own_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"extra field '{name}' has a place of its own"):
        opening(extra=((name, "1"),))


def test_a_choice_may_be_extra_only_where_there_is_no_other() -> None:
    extra = (("tool_choice", '{"type":"allowed_tools"}'), ("parallel_tool_calls", "true"))
    assert opening(extra=extra) == {
        "model": "gpt-6-sol",
        "max_completion_tokens": 100,
        "tool_choice": {"type": "allowed_tools"},
        "parallel_tool_calls": True,
    }
    with pytest.raises(UserError, match="extra field 'tool_choice'"):
        opening(extra=extra, tool_choice_json='{"type":"auto"}')


def test_options_of_the_stream_replace_our_own() -> None:
    said = opening(stream=True, extra=(("stream_options", '{"include_obfuscation":false}'),))
    assert isinstance(said, dict)
    assert said["stream_options"] == {"include_obfuscation": False}


def test_a_session_is_kept_on_one_cache_as_its_model_takes_it() -> None:
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


def test_a_key_that_is_too_long_becomes_one_that_stands_for_it() -> None:
    model = find_model("openai:gpt-5.4")
    (_, kept), *_ = openai_chat.session_fields(model, "s" * 64)
    assert json.loads(kept) == "s" * 64
    (_, long), *_ = openai_chat.session_fields(model, "s" * 65)
    (_, other), *_ = openai_chat.session_fields(model, "s" * 66)
    assert len(json.loads(long)) == 64
    assert len({kept, long, other}) == 3
