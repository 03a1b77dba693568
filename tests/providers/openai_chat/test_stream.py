"""Decoding of chat replies: complete, streamed, interrupted and broken."""

import json

import pytest
from tests.support.chat_streams import DONE, call_delta, chunk, decode_cut_stream, decode_stream, feed_events, usage

from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.openai_chat import openai_chat
from holdfast.types.blocks import Block, Opaque, Text, Thinking, ToolUse
from holdfast.types.reply import (
    Reply,
    ReplyFinished,
    ReplyStarted,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ToolUseDelta,
    ToolUseStarted,
)
from holdfast.types.usage import TOKENS_MAX, Usage

STOP = chunk(finish_reason="stop")


def decode_whole(message: dict[str, object], finish_reason: str | None = "stop", **fields: object) -> Reply:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return openai_chat.decode_reply(json.dumps({"id": "r1", "model": "m", "choices": [choice], **fields}).encode())


def test_a_stream_is_decoded_delta_by_delta() -> None:
    events = [
        chunk({"role": "assistant", "content": ""}, usage=None),
        chunk({"content": "Let "}),
        chunk({"content": "me."}),
        chunk(call_delta(0, id="c1", type="function", name="ls", arguments="")),
        chunk(call_delta(0, arguments='{"a"')),
        chunk(call_delta(0, arguments=":1}")),
        chunk(call_delta(1, id="c2", type="function", name="pwd", arguments="")),
        chunk(finish_reason="tool_calls"),
        usage(10, 4, cached_tokens=6, cache_write_tokens=3),
        DONE,
    ]
    reply = Reply(
        (Text("Let me."), ToolUse("c1", "ls", '{"a":1}'), ToolUse("c2", "pwd", "{}")),
        "tool_use",
        Usage(input=1, cache_read=6, cache_write_other=3, output=4),
        "m",
        "r1",
    )
    assert feed_events(openai_chat, events)[1] == [
        ReplyStarted("r1", "m", Usage()),
        TextDelta(0, "Let "),
        TextDelta(0, "me."),
        ToolUseStarted(1, "c1", "ls"),
        ToolUseDelta(1, '{"a"'),
        ToolUseDelta(1, ":1}"),
        ToolUseStarted(2, "c2", "pwd"),
        ReplyFinished(reply),
    ]


def test_a_whole_reply_is_decoded_to_the_same_reply() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"a":1}'}}]
    reply = decode_whole({"content": "Let me.", "refusal": None, "tool_calls": calls}, "tool_calls")
    assert reply == Reply((Text("Let me."), ToolUse("c1", "ls", '{"a":1}')), "tool_use", Usage(), "m", "r1")


@pytest.mark.parametrize(
    ("reason", "stop_reason"),
    [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("tool_calls", "tool_use"),
        ("function_call", "tool_use"),
        ("content_filter", "refusal"),
        ("eos", "error"),
        (None, "error"),
    ],
)
def test_stop_reasons_are_translated(reason: str | None, stop_reason: StopReason) -> None:
    assert decode_whole({"content": "a"}, reason).stop_reason == stop_reason
    assert decode_stream(openai_chat, chunk({"content": "a"}, finish_reason=reason), DONE).stop_reason == stop_reason


def test_forced_calls_are_calls_although_the_reason_is_stop() -> None:
    function = {"name": "ls", "arguments": "{}"}
    assert decode_whole({"tool_calls": [{"id": "c", "function": function}]}).stop_reason == "tool_use"
    assert decode_whole({"tool_calls": [{"id": "c", "function": function}]}, "length").stop_reason == "max_tokens"


def test_a_refusal_is_text_with_its_stop_reason() -> None:
    assert decode_whole({"content": None, "refusal": "I cannot."}) == Reply(
        (Text("I cannot."),), "refusal", Usage(), "m", "r1"
    )
    streamed = decode_stream(openai_chat, chunk({"refusal": "I "}), chunk({"refusal": "cannot."}), STOP, DONE)
    assert streamed == Reply((Text("I cannot."),), "refusal", Usage(), "m", "r1")


