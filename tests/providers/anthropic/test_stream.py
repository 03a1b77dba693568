"""Decoding of Anthropic's replies: while they stream, complete, and interrupted."""

import json
from collections.abc import Mapping

import pytest

from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.anthropic import anthropic
from holdfast.providers.sse import DELTA_CHARS_MAX
from holdfast.types.blocks import Block, Opaque, RedactedThinking, Text, Thinking, ToolUse
from holdfast.types.reply import (
    Delta,
    Reply,
    ReplyFinished,
    ReplyStarted,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ToolUseDelta,
    ToolUseStarted,
)
from holdfast.types.usage import Usage

Payload = Mapping[str, object]

START: Payload = {"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": {"input_tokens": 3}}}
END: Payload = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}}
STOP: Payload = {"type": "message_stop"}


def encode_event(payload: Payload, name: str = "") -> bytes:
    return f"event: {name or payload['type']}\ndata: {json.dumps(payload)}\n\n".encode()


def block_start(index: int, **block: object) -> Payload:
    return {"type": "content_block_start", "index": index, "content_block": block}


def block_delta(index: int, **delta: object) -> Payload:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def block_stop(index: int) -> Payload:
    return {"type": "content_block_stop", "index": index}


def decode_deltas(*payloads: Payload) -> list[Delta]:
    return list(anthropic.make_stream_decoder().feed(b"".join(map(encode_event, payloads))))


def decode_content(*payloads: Payload) -> tuple[Block, ...]:
    finished = decode_deltas(START, *payloads, END, STOP)[-1]
    assert isinstance(finished, ReplyFinished)
    return finished.reply.content


def decode_partial(*payloads: Payload) -> Reply | None:
    reader = anthropic.make_stream_decoder()
    list(reader.feed(b"".join(map(encode_event, payloads))))
    return reader.partial()


def decode_failure(*payloads: Payload) -> ProviderError:
    with pytest.raises(ProviderError) as failed:
        decode_deltas(*payloads)
    return failed.value


def test_each_event_becomes_a_delta_as_it_arrives() -> None:
    assert decode_deltas(
        START,
        block_start(0, type="thinking", thinking="", signature=""),
        block_delta(0, type="thinking_delta", thinking="Hm", estimated_tokens=5),
        block_delta(0, type="signature_delta", signature="s1"),
        block_stop(0),
        block_start(1, type="text", text=""),
        block_delta(1, type="text_delta", text="So"),
        block_delta(1, type="text_delta", text=""),
        block_stop(1),
        block_start(2, type="tool_use", id="t", name="run", input={}),
        block_delta(2, type="input_json_delta", partial_json=""),
        block_delta(2, type="input_json_delta", partial_json='{"a"'),
        block_delta(2, type="input_json_delta", partial_json=": 1}"),
        block_stop(2),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        STOP,
    ) == [
        ReplyStarted("msg_1", "m", Usage(input=3)),
        ThinkingDelta(0, "Hm"),
        TextDelta(1, "So"),
        ToolUseStarted(2, "t", "run"),
        ToolUseDelta(2, '{"a"'),
        ToolUseDelta(2, ": 1}"),
        ReplyFinished(
            Reply(
                (Thinking("Hm", "s1"), Text("So"), ToolUse("t", "run", '{"a": 1}')),
                "tool_use",
                Usage(input=3, output=9),
                "m",
                "msg_1",
            )
        ),
    ]


def test_the_initial_content_of_a_block_becomes_a_delta_too() -> None:
    deltas = decode_deltas(START, block_start(0, type="text", text="a"), block_start(1, type="thinking", thinking="b"))
    assert deltas[1:] == [TextDelta(0, "a"), ThinkingDelta(1, "b")]


def test_unread_deltas_come_with_the_next_chunk() -> None:
    reader = anthropic.make_stream_decoder()
    reader.feed(encode_event(START))
    assert list(reader.feed(encode_event(block_start(0, type="text", text="a")))) == [
        ReplyStarted("msg_1", "m", Usage(input=3)),
        TextDelta(0, "a"),
    ]


def test_the_last_signature_wins() -> None:
    assert decode_content(
        block_start(0, type="thinking", thinking="", signature=""),
        block_delta(0, type="signature_delta", signature="s1"),
        block_delta(0, type="signature_delta", signature="s2"),
    ) == (Thinking("", "s2"),)


