"""Encoding of requests to OpenAI's Responses API."""

import json
from typing import Any

import pytest

from holdfast.errors import OrderError, UserError
from holdfast.providers.openai_responses import openai_responses
from holdfast.providers.openai_responses.items import make_signature
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
from holdfast.types.prompt import Breakpoint, HistoryEntry, Parameters, Plan, Prompt, Segment, Stability, Ttl
from holdfast.types.tool_spec import ToolSpec

SEALED = Thinking("I see.", make_signature("gAAA", "rs_1", ["I see."]))


def history(*entries: HistoryEntry) -> Segment:
    return Segment("history", Stability.GROWING, "messages", entries=entries)


def entry_of(role: Role, *content: Block) -> HistoryEntry:
    return HistoryEntry(role, content)


def encode_body(
    *segments: Segment, breakpoints: tuple[Breakpoint, ...] = (), parameters: Parameters | None = None
) -> bytes:
    return openai_responses.encode_request(Prompt(segments), Plan(breakpoints), parameters or Parameters("gpt", 100))


def encode_items(*entries: HistoryEntry) -> list[Any]:
    items: list[Any] = json.loads(encode_body(history(*entries)))["input"]
    return items


def encode_head(**parameters: Any) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(
        openai_responses.request_head(Parameters(**{"model": "gpt", **parameters})) + b"}"
    )
    return head


def test_a_request_has_a_fixed_field_order() -> None:
    tools = Segment("tools", Stability.FROZEN, "tools", tools=(ToolSpec("read", "Reads.", '{"type":"object"}'),))
    role = Segment("role", Stability.EPOCH, "system", system=(Text("You help."),))
    project = Segment("project", Stability.EPOCH, "system", system=(Text("In Python."),))
    segment = history(
        entry_of("user", Text("Hi.")),
        entry_of("assistant", SEALED, Text("I look."), ToolUse("call_1", "read", '{"a": 1}')),
        entry_of("user", ToolResult("call_1", (Text("one"), Text("two"))), Text("And now?")),
    )
    parameters = Parameters(
        "gpt",
        100,
        stream=True,
        temperature=0.5,
        thinking_json='{"effort": "low"}',
        tool_choice_json='{"type":"tool","name":"read","disable_parallel_tool_use":true}',
        extra=(("prompt_cache_key", '"s"'),),
    )
    body = encode_body(
        tools, role, project, segment, breakpoints=(Breakpoint(2, "30m"), Breakpoint(7, "12h")), parameters=parameters
    )
    assert body.decode() == (
        '{"model":"gpt","max_output_tokens":100,"stream":true,"temperature":0.5,"store":false,'
        '"include":["reasoning.encrypted_content"],"reasoning":{"effort": "low"},'
        '"tool_choice":{"type":"function","name":"read"},"parallel_tool_calls":false,"prompt_cache_key":"s",'
        '"tools":[{"type":"function","name":"read","description":"Reads.","parameters":{"type":"object"},'
        '"strict":false}],"input":['
        '{"type":"message","role":"developer","content":[{"type":"input_text","text":"You help."},'
        '{"type":"input_text","text":"In Python.","prompt_cache_breakpoint":{"mode":"explicit"}}]},'
        '{"type":"message","role":"user","content":[{"type":"input_text","text":"Hi."}]},'
        '{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"I see."}],'
        '"encrypted_content":"gAAA"},'
        '{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I look.","annotations":[]}]},'
        '{"type":"function_call","call_id":"call_1","name":"read","arguments":"{\\"a\\": 1}"},'
        '{"type":"function_call_output","call_id":"call_1","output":[{"type":"input_text","text":"one"},'
        '{"type":"input_text","text":"two","prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}}]},'
        '{"type":"message","role":"user","content":[{"type":"input_text","text":"And now?"}]}]}'
    )


def test_an_entry_never_shares_an_item_with_its_neighbour() -> None:
    items = encode_items(entry_of("user", Text("a"), Text("b")), entry_of("user", Text("c")))
    assert [[part["text"] for part in item["content"]] for item in items] == [["a", "b"], ["c"]]


