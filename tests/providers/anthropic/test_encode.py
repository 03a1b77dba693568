"""What a request to Anthropic looks like."""

import json

import pytest

from holdfast.errors import OrderError, UserError
from holdfast.providers.anthropic import anthropic
from holdfast.types.blocks import Block, Image, Opaque, RedactedThinking, Text, Thinking, ToolResult, ToolUse, UrlSource
from holdfast.types.prompt import Breakpoint, HistoryEntry, Parameters, Plan, Prompt, Segment, Stability
from holdfast.types.request_buffer import EncodedBlock
from holdfast.types.tool_spec import ToolSpec

MODEL = Parameters("claude-sonnet-5-5", 16)
MARK = {"type": "ephemeral"}


def piece_of(block: Block) -> EncodedBlock:
    (piece,) = anthropic.encode_segment(
        Segment("history", Stability.GROWING, "messages", entries=(HistoryEntry("user", (block,)),))
    )
    return piece


def test_a_tool_carries_the_layer_and_stability_of_its_segment() -> None:
    tool = ToolSpec("run", "Runs.", '{"type":"object"}')
    segment = Segment("toolbox", Stability.FROZEN, "tools", tools=(tool,))
    spelled = b'{"name":"run","description":"Runs.","input_schema":{"type":"object"}}'
    assert anthropic.encode_segment(segment) == (EncodedBlock("toolbox", "tools", Stability.FROZEN, spelled, True),)


def test_a_system_text_carries_the_layer_and_stability_of_its_segment() -> None:
    segment = Segment("persona", Stability.EPOCH, "system", system=(Text("Be kind."), Text(" \n")))
    kind, blank = anthropic.encode_segment(segment)
    assert kind == EncodedBlock(
        "persona", "system", Stability.EPOCH, b'{"type":"text","text":"Be kind."}', accepts_breakpoint=True
    )
    assert not blank.accepts_breakpoint


def test_a_block_carries_what_its_passage_says() -> None:
    passage = HistoryEntry("user", (Text("Monday"),), "clock", Stability.VOLATILE, ephemeral=True)
    segment = Segment("history", Stability.GROWING, "messages", entries=(passage,))
    (piece,) = anthropic.encode_segment(segment)
    assert piece == EncodedBlock(
        "clock", "messages", Stability.VOLATILE, b'{"type":"text","text":"Monday"}', True, "user", True
    )


@pytest.mark.parametrize(
    ("block", "markable"),
    [
        (Text("a"), True),
        (Text(""), False),
        (Text(" \n\t"), False),
        (Image(UrlSource("u")), True),
        (ToolUse("t", "run", "{}"), True),
        (ToolResult("t", ()), True),
        (Thinking("a", "s"), False),
        (RedactedThinking("a"), False),
        (Opaque("document", b'{"type":"document"}'), True),
        (Opaque("search_result", b'{"type":"search_result"}'), True),
        (Opaque("hologram", b'{"type":"hologram"}'), False),
        (Opaque("tool_use", b'{"type":"tool_use","new":1}'), True),
        (Opaque("thinking", b'{"type":"thinking","new":1}'), False),
        (Opaque("text", b'{"type":"text","text":"a","new":1}'), True),
        (Opaque("text", b'{"type":"text","text":" ","new":1}'), False),
        (Opaque("text", b'{"type":"text","new":1}'), False),
    ],
)
def test_a_mark_can_stand_where_the_provider_takes_one(block: Block, markable: bool) -> None:
    assert piece_of(block).accepts_breakpoint is markable


def test_arguments_are_sent_back_as_the_model_wrote_them() -> None:
    call = ToolUse("t", "run", '{"b": 1.0,  "a": "\\u00e9"}')
    assert piece_of(call).data == (b'{"type":"tool_use","id":"t","name":"run","input":{"b": 1.0,  "a": "\\u00e9"}}')


def test_thinking_without_signature_has_no_such_field() -> None:
    assert piece_of(Thinking("Hm")).data == b'{"type":"thinking","thinking":"Hm"}'


def test_half_a_surrogate_pair_is_mended() -> None:
    assert piece_of(Text("a\ud800b")).data == '{"type":"text","text":"a\ufffdb"}'.encode()
    assert '"a\ufffd"'.encode() in piece_of(ToolUse("t", "n", '{"k":"a\ud800"}')).data


