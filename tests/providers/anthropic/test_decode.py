"""Decoding of requests in Anthropic's format."""

import json
from collections.abc import Mapping

import pytest

from holdfast.errors import ProviderError
from holdfast.providers.adapter import WireRequest
from holdfast.providers.anthropic import anthropic
from holdfast.providers.wire_request import BODY_BYTES_MAX
from holdfast.types.blocks import (
    Block,
    FileSource,
    Image,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from holdfast.types.prompt import Breakpoint, HistoryEntry, Parameters, Plan, Segment, Stability
from holdfast.types.tool_spec import ToolSpec

BREAKPOINT: dict[str, object] = {"type": "ephemeral"}


def request(*, headers: Mapping[str, str] | None = None, content: object = "Hi", **fields: object) -> WireRequest:
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": content}], **fields}
    return anthropic.decode_request(json.dumps(body).encode(), headers or {})


def decode_block(**members: object) -> Block:
    return request(content=[members]).prompt.entries[0].content[0]


def refusal_message(body: bytes) -> str:
    with pytest.raises(ProviderError) as refused:
        anthropic.decode_request(body)
    assert refused.value.kind == "invalid_request"
    assert refused.value.status == 400
    return str(refused.value)


def test_each_plain_string_becomes_one_text() -> None:
    read = request(system="Be kind.", content="Hi")
    system, history = read.prompt.segments
    assert system == Segment("system", Stability.EPOCH, "system", system=(Text("Be kind."),))
    assert history == Segment("history", Stability.GROWING, "messages", entries=(HistoryEntry("user", (Text("Hi"),)),))


def test_absent_or_null_fields_produce_no_segment_and_no_parameter() -> None:
    read = request(system=None, tools=None, stream=None, temperature=None, stop_sequences=None)
    assert [segment.name for segment in read.prompt.segments] == ["history"]
    assert read.parameters == Parameters("m", 1)
    assert request(system="", tools=[]).prompt == read.prompt


def test_breakpoints_are_indexed_across_tools_system_and_messages() -> None:
    tool: dict[str, object] = {"name": "a", "description": "", "input_schema": {}}
    read = request(
        tools=[tool, {**tool, "cache_control": {**BREAKPOINT, "ttl": "1h"}}],
        system=[{"type": "text", "text": "s", "cache_control": {**BREAKPOINT, "ttl": "5m"}}],
        content=[
            {"type": "text", "text": "a", "cache_control": None},
            {"type": "text", "text": "b", "cache_control": BREAKPOINT},
        ],
    )
    assert read.plan == Plan((Breakpoint(1, "1h"), Breakpoint(2, "5m"), Breakpoint(4, "5m")))
    assert read.prompt.tools == (ToolSpec("a", "", "{}"), ToolSpec("a", "", "{}"))
    assert read.prompt.segments[0] == Segment("tools", Stability.FROZEN, "tools", tools=read.prompt.tools)


def test_breakpoint_inside_a_tool_result_counts_for_the_result() -> None:
    parts = [
        {"type": "text", "text": "a", "cache_control": {**BREAKPOINT, "ttl": "1h"}},
        {"type": "tool_reference", "cache_control": BREAKPOINT, "tool_name": "x"},
        {"type": "text", "text": "c"},
    ]
    read = request(content=[{"type": "tool_result", "tool_use_id": "t", "content": parts}])
    assert read.plan == Plan((Breakpoint(0, "5m"),))
    assert read.prompt.entries[0].content == (
        ToolResult(
            "t",
            (
                Text("a"),
                Opaque("tool_reference", b'{"type": "tool_reference", "tool_name": "x"}'),
                Text("c"),
            ),
        ),
    )


def test_breakpoint_on_a_tool_result_outranks_one_inside_it() -> None:
    parts = [{"type": "text", "text": "a", "cache_control": BREAKPOINT}]
    result: dict[str, object] = {"type": "tool_result", "tool_use_id": "t", "content": parts}
    read = request(content=[{**result, "cache_control": {**BREAKPOINT, "ttl": "1h"}}])
    assert read.plan == Plan((Breakpoint(0, "1h"),))


def test_a_tool_result_may_be_a_string_or_empty() -> None:
    assert decode_block(type="tool_result", tool_use_id="t", content="a", is_error=True) == ToolResult(
        "t", (Text("a"),), is_error=True
    )
    assert decode_block(type="tool_result", tool_use_id="t") == ToolResult("t", ())


def test_a_result_nested_in_a_result_is_preserved() -> None:
    inner = {"type": "tool_result", "tool_use_id": "u"}
    assert decode_block(type="tool_result", tool_use_id="t", content=[inner]) == ToolResult(
        "t", (Opaque("tool_result", b'{"type": "tool_result", "tool_use_id": "u"}'),)
    )


@pytest.mark.parametrize(
    ("members", "block"),
    [
        ({"type": "text", "text": "a", "citations": None}, Text("a")),
        ({"type": "text", "text": "a", "citations": []}, Text("a")),
        (
            {"type": "tool_use", "id": "t", "name": "n", "input": {}, "caller": {"type": "direct"}},
            ToolUse("t", "n", "{}"),
        ),
        (
            {"type": "tool_use", "id": "t", "name": "n", "toolset_name": None, "caller": None},
            ToolUse("t", "n", "{}"),
        ),
        ({"type": "tool_result", "tool_use_id": "t", "toolset_name": None}, ToolResult("t", ())),
        (
            {"type": "image", "source": {"type": "file", "file_id": "f"}, "transformations": {}},
            Image(FileSource("f")),
        ),
        ({"type": "thinking", "thinking": "a"}, Thinking("a")),
        ({"type": "thinking", "thinking": "a", "signature": "s"}, Thinking("a", "s")),
        ({"type": "redacted_thinking", "data": "x"}, RedactedThinking("x")),
    ],
)
def test_a_known_block_with_explicit_defaults_is_recognised(members: dict[str, object], block: Block) -> None:
    assert decode_block(**members) == block


@pytest.mark.parametrize(
    "members",
    [
        {"type": "text", "text": "a", "citations": [{"type": "x"}]},
        {"type": "tool_use", "id": "t", "name": "n", "input": {}, "caller": {"type": "code", "tool_id": "c"}},
        {"type": "image", "source": {"type": "hologram", "file_id": "f"}},
        {"type": "image", "source": {"type": "url", "url": "u", "detail": "high"}},
        {"type": "thinking", "thinking": "a", "extra": 1},
        {"type": "document", "source": {"type": "text", "data": "x"}},
    ],
)
def test_a_block_with_an_unknown_field_is_preserved(members: dict[str, object]) -> None:
    assert decode_block(**members) == Opaque(str(members["type"]), json.dumps(members).encode())


def test_a_system_message_in_the_conversation_is_a_history_entry() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]
    assert request(messages=messages).prompt.entries == (
        HistoryEntry("user", (Text("a"),)),
        HistoryEntry("system", (Text("b"),)),
    )


