"""How a request to OpenAI's Responses API is spelled."""

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


def history(*passages: HistoryEntry) -> Segment:
    return Segment("history", Stability.GROWING, "messages", entries=passages)


def said(role: Role, *content: Block) -> HistoryEntry:
    return HistoryEntry(role, content)


def body_of(*segments: Segment, marks: tuple[Breakpoint, ...] = (), parameters: Parameters | None = None) -> bytes:
    return openai_responses.encode_request(Prompt(segments), Plan(marks), parameters or Parameters("gpt", 100))


def items_of(*passages: HistoryEntry) -> list[Any]:
    found: list[Any] = json.loads(body_of(history(*passages)))["input"]
    return found


def opening_of(**given: Any) -> dict[str, Any]:
    opened: dict[str, Any] = json.loads(openai_responses.request_head(Parameters(**{"model": "gpt", **given})) + b"}")
    return opened


def test_a_whole_request_is_spelled_in_one_order() -> None:
    tools = Segment("tools", Stability.FROZEN, "tools", tools=(ToolSpec("read", "Reads.", '{"type":"object"}'),))
    role = Segment("role", Stability.EPOCH, "system", system=(Text("You help."),))
    project = Segment("project", Stability.EPOCH, "system", system=(Text("In Python."),))
    talk = history(
        said("user", Text("Hi.")),
        said("assistant", SEALED, Text("I look."), ToolUse("call_1", "read", '{"a": 1}')),
        said("user", ToolResult("call_1", (Text("one"), Text("two"))), Text("And now?")),
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
    body = body_of(
        tools, role, project, talk, marks=(Breakpoint(2, "30m"), Breakpoint(7, "12h")), parameters=parameters
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


def test_a_passage_never_shares_an_item_with_its_neighbour() -> None:
    items = items_of(said("user", Text("a"), Text("b")), said("user", Text("c")))
    assert [[part["text"] for part in item["content"]] for item in items] == [["a", "b"], ["c"]]


def test_what_stands_between_texts_parts_their_messages() -> None:
    items = items_of(said("assistant", Text("a"), ToolUse("c", "t", "{}"), Text("b"), Text("c")))
    assert [item["type"] for item in items] == ["message", "function_call", "message"]
    assert len(items[2]["content"]) == 2


def test_a_message_in_the_middle_is_for_the_developer() -> None:
    items = items_of(said("user", Text("a")), said("system", Text("b")))
    assert [item["role"] for item in items] == ["user", "developer"]


def test_a_message_that_comes_first_is_not_taken_for_the_system_prompt() -> None:
    body = body_of(history(said("system", Text("a")), said("system", Text("b"))))
    assert [item["role"] for item in json.loads(body)["input"]] == ["system", "developer"]
    read = openai_responses.decode_request(body).prompt
    assert [segment.section for segment in read.segments] == ["messages"]
    system = Segment("role", Stability.EPOCH, "system", system=(Text("s"),))
    assert [item["role"] for item in json.loads(body_of(system, history(said("system", Text("a")))))["input"]] == [
        "developer",
        "developer",
    ]


def test_a_request_without_messages_has_an_empty_list() -> None:
    assert json.loads(body_of())["input"] == []
    tools = Segment("tools", Stability.FROZEN, "tools", tools=(ToolSpec("read", "", "{}"),))
    assert json.loads(body_of(tools))["input"] == []
    system = Segment("role", Stability.EPOCH, "system", system=(Text("s"),))
    assert len(json.loads(body_of(tools, system))["input"]) == 1


def test_a_system_prompt_behind_messages_is_refused() -> None:
    system = Segment("role", Stability.EPOCH, "system", system=(Text("s"),))
    with pytest.raises(OrderError, match=r"layer 'role' \(system\) comes after layer 'history' \(messages\)"):
        body_of(history(said("user", Text("a"))), system)


@pytest.mark.parametrize(
    ("source", "member"),
    [
        (Base64Source("image/png", "AAAA"), {"image_url": "data:image/png;base64,AAAA"}),
        (UrlSource("https://x/y.png"), {"image_url": "https://x/y.png"}),
        (FileSource("file_1"), {"file_id": "file_1"}),
    ],
    ids=lambda given: type(given).__name__,
)
def test_an_image_is_an_address_or_a_file(source: Any, member: dict[str, str]) -> None:
    (item,) = items_of(said("user", Image(source)))
    assert item["content"] == [{"type": "input_image", **member, "detail": "auto"}]
    (result,) = items_of(said("user", ToolResult("c", (Image(source),))))
    assert result["output"] == item["content"]


def test_a_data_url_is_the_same_image_as_its_content() -> None:
    given, same = Image(UrlSource("data:image/png;base64,AAAA")), Image(Base64Source("image/png", "AAAA"))
    assert openai_responses.lower_entry(said("user", given)) == said("user", same)
    result, same_result = ToolResult("c", (given,)), ToolResult("c", (same,))
    assert openai_responses.lower_entry(said("user", result)) == said("user", same_result)


def test_an_image_that_a_model_drew_is_said_in_words() -> None:
    drawn = said("assistant", Image(FileSource("f")))
    assert openai_responses.lower_entry(drawn) == said("assistant", Text("[image]"))


def test_a_failed_tool_says_so_in_its_first_part_and_only_once() -> None:
    failed = said("user", ToolResult("c", (Text("no such file"),), is_error=True))
    told = said("user", ToolResult("c", (Text("Error:"), Text("no such file"))))
    assert openai_responses.lower_entry(failed) == told
    again = said("user", ToolResult("c", (Text("Error:"), Text("no such file")), is_error=True))
    assert openai_responses.lower_entry(again) == told


def test_a_result_without_content_is_an_empty_text() -> None:
    assert items_of(said("user", ToolResult("c", ()), Text("a")))[0] == {
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
def test_thinking_that_is_not_the_providers_own_is_left_out(thinking: Block) -> None:
    assert openai_responses.lower_entry(said("assistant", thinking)) is None
    assert openai_responses.lower_entry(said("assistant", thinking, Text("a"))) == said("assistant", Text("a"))
    assert openai_responses.encode_segment(history(said("assistant", thinking))) == ()


def test_several_summaries_come_back_as_they_were() -> None:
    summaries = ["One\n\nand a half.", "", "Two."]
    thinking = Thinking("\n\n".join(summaries), make_signature("gAAA", None, summaries))
    (item,) = items_of(said("assistant", thinking))
    assert [part["text"] for part in item["summary"]] == summaries
    assert "id" not in item


def test_an_id_that_is_too_long_is_told_by_one_that_fits() -> None:
    long = "toolu_" + "x" * 70
    call, result = items_of(said("assistant", ToolUse(long, "t", "{}")), said("user", ToolResult(long, ())))
    assert call["call_id"] == result["call_id"] != long
    assert len(call["call_id"]) <= 64
    (kept,) = items_of(said("assistant", ToolUse("x" * 64, "t", "{}")))
    assert kept["call_id"] == "x" * 64


def test_what_says_nothing_new_is_not_copied() -> None:
    passage = said("user", Text("a"), ToolResult("c", (Text("b"),)), Image(FileSource("f")))
    assert openai_responses.lower_entry(passage) is passage


def test_an_item_of_the_providers_own_is_sent_back_as_it_came() -> None:
    raw = b'{ "type":"web_search_call", "id":"ws_1"}'
    body = body_of(history(said("assistant", Text("a"), Opaque("web_search_call", raw), Text("b"))))
    assert b"]}," + raw + b',{"type":"message"' in body


def test_an_unknown_part_of_what_is_said_stays_in_its_message() -> None:
    audio = Opaque("input_audio", b'{"type":"input_audio"}')
    (item,) = items_of(said("user", Text("a"), audio))
    assert item["content"][1] == {"type": "input_audio"}
    answer = Opaque("custom_tool_call_output", b'{"type":"custom_tool_call_output"}')
    assert items_of(said("user", Text("a"), answer))[1] == {"type": "custom_tool_call_output"}
    refusal = Opaque("refusal", b'{"type":"refusal","refusal":"no"}')
    assert items_of(said("assistant", Text("a"), refusal))[0]["content"][1]["type"] == "refusal"


# Marks


@pytest.mark.parametrize(
    ("role", "block", "markable"),
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
def test_a_mark_may_stand_only_on_what_is_said_to_the_model(role: Role, block: Block, markable: bool) -> None:
    (piece,) = openai_responses.encode_segment(history(said(role, block)))
    assert piece.accepts_breakpoint is markable


def test_a_mark_may_stand_on_the_system_prompt_and_not_on_tools() -> None:
    tools = Segment("tools", Stability.FROZEN, "tools", tools=(ToolSpec("read", "", "{}"),))
    system = Segment("role", Stability.EPOCH, "system", system=(Text("s"), Text(" ")))
    assert [piece.accepts_breakpoint for piece in openai_responses.encode_segment(tools)] == [False]
    assert [piece.accepts_breakpoint for piece in openai_responses.encode_segment(system)] == [True, False]


@pytest.mark.parametrize("ttl", ["5m", "1h"])
def test_a_lifetime_of_another_provider_is_refused(ttl: Ttl) -> None:
    with pytest.raises(UserError, match=f"OpenAI's cache TTL is 30m or 12h, not {ttl}"):
        openai_responses.encode_breakpoint(ttl)


# Parameters


def test_without_a_limit_none_is_written() -> None:
    assert opening_of(output_tokens_max=0) == {
        "model": "gpt",
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }


def test_what_is_always_said_can_be_said_otherwise() -> None:
    extra = (("store", "true"), ("include", "[]"))
    assert opening_of(output_tokens_max=9, extra=extra) == {
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
def test_a_tool_choice_is_said_in_the_providers_words_and_read_back(choice: str, members: dict[str, object]) -> None:
    opened = opening_of(output_tokens_max=9, tool_choice_json=choice)
    assert {name: opened[name] for name in opened if name in ("tool_choice", "parallel_tool_calls")} == members
    read = openai_responses.decode_request(body_of(parameters=Parameters("m", 9, tool_choice_json=choice)))
    assert read.parameters.tool_choice_json == choice


@pytest.mark.parametrize(
    "choice", ["auto", "{", '{"type":"some"}', '{"type":"tool"}', '{"type":"auto","name":"t"}', '{"type":"any","x":1}']
)
def test_a_tool_choice_without_words_for_it_is_refused(choice: str) -> None:
    with pytest.raises(UserError, match="the tool choice must be"):
        opening_of(output_tokens_max=9, tool_choice_json=choice)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"betas": ("b",)}, "no betas"),
        ({"stop_sequences": ("x",)}, "no stop sequences"),
        ({"extra": (("input", "[]"),)}, "extra field 'input' has a place of its own"),
        ({"extra": (("instructions", '"x"'),)}, "extra field 'instructions' has a place of its own"),
        ({"extra": (("temperature", "1"),)}, "extra field 'temperature' has a place of its own"),
        ({"extra": (("tool_choice", "1"),), "tool_choice_json": '{"type":"auto"}'}, "extra field 'tool_choice'"),
    ],
)
def test_what_has_no_place_in_the_request_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        opening_of(output_tokens_max=9, **given)


def test_half_a_character_is_mended() -> None:
    assert items_of(said("user", Text("a\ud800")))[0]["content"][0]["text"] == "a\ufffd"
