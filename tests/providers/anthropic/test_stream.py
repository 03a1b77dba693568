"""What a reply of Anthropic's says while it arrives, when it is whole, and when it breaks off."""

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

Told = Mapping[str, object]

START: Told = {"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": {"input_tokens": 3}}}
END: Told = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}}
STOP: Told = {"type": "message_stop"}


def event(told: Told, name: str = "") -> bytes:
    return f"event: {name or told['type']}\ndata: {json.dumps(told)}\n\n".encode()


def opened(index: int, **block: object) -> Told:
    return {"type": "content_block_start", "index": index, "content_block": block}


def grown(index: int, **delta: object) -> Told:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def stopped(index: int) -> Told:
    return {"type": "content_block_stop", "index": index}


def deltas_of(*told: Told) -> list[Delta]:
    return list(anthropic.make_stream_decoder().feed(b"".join(map(event, told))))


def content_of(*told: Told) -> tuple[Block, ...]:
    finished = deltas_of(START, *told, END, STOP)[-1]
    assert isinstance(finished, ReplyFinished)
    return finished.reply.content


def partial_of(*told: Told) -> Reply | None:
    reader = anthropic.make_stream_decoder()
    list(reader.feed(b"".join(map(event, told))))
    return reader.partial()


def failure_of(*told: Told) -> ProviderError:
    with pytest.raises(ProviderError) as failed:
        deltas_of(*told)
    return failed.value