@pytest.mark.parametrize(
    ("parts", "arguments"),
    [
        ([], "{}"),
        ([""], "{}"),
        ([' {"a":', "1} "], ' {"a":1} '),
        (['{"a":'], '{"INVALID_JSON":"{\\"a\\":"}'),
        (["[1]"], '{"INVALID_JSON":"[1]"}'),
        (['{"a":"\\ud800"}'], '{"INVALID_JSON":"{\\"a\\":\\"\\\\ud800\\"}"}'),
        (['{"a":"' + "{" * 200 + '\\""}'], '{"a":"' + "{" * 200 + '\\""}'),
        (
            ["{" + ",".join(f'"{number}":[]' for number in range(200)) + "}"],
            "{" + ",".join(f'"{n}":[]' for n in range(200)) + "}",
        ),
        (['{"a":' * 100 + "1" + "}" * 100], '{"a":' * 100 + "1" + "}" * 100),
        (['{"a":' * 101 + "1" + "}" * 101], None),
        (['{"a":' + "[" * 100 + "]" * 100 + "}"], None),
        (['{"a":' * 2000 + "1" + "}" * 2000], None),
    ],
)
def test_arguments_are_preserved_or_wrapped_as_valid_json(parts: list[str], arguments: str | None) -> None:
    (call,) = decode_content(
        block_start(0, type="tool_use", id="t", name="run", input={}),
        *(block_delta(0, type="input_json_delta", partial_json=part) for part in parts),
    )
    assert isinstance(call, ToolUse)
    expected = json.dumps({"INVALID_JSON": parts[0]}, separators=(",", ":")) if arguments is None else arguments
    assert call.arguments_json == expected


def test_an_input_that_arrived_complete_is_preserved() -> None:
    assert decode_content(block_start(0, type="tool_use", id="t", name="run", input={"a": 1})) == (
        ToolUse("t", "run", '{"a": 1}'),
    )


def test_blocks_of_unknown_type_are_rebuilt() -> None:
    server_call = block_start(0, type="server_tool_use", id="s", name="web_search", input={})
    compaction = block_start(1, type="compaction", content=None, signature="x")
    cited = block_start(2, type="text", text="a", citations=[{"n": 1}])
    assert decode_content(
        server_call,
        block_delta(0, type="input_json_delta", partial_json='{"query": "q"}'),
        compaction,
        block_delta(1, type="compaction_delta", content="Su", encrypted_content=None, tool_changes=[1]),
        block_delta(1, type="compaction_delta", content="m", tool_changes=[2]),
        cited,
        block_delta(2, type="text_delta", text="b"),
        block_delta(2, type="citations_delta", citation={"n": 2}),
        block_start(3, type="hologram", depth=3.0),
    ) == (
        Opaque(
            "server_tool_use",
            b'{"type":"server_tool_use","id":"s","name":"web_search","input":{"query": "q"}}',
        ),
        Opaque("compaction", b'{"type":"compaction","content":"Sum","signature":"x","tool_changes":[2]}'),
        Opaque("text", b'{"type":"text","text":"ab","citations":[{"n": 1},{"n": 2}]}'),
        Opaque("hologram", b'{"type": "hologram", "depth": 3.0}'),
    )


def test_citations_may_start_empty() -> None:
    (block,) = decode_content(block_start(0, type="text", text="a"), block_delta(0, type="citations_delta", citation=5))
    assert block == Opaque("text", b'{"type":"text","text":"a","citations":[5]}')


@pytest.mark.parametrize(
    ("wire_value", "stop_reason"),
    [
        ("end_turn", "end_turn"),
        ("max_tokens", "max_tokens"),
        ("stop_sequence", "stop_sequence"),
        ("tool_use", "tool_use"),
        ("refusal", "refusal"),
        ("pause_turn", "end_turn"),
        ("compaction", "end_turn"),
        ("model_context_window_exceeded", "max_tokens"),
        ("not_yet_invented", "error"),
        (None, "error"),
    ],
)
def test_every_stop_reason_maps_to_a_known_one(wire_value: str | None, stop_reason: StopReason) -> None:
    assert (
        anthropic.decode_reply(json.dumps({"content": [], "stop_reason": wire_value}).encode()).stop_reason
        == stop_reason
    )