@pytest.mark.parametrize("end", [[usage(3)], [DONE], [usage(3), DONE], [DONE, DONE], [DONE, usage(3), STOP]])
def test_a_stream_ends_once_with_its_usage_or_with_the_done_marker(end: list[bytes]) -> None:
    _, deltas = feed_events(openai_chat, [chunk({"content": "a"}), STOP, *end])
    assert [type(delta) for delta in deltas] == [ReplyStarted, TextDelta, ReplyFinished]


def test_usage_before_the_end_does_not_end_the_stream() -> None:
    early = {"prompt_tokens": 1, "completion_tokens": 1}
    late = {"prompt_tokens": 1, "completion_tokens": 2}
    reply = decode_stream(
        openai_chat,
        chunk({"content": "a"}, usage=early),
        chunk({"content": "b"}, finish_reason="stop", usage=late),
    )
    assert (reply.content, reply.usage.output) == ((Text("ab"),), 2)


def test_only_the_first_of_several_choices_is_decoded() -> None:
    choices = [
        {"index": 1, "delta": {"content": "b"}},
        {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"},
    ]
    assert decode_stream(openai_chat, chunk(choices=choices), DONE).content == (Text("a"),)


def test_an_empty_first_chunk_hides_neither_id_nor_model() -> None:
    reply = decode_stream(
        openai_chat, chunk(id="", model="", choices=[]), chunk({"content": "a"}, finish_reason="stop"), DONE
    )
    assert (reply.id, reply.model) == ("r1", "m")


def test_a_call_starts_when_its_name_is_known_and_the_name_comes_once() -> None:
    events = [
        chunk(call_delta(0, id="c", arguments='{"a":')),
        chunk(call_delta(0, name="ls", arguments="1")),
        chunk(call_delta(0, name="ls", arguments="}")),
    ]
    assert feed_events(openai_chat, events)[1][1:] == [
        ToolUseStarted(0, "c", "ls"),
        ToolUseDelta(0, '{"a":1'),
        ToolUseDelta(0, "}"),
    ]


def test_calls_without_ids_get_distinct_and_stable_ids() -> None:
    calls = [{"function": {"name": "ls", "arguments": "{}"}}, {"function": {"name": "ls", "arguments": "{}"}}]
    first, second = decode_whole({"tool_calls": calls}, "tool_calls").content
    assert isinstance(first, ToolUse)
    assert isinstance(second, ToolUse)
    assert first.id != second.id
    assert (first, second) == decode_whole({"tool_calls": calls}, "tool_calls").content
    (other, _) = openai_chat.decode_reply(
        json.dumps({"id": "r2", "choices": [{"message": {"tool_calls": calls}}]}).encode()
    ).content
    assert isinstance(other, ToolUse)
    assert other.id != first.id


def test_arguments_that_are_not_an_object_are_preserved_as_text() -> None:
    calls = [{"id": "c", "function": {"name": "ls", "arguments": "[1"}}]
    assert decode_whole({"tool_calls": calls}).content == (ToolUse("c", "ls", '{"INVALID_JSON":"[1"}'),)


def test_a_call_in_the_deprecated_form_is_a_call() -> None:
    (block,) = decode_whole({"function_call": {"name": "ls", "arguments": "{}"}}, "function_call").content
    assert isinstance(block, ToolUse)
    assert (block.name, block.arguments_json) == ("ls", "{}")


def test_a_call_of_another_type_is_preserved_whole_or_streamed() -> None:
    custom = {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    expected = Opaque("tool_calls.custom", json.dumps(custom).encode())
    assert decode_whole({"tool_calls": [custom]}, "tool_calls").content == (expected,)
    parts = [
        {"index": 0, "id": "c", "type": "custom", "custom": {"name": "sql", "input": "sel"}},
        {"index": 0, "id": None, "custom": {"input": "ect 1"}},
    ]
    (block,) = decode_stream(openai_chat, *(chunk({"tool_calls": [part]}) for part in parts), STOP, DONE).content
    assert isinstance(block, Opaque)
    assert block.kind == "tool_calls.custom"
    assert json.loads(block.raw) == custom


def test_members_with_content_are_preserved_and_others_are_not() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    reply = decode_whole(
        {"content": "a", "images": [image, image], "audio": {"id": "x"}, "annotations": [{}], "mood": "good"}
    )
    assert reply.content == (
        Text("a"),
        Opaque("message.images", b"[%b,%b]" % (json.dumps(image).encode(), json.dumps(image).encode())),
        Opaque("message.audio", b'{"id": "x"}'),
    )


def test_content_in_parts_is_decoded_like_content_in_one_text() -> None:
    strange = {"type": "chart", "x": 1}
    image = {"type": "image_url", "image_url": {"url": "https://x.example"}}
    reply = decode_whole({"content": [{"type": "text", "text": "a"}, strange, image, {"type": "text", "text": "b"}]})
    assert reply.content == (
        Text("ab"),
        Opaque("chart", json.dumps(strange).encode()),
        Opaque("image_url", json.dumps(image).encode()),
    )


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_plain_text_reasoning_is_thinking(name: str) -> None:
    _, deltas = feed_events(openai_chat, [chunk({name: "hm"}), chunk({name: "m"}), chunk({"content": "a"}), STOP, DONE])
    assert deltas[1:3] == [ThinkingDelta(0, "hm"), ThinkingDelta(0, "m")]
    assert isinstance(deltas[-1], ReplyFinished)
    assert deltas[-1].reply.content == (Thinking("hmm"), Text("a"))


@pytest.mark.parametrize(
    ("events", "content"),
    [
        ([chunk({"content": "a"})], (Text("a"),)),
        ([chunk({"content": " \n"})], ()),
        ([chunk(call_delta(0, id="c", name="ls", arguments='{"a":'))], ()),
        ([chunk(call_delta(0, id="c", name="ls", arguments=""))], ()),
        ([chunk(call_delta(0, id="c", arguments="{}"))], ()),
        (
            [
                chunk(call_delta(0, id="c", name="ls", arguments='{"a":1}')),
                chunk(call_delta(1, id="d", name="ls", arguments="{")),
            ],
            (ToolUse("c", "ls", '{"a":1}'),),
        ),
        ([chunk({"reasoning": "hm"})], ()),
        ([chunk({"reasoning": "hm"}), chunk({"content": "a"})], (Text("a"),)),
        ([chunk({"tool_calls": [{"index": 0, "type": "custom", "custom": {"input": "x"}}]})], ()),
    ],
)
def test_an_interrupted_stream_leaves_a_valid_message(events: list[bytes], content: tuple[Block, ...]) -> None:
    assert decode_cut_stream(openai_chat, *events) == Reply(content, "cancelled", Usage(), "m", "r1")
    assert decode_stream(openai_chat, *events, DONE) == Reply(content, "error", Usage(), "m", "r1")


def test_a_stream_that_lacks_only_its_usage_is_complete() -> None:
    partial = decode_cut_stream(openai_chat, chunk({"content": "a"}), chunk(call_delta(0, id="c", name="ls")), STOP)
    assert partial == Reply((Text("a"), ToolUse("c", "ls", "{}")), "tool_use", Usage(), "m", "r1")


def test_a_complete_stream_drops_only_the_call_without_a_name() -> None:
    partial = decode_cut_stream(
        openai_chat, chunk({"content": "a"}), chunk(call_delta(0, id="c", arguments="{}")), STOP
    )
    assert partial == Reply((Text("a"),), "cancelled", Usage(), "m", "r1")


def test_there_is_no_partial_reply_before_the_first_chunk() -> None:
    assert decode_cut_stream(openai_chat, b": waiting\n\n") is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}}, "rate_limit"),
        ({"error": {"message": "oops", "type": "server_error", "code": None}}, "server_error"),
        ({"error": {"message": "paid?", "code": "insufficient_quota"}}, "other"),
        ({"error": {"message": "slow down", "code": 429}, "choices": []}, "rate_limit"),
        ({"object": "error", "message": "bad", "code": 400}, "invalid_request"),
        ({"choices": [{"error": {"code": 502, "message": "upstream"}, "finish_reason": "error"}]}, "server_error"),
    ],
)
def test_an_error_in_a_successful_response_is_raised(error: dict[str, object], kind: FailureKind) -> None:
    body = json.dumps(error).encode()
    with pytest.raises(ProviderError) as raised:
        feed_events(openai_chat, [chunk({"content": "a"}), b"event: error\ndata: " + body + b"\n\n"])
    assert raised.value.kind == kind
    with pytest.raises(ProviderError) as raised:
        openai_chat.decode_reply(body)
    assert raised.value.kind == kind


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"choices":[]}',
        b'{"choices":[{"index":1,"message":{"content":"a"}}]}',
        b'{"choices":[{"message":{"content":5}}]}',
        b'{"choices":[{"message":{"content":"\\ud800"}}]}',
        b'{"choices":[{"message":{"content":[5]}}]}',
        b'{"choices":[{"message":{"tool_calls":[5]}}]}',
        b'{"choices":[{"message":{"tool_calls":[{"id":"c"}]}}]}',
        b'{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":{}}}]}}]}',
        b'{"choices":[{"message":{}}],"usage":{"prompt_tokens":"many"}}',
        b'{"choices":[{"message":{"audio":"\xff"}}]}',
        b'{"choices":[{"message":{"audio":5}}]}',
        b'{"choices":[{"message":{"audio":' + b'{"a":' * 9999 + b"1" + b"}" * 9999 + b"}}]}",
    ],
)
def test_an_undecodable_reply_is_the_providers_failure_in_one_line(body: bytes) -> None:
    with pytest.raises(ProviderError) as raised:
        openai_chat.decode_reply(body)
    assert raised.value.kind == "server_error"
    assert str(raised.value).startswith("the reply cannot be read: ")
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("event", [DONE, b"data: {\n\n", b"data: \xff\n\n", b'data: {"id":5}\n\n'])
def test_an_undecodable_event_is_the_providers_failure(event: bytes) -> None:
    with pytest.raises(ProviderError, match="an event of the stream cannot be read: "):
        feed_events(openai_chat, [event])


def test_counters_of_any_size_and_sign_are_decoded() -> None:
    reply = decode_whole({}, usage={"prompt_tokens": -5, "completion_tokens": 10**30, "prompt_tokens_details": None})
    assert reply.usage == Usage(output=TOKENS_MAX)


def test_several_texts_are_encoded_as_paragraphs_of_one() -> None:
    reply = Reply((Text("a"), Thinking("hm"), Text("b"), Opaque("chart", b"{}")), "stop_sequence", Usage(), "m", "r1")
    joined = Reply((Text("a\n\nb"),), "end_turn", Usage(), "m", "r1")
    assert openai_chat.decode_reply(openai_chat.encode_reply(reply)) == joined
    assert decode_stream(openai_chat, *openai_chat.encode_stream(reply)) == joined


@pytest.mark.parametrize("stop_reason", ["cancelled", "error"])
def test_a_failed_reply_has_no_stop_reason_on_the_wire(stop_reason: StopReason) -> None:
    reply = Reply((Text("a"),), stop_reason, Usage(), "m", "r1")
    assert openai_chat.decode_reply(openai_chat.encode_reply(reply)).stop_reason == "error"
    assert decode_stream(openai_chat, *openai_chat.encode_stream(reply)).stop_reason == "error"