def test_each_event_is_told_as_it_comes() -> None:
    assert deltas_of(
        START,
        opened(0, type="thinking", thinking="", signature=""),
        grown(0, type="thinking_delta", thinking="Hm", estimated_tokens=5),
        grown(0, type="signature_delta", signature="s1"),
        stopped(0),
        opened(1, type="text", text=""),
        grown(1, type="text_delta", text="So"),
        grown(1, type="text_delta", text=""),
        stopped(1),
        opened(2, type="tool_use", id="t", name="run", input={}),
        grown(2, type="input_json_delta", partial_json=""),
        grown(2, type="input_json_delta", partial_json='{"a"'),
        grown(2, type="input_json_delta", partial_json=": 1}"),
        stopped(2),
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


def test_what_a_block_starts_with_is_told_too() -> None:
    told = deltas_of(START, opened(0, type="text", text="a"), opened(1, type="thinking", thinking="b"))
    assert told[1:] == [TextDelta(0, "a"), ThinkingDelta(1, "b")]


def test_deltas_that_nobody_asked_for_come_with_the_next_chunk() -> None:
    reader = anthropic.make_stream_decoder()
    reader.feed(event(START))
    assert list(reader.feed(event(opened(0, type="text", text="a")))) == [
        ReplyStarted("msg_1", "m", Usage(input=3)),
        TextDelta(0, "a"),
    ]


def test_the_last_signature_counts() -> None:
    assert content_of(
        opened(0, type="thinking", thinking="", signature=""),
        grown(0, type="signature_delta", signature="s1"),
        grown(0, type="signature_delta", signature="s2"),
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
def test_arguments_are_kept_or_made_legal(parts: list[str], arguments: str | None) -> None:
    (call,) = content_of(
        opened(0, type="tool_use", id="t", name="run", input={}),
        *(grown(0, type="input_json_delta", partial_json=part) for part in parts),
    )
    assert isinstance(call, ToolUse)
    wanted = json.dumps({"INVALID_JSON": parts[0]}, separators=(",", ":")) if arguments is None else arguments
    assert call.arguments_json == wanted


def test_an_input_that_came_whole_is_kept() -> None:
    assert content_of(opened(0, type="tool_use", id="t", name="run", input={"a": 1})) == (
        ToolUse("t", "run", '{"a": 1}'),
    )


def test_blocks_of_unknown_type_are_rebuilt() -> None:
    server_call = opened(0, type="server_tool_use", id="s", name="web_search", input={})
    compaction = opened(1, type="compaction", content=None, signature="x")
    cited = opened(2, type="text", text="a", citations=[{"n": 1}])
    assert content_of(
        server_call,
        grown(0, type="input_json_delta", partial_json='{"query": "q"}'),
        compaction,
        grown(1, type="compaction_delta", content="Su", encrypted_content=None, tool_changes=[1]),
        grown(1, type="compaction_delta", content="m", tool_changes=[2]),
        cited,
        grown(2, type="text_delta", text="b"),
        grown(2, type="citations_delta", citation={"n": 2}),
        opened(3, type="hologram", depth=3.0),
    ) == (
        Opaque(
            "server_tool_use",
            b'{"type":"server_tool_use","id":"s","name":"web_search","input":{"query": "q"}}',
        ),
        Opaque("compaction", b'{"type":"compaction","content":"Sum","signature":"x","tool_changes":[2]}'),
        Opaque("text", b'{"type":"text","text":"ab","citations":[{"n": 1},{"n": 2}]}'),
        Opaque("hologram", b'{"type": "hologram", "depth": 3.0}'),
    )


def test_citations_may_start_from_nothing() -> None:
    (block,) = content_of(opened(0, type="text", text="a"), grown(0, type="citations_delta", citation=5))
    assert block == Opaque("text", b'{"type":"text","text":"a","citations":[5]}')


@pytest.mark.parametrize(
    ("said", "meant"),
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
def test_every_stop_reason_is_one_of_the_known(said: str | None, meant: StopReason) -> None:
    assert anthropic.decode_reply(json.dumps({"content": [], "stop_reason": said}).encode()).stop_reason == meant


@pytest.mark.parametrize("reason", ["cancelled", "error"])
def test_a_reason_that_is_only_ours_has_no_word_on_the_wire(reason: StopReason) -> None:
    reply = Reply((), reason, Usage(), stop_sequence="x")
    assert json.loads(anthropic.encode_reply(reply))["stop_reason"] is None
    assert json.loads(anthropic.encode_reply(reply))["stop_sequence"] is None
    assert anthropic.decode_reply(anthropic.encode_reply(reply)).stop_reason == "error"


def test_a_later_event_need_not_repeat_the_reason() -> None:
    more = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 11, "input_tokens": 4}}
    finished = deltas_of(START, END, more, {"type": "message_delta", "delta": {}}, STOP)[-1]
    assert finished == ReplyFinished(Reply((), "end_turn", Usage(input=4, output=11), "m", "msg_1"))


def test_nothing_counts_behind_the_end() -> None:
    assert deltas_of(START, END, STOP, START, opened(0, type="text", text="a")) == deltas_of(START, END, STOP)


def test_an_event_without_a_name_is_told_by_its_type() -> None:
    told = b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in (START, {"type": "x"}, END, STOP))
    assert list(anthropic.make_stream_decoder().feed(told)) == deltas_of(START, END, STOP)


def test_long_text_is_streamed_in_parts() -> None:
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
def test_an_error_in_the_middle_is_raised_behind_what_came_before(name: str, kind: FailureKind, status: int) -> None:
    failed = {"type": "error", "error": {"type": name, "message": "Overloaded"}}
    reader = anthropic.make_stream_decoder()
    deltas = reader.feed(event(START) + event(opened(0, type="text", text="a")) + event(failed))
    assert [next(deltas), next(deltas)] == [ReplyStarted("msg_1", "m", Usage(input=3)), TextDelta(0, "a")]
    with pytest.raises(ProviderError, match="Overloaded") as raised:
        next(deltas)
    assert (raised.value.kind, raised.value.status) == (kind, status)
    partial = reader.partial()
    assert partial is not None
    assert partial.content == (Text("a"),)


def test_an_error_without_a_reason_is_still_one() -> None:
    with pytest.raises(ProviderError) as raised:
        list(anthropic.make_stream_decoder().feed(b"event: error\ndata: upstream died\n\n"))
    assert (raised.value.kind, raised.value.status) == ("server_error", 500)