def test_a_tool_with_additional_fields_is_preserved() -> None:
    tool = {"name": "a", "description": "d", "input_schema": {"type": "object"}, "strict": True}
    read = request(tools=[{**tool, "cache_control": BREAKPOINT}, {"type": "mcp_toolset", "server": "s"}])
    assert read.prompt.tools == (
        ToolSpec("a", "d", '{"type": "object"}', json.dumps(tool)),
        ToolSpec("mcp_toolset", "", "{}", '{"type": "mcp_toolset", "server": "s"}'),
    )
    assert read.plan == Plan((Breakpoint(0),))


def test_a_tool_without_description_is_preserved() -> None:
    (tool,) = request(tools=[{"name": "a", "input_schema": {}}]).prompt.tools
    assert tool == ToolSpec("a", "", "{}", '{"name": "a", "input_schema": {}}')


def test_unknown_fields_and_automatic_caching_are_preserved() -> None:
    read = request(cache_control={"type": "ephemeral"}, container="c1", tool_choice={"type": "any"})
    assert read.parameters.extra == (("cache_control", '{"type": "ephemeral"}'), ("container", '"c1"'))
    assert read.parameters.tool_choice_json == '{"type": "any"}'
    assert read.plan == Plan()


@pytest.mark.parametrize("name", ["anthropic-beta", "Anthropic-Beta"])
def test_betas_come_from_the_header(name: str) -> None:
    assert request(headers={"x": "y", name: "a, b,,"}).parameters.betas == ("a", "b")


def test_a_token_count_request_needs_no_output_limit() -> None:
    body = b'{"model":"m","messages":[]}'
    assert anthropic.decode_count_request(body, {"anthropic-beta": "a"}).parameters == Parameters("m", 0, betas=("a",))
    assert "missing required field `max_tokens`" in refusal_message(body)