def test_a_providers_own_tool_is_sent_as_it_is() -> None:
    tool = ToolSpec("bash", "", "{}", ' {"type":"bash_20250124", "name":"bash"}\n')
    segment = Segment("tools", Stability.FROZEN, "tools", tools=(tool,))
    assert anthropic.encode_segment(segment)[0].data == b'{"type":"bash_20250124", "name":"bash"}'


def test_an_empty_prompt_is_still_a_whole_body() -> None:
    assert anthropic.encode_request(Prompt(()), Plan(), MODEL) == (
        b'{"model":"claude-sonnet-5-5","max_tokens":16,"messages":[]}'
    )


def test_tools_alone_are_still_a_whole_body() -> None:
    tools = Segment("tools", Stability.FROZEN, "tools", tools=(ToolSpec("a", "", "{}"),))
    body = json.loads(anthropic.encode_request(Prompt((tools,)), Plan((Breakpoint(0),)), MODEL))
    assert body["tools"][0]["cache_control"] == MARK
    assert body["messages"] == []


def test_fields_stand_in_one_order() -> None:
    parameters = Parameters(
        "m",
        2,
        stream=True,
        stop_sequences=("x",),
        temperature=0.0,
        tool_choice_json='{"type":"auto"}',
        thinking_json='{"type":"disabled"}',
        extra=(("z", "1"), ("a", "null")),
    )
    assert anthropic.request_head(parameters) == (
        b'{"model":"m","max_tokens":2,"stream":true,"temperature":0.0,"stop_sequences":["x"],'
        b'"thinking":{"type":"disabled"},"tool_choice":{"type":"auto"},"z":1,"a":null'
    )


@pytest.mark.parametrize("name", ["model", "messages", "tools", "max_tokens"])
def test_a_field_that_has_its_own_place_is_refused_among_the_extras(name: str) -> None:
    with pytest.raises(UserError, match=f"extra field '{name}' has a place of its own"):
        anthropic.request_head(Parameters("m", 1, extra=((name, "1"),)))


def test_headers_name_the_version_and_the_content() -> None:
    assert anthropic.endpoint(MODEL).path == "/v1/messages"
    assert anthropic.endpoint(MODEL).headers == (
        ("content-type", "application/json"),
        ("anthropic-version", "2026-10-21"),
    )


def test_the_key_is_a_bearer_token() -> None:
    assert anthropic.credentials("k") == {"authorization": "Bearer k"}


@pytest.mark.parametrize("beta", ["a,b", "a\r\nx-evil: 1", "", "ä"])
def test_a_beta_that_no_header_can_carry_is_refused(beta: str) -> None:
    with pytest.raises(UserError, match="is not valid in a header"):
        anthropic.endpoint(Parameters("m", 1, betas=(beta,)))


def test_a_part_behind_its_place_is_refused_with_both_layers() -> None:
    history = Segment("history", Stability.GROWING, "messages", entries=(HistoryEntry("user", (Text("a"),)),))
    persona = Segment("persona", Stability.EPOCH, "system", system=(Text("b"),))
    with pytest.raises(OrderError, match=r"'persona' \(system\) comes after layer 'history' \(messages\)"):
        anthropic.encode_request(Prompt((history, persona)), Plan(), MODEL)


@pytest.mark.parametrize("piece", [-1, 1, 7])
def test_a_mark_outside_of_the_prompt_is_refused(piece: int) -> None:
    history = Segment("history", Stability.GROWING, "messages", entries=(HistoryEntry("user", (Text("a"),)),))
    with pytest.raises(UserError, match=f"breakpoint on block {piece}, but the prompt has 1 blocks"):
        anthropic.encode_request(Prompt((history,)), Plan((Breakpoint(piece),)), MODEL)


def test_two_marks_on_one_piece_are_refused() -> None:
    history = Segment("history", Stability.GROWING, "messages", entries=(HistoryEntry("user", (Text("a"),)),))
    with pytest.raises(UserError, match="two cache breakpoints on one block"):
        anthropic.encode_request(Prompt((history,)), Plan((Breakpoint(0), Breakpoint(0, "1h"))), MODEL)