@pytest.mark.parametrize("reason", ["cancelled", "error"])
def test_a_stop_reason_that_is_only_ours_has_no_wire_value(reason: StopReason) -> None:
    reply = Reply((), reason, Usage(), stop_sequence="x")
    assert json.loads(anthropic.encode_reply(reply))["stop_reason"] is None
    assert json.loads(anthropic.encode_reply(reply))["stop_sequence"] is None
    assert anthropic.decode_reply(anthropic.encode_reply(reply)).stop_reason == "error"


def test_a_later_event_need_not_repeat_the_stop_reason() -> None:
    more = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 11, "input_tokens": 4}}
    finished = decode_deltas(START, END, more, {"type": "message_delta", "delta": {}}, STOP)[-1]
    assert finished == ReplyFinished(Reply((), "end_turn", Usage(input=4, output=11), "m", "msg_1"))


def test_events_after_the_end_are_ignored() -> None:
    assert decode_deltas(START, END, STOP, START, block_start(0, type="text", text="a")) == decode_deltas(
        START, END, STOP
    )


def test_an_event_without_a_name_is_identified_by_its_type() -> None:
    stream = b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in (START, {"type": "x"}, END, STOP))
    assert list(anthropic.make_stream_decoder().feed(stream)) == decode_deltas(START, END, STOP)


def test_long_text_is_streamed_in_several_deltas() -> None:
    text = "ä" * (DELTA_CHARS_MAX + 1)
    stream = b"".join(anthropic.encode_stream(Reply((Text(text),), "end_turn", Usage())))
    deltas = list(anthropic.make_stream_decoder().feed(stream))
    assert deltas[1:3] == [TextDelta(0, "ä" * DELTA_CHARS_MAX), TextDelta(0, "ä")]


def test_a_block_with_line_breaks_survives_the_stream() -> None:
    reply = Reply((Opaque("x", b'{"type":"x",\n\n  "a": 1}'),), "end_turn", Usage())
    stream = b"".join(anthropic.encode_stream(reply))
    assert list(anthropic.make_stream_decoder().feed(stream))[-1] == ReplyFinished(reply)


@pytest.mark.parametrize(
    ("name", "kind", "status"),
    [
        ("overloaded_error", "rate_limit", 529),
        ("rate_limit_error", "rate_limit", 429),
        ("api_error", "server_error", 500),
        ("authentication_error", "auth", 401),
        ("invalid_request_error", "invalid_request", 400),
        ("not_yet_invented", "server_error", 500),
    ],
)
def test_an_error_in_the_stream_is_raised_after_the_preceding_deltas(name: str, kind: FailureKind, status: int) -> None:
    failed = {"type": "error", "error": {"type": name, "message": "Overloaded"}}
    reader = anthropic.make_stream_decoder()
    deltas = reader.feed(
        encode_event(START) + encode_event(block_start(0, type="text", text="a")) + encode_event(failed)
    )
    assert [next(deltas), next(deltas)] == [ReplyStarted("msg_1", "m", Usage(input=3)), TextDelta(0, "a")]
    with pytest.raises(ProviderError, match="Overloaded") as raised:
        next(deltas)
    assert (raised.value.kind, raised.value.status) == (kind, status)
    partial = reader.partial()
    assert partial is not None
    assert partial.content == (Text("a"),)


def test_an_error_without_a_reason_is_still_raised() -> None:
    with pytest.raises(ProviderError) as raised:
        list(anthropic.make_stream_decoder().feed(b"event: error\ndata: upstream died\n\n"))
    assert (raised.value.kind, raised.value.status) == ("server_error", 500)


def test_a_non_streamed_error_is_raised() -> None:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    with pytest.raises(ProviderError, match="Overloaded") as raised:
        anthropic.decode_reply(json.dumps(body).encode())
    assert raised.value.kind == "rate_limit"