def test_a_token_count_request_keeps_its_output_limit() -> None:
    read = anthropic.decode_count_request(b'{"model":"m","max_tokens":9,"messages":[]}')
    assert read.parameters.output_tokens_max == 9


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the request cannot be read: Input data was truncated, or holds half a surrogate pair"),
        (b"[]", "the request cannot be read: Expected `object`, got `array`"),
        (b'{"model":"m"}', "missing required field `messages`"),
        (b'{"messages":[]}', "missing required field `model`"),
        (b'{"model":"m","max_tokens":1,"messages":[],"x":"\xff"}', "the request cannot be read: it is not UTF-8"),
        (b'{"model":"m","messages":[],"x":"\\ud800"}', "half a surrogate pair"),
        (
            b'{"model":"m","max_tokens":1,"messages":' + b"[" * 9999 + b"]" * 9999 + b"}",
            "the request cannot be read: it is nested too deeply",
        ),
        (b'{"model":"m","max_tokens":true,"messages":[]}', "Expected `int | null`, got `bool` - at `$.max_"),
        (b'{"model":"m","max_tokens":-1,"messages":[]}', "Expected `int` >= 0 - at `$.max_tokens`"),
        (b'{"model":"m","max_tokens":1,"messages":[5]}', "messages.0 cannot be read: Expected `object`"),
        (
            b'{"model":"m","max_tokens":1,"messages":[{"role":"tool","content":"x"}]}',
            "messages.0 cannot be read: the role must be one of user, assistant, system",
        ),
        (
            b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":["x"]}]}',
            "messages.0.content.0 cannot be read: Expected `object`, got `str`",
        ),
        (
            b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"text":"x"}]}]}',
            "messages.0.content.0 cannot be read: Object missing required field `type`",
        ),
        (
            b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":5}]}]}',
            "Expected `str`, got `int`",
        ),
        (
            b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"image"}]}]}',
            "missing required field `source`",
        ),
        (b'{"model":"m","max_tokens":1,"messages":[],"system":[{"type":"image"}]}', "system.0 cannot be"),
        (
            b'{"model":"m","max_tokens":1,"messages":[],"system":[{"type":"text","text":"x","new":1}]}',
            "system.0 cannot be read: only text without further fields is allowed here",
        ),
        (b'{"model":"m","max_tokens":1,"messages":[],"tools":[{}]}', "tools.0 cannot be read: Object missing"),
        (
            b'{"model":"m","max_tokens":1,"messages":[],"tools":[{"name":"a","cache_control":5}]}',
            "tools.0 cannot be read: Expected `object | null`, got `int`",
        ),
    ],
)
def test_undecodable_requests_are_refused_in_one_line(body: bytes, reason: str) -> None:
    line = refusal_message(body)
    assert reason in line
    assert line.startswith(("the request cannot", "messages.0", "tools.0", "system.0"))
    assert "\n" not in line


@pytest.mark.parametrize(
    "cache_control", [{"type": "eternal"}, {"type": "ephemeral", "ttl": "2h"}, {"type": "eternal", "ttl": "1h"}]
)
def test_a_breakpoint_of_another_type_is_refused(cache_control: object) -> None:
    with pytest.raises(ProviderError, match='`cache_control` must be "ephemeral" for "5m" or "1h"'):
        request(content=[{"type": "text", "text": "a", "cache_control": cache_control}])


def test_a_refusal_quotes_no_value_and_stays_short() -> None:
    assert "private" not in refusal_message(b'{"model":"m","max_tokens":"private","messages":[]}')


def test_further_fields_of_a_message_are_carried_and_encoded_again() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Fix it."}]},
        {"role": "user", "output_config": {"effort": "low"}, "content": [{"type": "text", "text": "Be brief."}]},
    ]
    decoded = request(messages=messages)
    assert [entry.fields for entry in decoded.prompt.entries] == [(), (("output_config", '{"effort": "low"}'),)]
    encoded = anthropic.encode_request(decoded.prompt, decoded.plan, decoded.parameters)
    assert json.loads(encoded)["messages"] == messages


def test_further_fields_of_a_cache_breakpoint_are_ignored() -> None:
    control = {"type": "ephemeral", "ttl": "1h", "scope": "global"}
    [breakpoint_] = request(content=[{"type": "text", "text": "a", "cache_control": control}]).plan.breakpoints
    assert breakpoint_.ttl == "1h"


def test_a_body_over_the_limit_is_refused_before_decoding() -> None:
    with pytest.raises(ProviderError, match=f"more than {BODY_BYTES_MAX} bytes") as refused:
        anthropic.decode_request(b" " * (BODY_BYTES_MAX + 1))
    assert (refused.value.kind, refused.value.status) == ("invalid_request", 413)
    assert "truncated" in refusal_message(b" " * BODY_BYTES_MAX)