def test_a_block_between_texts_splits_their_message() -> None:
    items = encode_items(entry_of("assistant", Text("a"), ToolUse("c", "t", "{}"), Text("b"), Text("c")))
    assert [item["type"] for item in items] == ["message", "function_call", "message"]
    assert len(items[2]["content"]) == 2


def test_a_system_message_in_the_middle_is_a_developer_message() -> None:
    items = encode_items(entry_of("user", Text("a")), entry_of("system", Text("b")))
    assert [item["role"] for item in items] == ["user", "developer"]


def test_a_first_message_does_not_become_the_system_prompt() -> None:
    body = encode_body(history(entry_of("system", Text("a")), entry_of("system", Text("b"))))
    assert [item["role"] for item in json.loads(body)["input"]] == ["system", "developer"]
    read = openai_responses.decode_request(body).prompt
    assert [segment.section for segment in read.segments] == ["messages"]
    system = Segment("role", Stability.EPOCH, "system", system=(Text("s"),))
    assert [
        item["role"] for item in json.loads(encode_body(system, history(entry_of("system", Text("a")))))["input"]
    ] == [
        "developer",
        "developer",
    ]


def test_a_request_without_messages_has_an_empty_list() -> None:
    assert json.loads(encode_body())["input"] == []
    tools = Segment("tools", Stability.FROZEN, "tools", tools=(ToolSpec("read", "", "{}"),))
    assert json.loads(encode_body(tools))["input"] == []
    system = Segment("role", Stability.EPOCH, "system", system=(Text("s"),))
    assert len(json.loads(encode_body(tools, system))["input"]) == 1


def test_a_system_prompt_after_messages_is_refused() -> None:
    system = Segment("role", Stability.EPOCH, "system", system=(Text("s"),))
    with pytest.raises(OrderError, match=r"layer 'role' \(system\) comes after layer 'history' \(messages\)"):
        encode_body(history(entry_of("user", Text("a"))), system)


@pytest.mark.parametrize(
    ("source", "member"),
    [
        (Base64Source("image/png", "AAAA"), {"image_url": "data:image/png;base64,AAAA"}),
        (UrlSource("https://x/y.png"), {"image_url": "https://x/y.png"}),
        (FileSource("file_1"), {"file_id": "file_1"}),
    ],
    ids=lambda given: type(given).__name__,
)
def test_an_image_is_a_url_or_a_file(source: Any, member: dict[str, str]) -> None:
    (item,) = encode_items(entry_of("user", Image(source)))
    assert item["content"] == [{"type": "input_image", **member, "detail": "auto"}]
    (result,) = encode_items(entry_of("user", ToolResult("c", (Image(source),))))
    assert result["output"] == item["content"]


def test_a_data_url_is_the_same_image_as_its_content() -> None:
    url_image, same = Image(UrlSource("data:image/png;base64,AAAA")), Image(Base64Source("image/png", "AAAA"))
    assert openai_responses.lower_entry(entry_of("user", url_image)) == entry_of("user", same)
    result, same_result = ToolResult("c", (url_image,)), ToolResult("c", (same,))
    assert openai_responses.lower_entry(entry_of("user", result)) == entry_of("user", same_result)


def test_an_image_in_a_reply_is_encoded_as_text() -> None:
    drawn = entry_of("assistant", Image(FileSource("f")))
    assert openai_responses.lower_entry(drawn) == entry_of("assistant", Text("[image]"))


def test_a_failed_tool_says_so_in_its_first_part_and_only_once() -> None:
    failed = entry_of("user", ToolResult("c", (Text("no such file"),), is_error=True))
    result = entry_of("user", ToolResult("c", (Text("Error:"), Text("no such file"))))
    assert openai_responses.lower_entry(failed) == result
    again = entry_of("user", ToolResult("c", (Text("Error:"), Text("no such file")), is_error=True))
    assert openai_responses.lower_entry(again) == result