@pytest.mark.parametrize(
    ("payloads", "reason"),
    [
        ([END], "`message_delta` before `message_start`"),
        ([START, START], "a second `message_start`"),
        ([START, block_start(0, type="text", text=""), block_start(0, type="text", text="")], "block 0 starts twice"),
        ([START, block_stop(1)], "block 1 never started"),
        ([START, block_delta(2, type="text_delta", text="")], "block 2 never started"),
        (
            [START, block_start(0, type="text", text=""), block_stop(0), block_delta(0, type="text_delta", text="")],
            "block 0 grows after its end",
        ),
        ([START, block_start(0, text="")], "missing required field `type`"),
        ([START, block_start(0, type="text", text=5)], "Expected `str | null`, got `int`"),
        ([START, {**END, "usage": {"output_tokens": "many"}}], "Expected `int | null`, got `str`"),
    ],
)
def test_a_stream_out_of_order_is_a_server_failure(payloads: list[Payload], reason: str) -> None:
    failed = decode_failure(*payloads)
    assert failed.kind == "server_error"
    assert str(failed).startswith("an event of the stream cannot be read: ")
    assert reason in str(failed)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"content":5}', b'{"content":[{}]}', b'{"x":"\xff"}', b"{" * 9999])
def test_an_undecodable_reply_is_a_server_failure(body: bytes) -> None:
    with pytest.raises(ProviderError, match="the reply cannot be read") as raised:
        anthropic.decode_reply(body)
    assert str(raised.value).startswith("the reply cannot be read: ")
    assert raised.value.kind == "server_error"


def test_bytes_that_are_not_utf8_are_refused_even_in_preserved_blocks() -> None:
    reader = anthropic.make_stream_decoder()
    with pytest.raises(ProviderError, match="cannot be read: it is not UTF-8"):
        list(
            reader.feed(encode_event(START) + encode_event(block_start(0, type="y", z="x")).replace(b'"x"', b'"x\xff"'))
        )


def test_the_smallest_reply_is_decoded() -> None:
    assert anthropic.decode_reply(b'{"content":[{"type":"text","text":"hi"}]}') == Reply(
        (Text("hi"),), "error", Usage()
    )


def test_there_is_no_partial_reply_before_the_start() -> None:
    assert decode_partial() is None


def test_an_interrupted_reply_keeps_only_content_that_a_message_may_contain() -> None:
    assert decode_partial(
        START,
        block_start(0, type="thinking", thinking="a", signature="s"),
        block_start(1, type="text", text=" "),
        block_start(2, type="redacted_thinking", data="d"),
        block_start(3, type="tool_use", id="t", name="run", input={}),
        block_stop(3),
        block_start(4, type="hologram"),
        block_stop(4),
        block_start(5, type="text", text="So"),
        block_start(6, type="thinking", thinking="b"),
        block_start(7, type="tool_use", id="u", name="run", input={}),
        block_start(8, type="hologram"),
    ) == Reply(
        (
            Thinking("a", "s"),
            RedactedThinking("d"),
            ToolUse("t", "run", "{}"),
            Opaque("hologram", b'{"type": "hologram"}'),
            Text("So"),
        ),
        "cancelled",
        Usage(input=3),
        "m",
        "msg_1",
    )


def test_an_interrupted_reply_does_not_end_in_thinking() -> None:
    partial = decode_partial(
        START,
        block_start(0, type="text", text="a"),
        block_start(1, type="thinking", thinking="b", signature="s"),
        block_start(2, type="redacted_thinking", data="d"),
    )
    assert partial is not None
    assert partial.content == (Text("a"),)


def test_an_undecodable_block_is_dropped_from_the_partial_reply() -> None:
    partial = decode_partial(
        START, block_start(0, type="text", text="a"), block_start(1, type="tool_use", id="t", name="n")
    )
    assert partial is not None
    assert partial.content == (Text("a"),)
    broken = decode_partial(START, block_start(0, type="redacted_thinking", data=5))
    assert broken is not None
    assert broken.content == ()


def test_a_reply_without_its_last_event_is_still_complete() -> None:
    events = (START, block_start(0, type="text", text="a"), block_stop(0), END)
    assert decode_partial(*events) == Reply((Text("a"),), "end_turn", Usage(input=3, output=9), "m", "msg_1")
    unfinished = decode_partial(START, block_start(0, type="text", text="a"), END)
    assert unfinished is not None
    assert unfinished.stop_reason == "cancelled"
