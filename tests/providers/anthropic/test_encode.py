"""Encoding of requests to Anthropic."""

import json

import pytest

from holdfast.errors import OrderError, UserError
from holdfast.providers.anthropic import anthropic
from holdfast.types.blocks import Block, Image, Opaque, RedactedThinking, Text, Thinking, ToolResult, ToolUse, UrlSource
from holdfast.types.prompt import Breakpoint, HistoryEntry, Parameters, Plan, Prompt, Segment, Stability
from holdfast.types.request_buffer import EncodedBlock
from holdfast.types.tool_spec import ToolSpec

MODEL = Parameters("claude-sonnet-5-5", 16)
BREAKPOINT = {"type": "ephemeral"}


def encode_entry_block(block: Block) -> EncodedBlock:
    (encoded,) = anthropic.encode_segment(
        Segment("history", Stability.GROWING, "messages", entries=(HistoryEntry("user", (block,)),))
    )
    return encoded


def test_a_tool_carries_the_layer_and_stability_of_its_segment() -> None:
    tool = ToolSpec("run", "Runs.", '{"type":"object"}')
    segment = Segment("toolbox", Stability.FROZEN, "tools", tools=(tool,))
    encoded = b'{"name":"run","description":"Runs.","input_schema":{"type":"object"}}'
    assert anthropic.encode_segment(segment) == (EncodedBlock("toolbox", "tools", Stability.FROZEN, encoded, True),)


def test_a_system_text_carries_the_layer_and_stability_of_its_segment() -> None:
    segment = Segment("persona", Stability.EPOCH, "system", system=(Text("Be kind."), Text(" \n")))
    kind, blank = anthropic.encode_segment(segment)
    assert kind == EncodedBlock(
        "persona", "system", Stability.EPOCH, b'{"type":"text","text":"Be kind."}', accepts_breakpoint=True
    )
    assert not blank.accepts_breakpoint


def test_a_block_carries_the_attributes_of_its_history_entry() -> None:
    entry = HistoryEntry("user", (Text("Monday"),), "clock", Stability.VOLATILE, ephemeral=True)
    segment = Segment("history", Stability.GROWING, "messages", entries=(entry,))
    (block,) = anthropic.encode_segment(segment)
    assert block == EncodedBlock(
        "clock", "messages", Stability.VOLATILE, b'{"type":"text","text":"Monday"}', True, "user", True
    )


@pytest.mark.parametrize(
    ("block", "accepts"),
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
def test_blocks_accept_breakpoints_where_the_provider_does(block: Block, accepts: bool) -> None:
    assert encode_entry_block(block).accepts_breakpoint is accepts


def test_arguments_are_sent_back_exactly_as_the_model_wrote_them() -> None:
    call = ToolUse("t", "run", '{"b": 1.0,  "a": "\\u00e9"}')
    assert encode_entry_block(call).data == (
        b'{"type":"tool_use","id":"t","name":"run","input":{"b": 1.0,  "a": "\\u00e9"}}'
    )


def test_thinking_without_signature_has_no_signature_field() -> None:
    assert encode_entry_block(Thinking("Hm")).data == b'{"type":"thinking","thinking":"Hm"}'


def test_a_lone_surrogate_is_replaced() -> None:
    assert encode_entry_block(Text("a\ud800b")).data == '{"type":"text","text":"a\ufffdb"}'.encode()
    assert '"a\ufffd"'.encode() in encode_entry_block(ToolUse("t", "n", '{"k":"a\ud800"}')).data


def test_a_provider_defined_tool_is_sent_unchanged() -> None:
    tool = ToolSpec("bash", "", "{}", ' {"type":"bash_20250124", "name":"bash"}\n')
    segment = Segment("tools", Stability.FROZEN, "tools", tools=(tool,))
    assert anthropic.encode_segment(segment)[0].data == b'{"type":"bash_20250124", "name":"bash"}'


def test_an_empty_prompt_still_encodes_to_a_complete_body() -> None:
    assert anthropic.encode_request(Prompt(()), Plan(), MODEL) == (
        b'{"model":"claude-sonnet-5-5","max_tokens":16,"messages":[]}'
    )


def test_tools_alone_still_encode_to_a_complete_body() -> None:
    tools = Segment("tools", Stability.FROZEN, "tools", tools=(ToolSpec("a", "", "{}"),))
    body = json.loads(anthropic.encode_request(Prompt((tools,)), Plan((Breakpoint(0),)), MODEL))
    assert body["tools"][0]["cache_control"] == BREAKPOINT
    assert body["messages"] == []


def test_fields_have_a_fixed_order() -> None:
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
def test_an_extra_field_that_has_a_parameter_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"extra field '{name}' has a place of its own"):
        anthropic.request_head(Parameters("m", 1, extra=((name, "1"),)))


def test_headers_name_the_version_and_the_content_type() -> None:
    assert anthropic.endpoint(MODEL).path == "/v1/messages"
    assert anthropic.endpoint(MODEL).headers == (
        ("content-type", "application/json"),
        ("anthropic-version", "2026-10-21"),
    )


def test_the_key_is_a_bearer_token() -> None:
    assert anthropic.credentials("k") == {"authorization": "Bearer k"}


@pytest.mark.parametrize("beta", ["a,b", "a\r\nx-evil: 1", "", "ä"])
def test_a_beta_that_is_not_a_valid_header_is_refused(beta: str) -> None:
    with pytest.raises(UserError, match="is not valid in a header"):
        anthropic.endpoint(Parameters("m", 1, betas=(beta,)))


def test_a_segment_out_of_order_is_refused_with_both_layers() -> None:
    history = Segment("history", Stability.GROWING, "messages", entries=(HistoryEntry("user", (Text("a"),)),))
    persona = Segment("persona", Stability.EPOCH, "system", system=(Text("b"),))
    with pytest.raises(OrderError, match=r"'persona' \(system\) comes after layer 'history' \(messages\)"):
        anthropic.encode_request(Prompt((history, persona)), Plan(), MODEL)


@pytest.mark.parametrize("block_index", [-1, 1, 7])
def test_a_breakpoint_outside_of_the_prompt_is_refused(block_index: int) -> None:
    history = Segment("history", Stability.GROWING, "messages", entries=(HistoryEntry("user", (Text("a"),)),))
    with pytest.raises(UserError, match=f"breakpoint on block {block_index}, but the prompt has 1 blocks"):
        anthropic.encode_request(Prompt((history,)), Plan((Breakpoint(block_index),)), MODEL)


def test_two_breakpoints_on_one_block_are_refused() -> None:
    history = Segment("history", Stability.GROWING, "messages", entries=(HistoryEntry("user", (Text("a"),)),))
    with pytest.raises(UserError, match="two cache breakpoints on one block"):
        anthropic.encode_request(Prompt((history,)), Plan((Breakpoint(0), Breakpoint(0, "1h"))), MODEL)