def test_a_result_without_content_is_an_empty_text() -> None:
    assert encode_items(entry_of("user", ToolResult("c", ()), Text("a")))[0] == {
        "type": "function_call_output",
        "call_id": "c",
        "output": "",
    }


FOREIGN = [
    Thinking("hm"),
    Thinking("hm", "EqQBCgIYAhIM"),
    Thinking("I see.", '{"encrypted_content": "gAAA"}'),
    Thinking("I see.", '{"encrypted_content":"gAAA","lengths":[6]}'),
    Thinking("I see.", '{"encrypted_content":"gAAA","lengths":[9,-5]}'),
    Thinking("", '{"encrypted_content":"gAAA","lengths":[]}'),
    RedactedThinking("x"),
]


@pytest.mark.parametrize("thinking", FOREIGN, ids=repr)
def test_thinking_of_another_provider_is_omitted(thinking: Block) -> None:
    assert openai_responses.lower_entry(entry_of("assistant", thinking)) is None
    assert openai_responses.lower_entry(entry_of("assistant", thinking, Text("a"))) == entry_of("assistant", Text("a"))
    assert openai_responses.encode_segment(history(entry_of("assistant", thinking))) == ()


def test_several_summaries_are_sent_back_unchanged() -> None:
    summaries = ["One\n\nand a half.", "", "Two."]
    thinking = Thinking("\n\n".join(summaries), make_signature("gAAA", None, summaries))
    (item,) = encode_items(entry_of("assistant", thinking))
    assert [part["text"] for part in item["summary"]] == summaries
    assert "id" not in item


def test_an_id_that_is_too_long_is_replaced_by_one_that_fits() -> None:
    long = "toolu_" + "x" * 70
    call, result = encode_items(entry_of("assistant", ToolUse(long, "t", "{}")), entry_of("user", ToolResult(long, ())))
    assert call["call_id"] == result["call_id"] != long
    assert len(call["call_id"]) <= 64
    (item,) = encode_items(entry_of("assistant", ToolUse("x" * 64, "t", "{}")))
    assert item["call_id"] == "x" * 64


def test_an_entry_that_needs_no_lowering_is_not_copied() -> None:
    entry = entry_of("user", Text("a"), ToolResult("c", (Text("b"),)), Image(FileSource("f")))
    assert openai_responses.lower_entry(entry) is entry


def test_a_provider_defined_item_is_sent_back_unchanged() -> None:
    raw = b'{ "type":"web_search_call", "id":"ws_1"}'
    body = encode_body(history(entry_of("assistant", Text("a"), Opaque("web_search_call", raw), Text("b"))))
    assert b"]}," + raw + b',{"type":"message"' in body


def test_an_unknown_content_part_remains_in_its_message() -> None:
    audio = Opaque("input_audio", b'{"type":"input_audio"}')
    (item,) = encode_items(entry_of("user", Text("a"), audio))
    assert item["content"][1] == {"type": "input_audio"}
    answer = Opaque("custom_tool_call_output", b'{"type":"custom_tool_call_output"}')
    assert encode_items(entry_of("user", Text("a"), answer))[1] == {"type": "custom_tool_call_output"}
    refusal = Opaque("refusal", b'{"type":"refusal","refusal":"no"}')
    assert encode_items(entry_of("assistant", Text("a"), refusal))[0]["content"][1]["type"] == "refusal"


# Breakpoints


@pytest.mark.parametrize(
    ("role", "block", "accepts"),
    [
        ("user", Text("a"), True),
        ("user", Text(" \n"), False),
        ("user", Image(FileSource("f")), True),
        ("user", Opaque("input_file", b'{"type":"input_file"}'), True),
        ("user", Opaque("input_audio", b'{"type":"input_audio"}'), False),
        ("user", ToolResult("c", (Text("a"), Image(FileSource("f")))), True),
        ("user", ToolResult("c", (Text("a"), Text(""))), False),
        ("user", ToolResult("c", ()), False),
        ("system", Text("a"), True),
        ("assistant", Text("a"), False),
        ("assistant", ToolUse("c", "t", "{}"), False),
        ("assistant", SEALED, False),
        ("assistant", Opaque("input_file", b'{"type":"input_file"}'), False),
    ],
)
def test_only_input_content_accepts_breakpoints(role: Role, block: Block, accepts: bool) -> None:
    (encoded,) = openai_responses.encode_segment(history(entry_of(role, block)))
    assert encoded.accepts_breakpoint is accepts