def test_a_whole_reply_that_is_an_error_is_raised() -> None:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    with pytest.raises(ProviderError, match="Overloaded") as raised:
        anthropic.decode_reply(json.dumps(body).encode())
    assert raised.value.kind == "rate_limit"


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ([END], "`message_delta` before `message_start`"),
        ([START, START], "a second `message_start`"),
        ([START, opened(0, type="text", text=""), opened(0, type="text", text="")], "block 0 starts twice"),
        ([START, stopped(1)], "block 1 never started"),
        ([START, grown(2, type="text_delta", text="")], "block 2 never started"),
        (
            [START, opened(0, type="text", text=""), stopped(0), grown(0, type="text_delta", text="")],
            "block 0 grows after its end",
        ),
        ([START, opened(0, text="")], "missing required field `type`"),
        ([START, opened(0, type="text", text=5)], "Expected `str | null`, got `int`"),
        ([START, {**END, "usage": {"output_tokens": "many"}}], "Expected `int | null`, got `str`"),
    ],
)
def test_a_stream_out_of_order_is_a_failure_of_the_server(told: list[Told], reason: str) -> None:
    failed = failure_of(*told)
    assert failed.kind == "server_error"
    assert str(failed).startswith("an event of the stream cannot be read: ")
    assert reason in str(failed)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"content":5}', b'{"content":[{}]}', b'{"x":"\xff"}', b"{" * 9999])
def test_a_reply_that_cannot_be_read_is_a_failure_of_the_server(body: bytes) -> None:
    with pytest.raises(ProviderError, match="the reply cannot be read") as raised:
        anthropic.decode_reply(body)
    assert str(raised.value).startswith("the reply cannot be read: ")
    assert raised.value.kind == "server_error"


def test_bytes_that_are_no_text_are_refused_even_where_they_would_be_kept() -> None:
    reader = anthropic.make_stream_decoder()
    with pytest.raises(ProviderError, match="cannot be read: it is not UTF-8"):
        list(reader.feed(event(START) + event(opened(0, type="y", z="x")).replace(b'"x"', b'"x\xff"')))


def test_the_smallest_reply_is_read() -> None:
    assert anthropic.decode_reply(b'{"content":[{"type":"text","text":"hi"}]}') == Reply(
        (Text("hi"),), "error", Usage()
    )


def test_nothing_has_arrived_before_the_start() -> None:
    assert partial_of() is None


def test_a_reply_that_breaks_off_keeps_what_can_stand_in_a_message() -> None:
    assert partial_of(
        START,
        opened(0, type="thinking", thinking="a", signature="s"),
        opened(1, type="text", text=" "),
        opened(2, type="redacted_thinking", data="d"),
        opened(3, type="tool_use", id="t", name="run", input={}),
        stopped(3),
        opened(4, type="hologram"),
        stopped(4),
        opened(5, type="text", text="So"),
        opened(6, type="thinking", thinking="b"),
        opened(7, type="tool_use", id="u", name="run", input={}),
        opened(8, type="hologram"),
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


def test_a_reply_that_breaks_off_does_not_end_in_thinking() -> None:
    partial = partial_of(
        START,
        opened(0, type="text", text="a"),
        opened(1, type="thinking", thinking="b", signature="s"),
        opened(2, type="redacted_thinking", data="d"),
    )
    assert partial is not None
    assert partial.content == (Text("a"),)


def test_a_block_that_cannot_be_read_is_left_out_of_what_arrived() -> None:
    partial = partial_of(START, opened(0, type="text", text="a"), opened(1, type="tool_use", id="t", name="n"))
    assert partial is not None
    assert partial.content == (Text("a"),)
    broken = partial_of(START, opened(0, type="redacted_thinking", data=5))
    assert broken is not None
    assert broken.content == ()


def test_only_the_last_event_missing_is_still_a_whole_reply() -> None:
    whole = (START, opened(0, type="text", text="a"), stopped(0), END)
    assert partial_of(*whole) == Reply((Text("a"),), "end_turn", Usage(input=3, output=9), "m", "msg_1")
    unfinished = partial_of(START, opened(0, type="text", text="a"), END)
    assert unfinished is not None
    assert unfinished.stop_reason == "cancelled"