def test_the_system_prompt_accepts_breakpoints_and_tools_do_not() -> None:
    tools = Segment("tools", Stability.FROZEN, "tools", tools=(ToolSpec("read", "", "{}"),))
    system = Segment("role", Stability.EPOCH, "system", system=(Text("s"), Text(" ")))
    assert [block.accepts_breakpoint for block in openai_responses.encode_segment(tools)] == [False]
    assert [block.accepts_breakpoint for block in openai_responses.encode_segment(system)] == [True, False]


@pytest.mark.parametrize("ttl", ["5m", "1h"])
def test_a_ttl_of_another_provider_is_refused(ttl: Ttl) -> None:
    with pytest.raises(UserError, match=f"OpenAI's cache TTL is 30m or 12h, not {ttl}"):
        openai_responses.encode_breakpoint(ttl)


# Parameters


def test_a_request_without_an_output_limit_encodes_none() -> None:
    assert encode_head(output_tokens_max=0) == {
        "model": "gpt",
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }


def test_default_fields_can_be_overridden() -> None:
    extra = (("store", "true"), ("include", "[]"))
    assert encode_head(output_tokens_max=9, extra=extra) == {
        "model": "gpt",
        "max_output_tokens": 9,
        "store": True,
        "include": [],
    }


@pytest.mark.parametrize(
    ("choice", "members"),
    [
        ('{"type":"auto"}', {"tool_choice": "auto"}),
        ('{"type":"any"}', {"tool_choice": "required"}),
        ('{"type":"none"}', {"tool_choice": "none"}),
        ('{"type":"tool","name":"t"}', {"tool_choice": {"type": "function", "name": "t"}}),
        (
            '{"type":"auto","disable_parallel_tool_use":true}',
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
    ],
)
def test_a_tool_choice_is_encoded_in_the_providers_form_and_decoded_back(
    choice: str, members: dict[str, object]
) -> None:
    head = encode_head(output_tokens_max=9, tool_choice_json=choice)
    assert {name: head[name] for name in head if name in ("tool_choice", "parallel_tool_calls")} == members
    read = openai_responses.decode_request(encode_body(parameters=Parameters("m", 9, tool_choice_json=choice)))
    assert read.parameters.tool_choice_json == choice


@pytest.mark.parametrize(
    "choice", ["auto", "{", '{"type":"some"}', '{"type":"tool"}', '{"type":"auto","name":"t"}', '{"type":"any","x":1}']
)
def test_a_tool_choice_that_cannot_be_encoded_is_refused(choice: str) -> None:
    with pytest.raises(UserError, match="the tool choice must be"):
        encode_head(output_tokens_max=9, tool_choice_json=choice)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"betas": ("b",)}, "no betas"),
        ({"stop_sequences": ("x",)}, "no stop sequences"),
        ({"extra": (("input", "[]"),)}, "extra field 'input' has a place of its own"),
        ({"extra": (("instructions", '"x"'),)}, "extra field 'instructions' has a place of its own"),
        ({"extra": (("temperature", "1"),)}, "extra field 'temperature' has a place of its own"),
        ({"extra": (("tool_choice", "1"),), "tool_choice_json": '{"type":"auto"}'}, "extra field 'tool_choice'"),
    ],
)
def test_unsupported_parameters_are_refused(parameters: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        encode_head(output_tokens_max=9, **parameters)


def test_a_lone_surrogate_is_replaced() -> None:
    assert encode_items(entry_of("user", Text("a\ud800")))[0]["content"][0]["text"] == "a\ufffd"
