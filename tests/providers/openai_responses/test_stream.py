"""Decoding of Responses API replies: while they stream, complete, and interrupted."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.openai_responses import openai_responses
from holdfast.providers.openai_responses.items import make_signature
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

START: Payload = {"type": "response.created", "response": {"id": "resp_1", "model": "gpt", "status": "in_progress"}}
END: Payload = {"type": "response.completed", "response": {"status": "completed", "usage": {"output_tokens": 9}}}
SIGNED = make_signature("gAAA", "rs_1", ["a"])
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "a"}],
    "encrypted_content": "gAAA",
}


def encode_event(payload: Payload, name: str | None = None) -> bytes:
    named = payload["type"] if name is None else name
    return (f"event: {named}\n" if named else "").encode() + f"data: {json.dumps(payload)}\n\n".encode()


def item_added(index: int, **item: object) -> Payload:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def item_done(index: int, **item: object) -> Payload:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def item_delta(kind: str, index: int, delta: str, **at: int) -> Payload:
    return {"type": f"response.{kind}.delta", "output_index": index, "delta": delta, **at}


def text_item(*texts: str) -> dict[str, object]:
    return {"type": "message", "content": [{"type": "output_text", "text": text} for text in texts]}


def call_item(arguments: str = "{}", **members: object) -> dict[str, object]:
    return {"type": "function_call", "call_id": "c", "name": "t", "arguments": arguments, **members}


def decode_deltas(*payloads: Payload) -> list[Delta]:
    return list(openai_responses.make_stream_decoder().feed(b"".join(map(encode_event, payloads))))


def decode_streamed(*payloads: Payload, end: Payload = END) -> Reply:
    finished = decode_deltas(START, *payloads, end)[-1]
    assert isinstance(finished, ReplyFinished)
    return finished.reply


def decode_partial(*payloads: Payload) -> Reply | None:
    reader = openai_responses.make_stream_decoder()
    list(reader.feed(b"".join(map(encode_event, payloads))))
    return reader.partial()


def partial_content(*payloads: Payload) -> tuple[Block, ...]:
    partial = decode_partial(START, *payloads)
    assert partial is not None
    assert partial.stop_reason == "cancelled"
    return partial.content


def decode_whole(**members: Any) -> Reply:
    return openai_responses.decode_reply(json.dumps(members).encode())


def decode_failure(*payloads: Payload) -> ProviderError:
    with pytest.raises(ProviderError) as failed:
        decode_deltas(*payloads)
    assert len(str(failed.value).splitlines()) == 1
    return failed.value


# While it streams


def test_every_kind_of_delta_is_decoded_as_it_arrives() -> None:
    assert decode_deltas(
        START,
        {"type": "response.in_progress", "response": {}},
        item_added(0, type="reasoning", summary=[]),
        item_delta("reasoning_summary_text", 0, "a", summary_index=0),
        item_delta("reasoning_summary_text", 0, "b", summary_index=0),
        item_delta("reasoning_summary_text", 0, "c", summary_index=1),
        item_done(0, **REASONING),
        item_added(1, type="message", content=[]),
        item_delta("output_text", 1, "d", content_index=0),
        item_delta("output_text", 1, "", content_index=0),
        item_delta("refusal", 1, "e", content_index=1),
        item_done(1, **text_item("d", "e")),
        item_added(2, **call_item("")),
        item_delta("function_call_arguments", 2, "{}"),
        item_delta("function_call_arguments", 2, ""),
        item_done(2, **call_item()),
        END,
    ) == [
        ReplyStarted("resp_1", "gpt", Usage()),
        ThinkingDelta(0, "a"),
        ThinkingDelta(0, "b"),
        ThinkingDelta(0, "\n\nc"),
        TextDelta(1, "d"),
        TextDelta(2, "e"),
        ToolUseStarted(3, "c", "t"),
        ToolUseDelta(3, "{}"),
        ReplyFinished(
            Reply(
                (Thinking("a", SIGNED), Text("d"), Text("e"), ToolUse("c", "t", "{}")),
                "tool_use",
                Usage(output=9),
                "gpt",
                "resp_1",
            )
        ),
    ]


def test_the_final_form_of_an_item_wins() -> None:
    reply = decode_streamed(
        item_added(0, type="message"),
        item_delta("output_text", 0, "draft", content_index=0),
        item_done(0, **text_item("final")),
    )
    assert reply.content == (Text("final"),)


def test_an_item_that_arrives_at_once_is_one_delta() -> None:
    deltas = decode_deltas(
        START,
        item_done(0, **REASONING),
        item_done(1, **text_item("b", "")),
        item_done(2, **call_item('{"x":1}')),
        item_done(3, type="web_search_call"),
    )
    assert deltas[1:] == [
        ThinkingDelta(0, "a"),
        TextDelta(1, "b"),
        ToolUseStarted(2, "c", "t"),
        ToolUseDelta(2, '{"x":1}'),
    ]


def test_items_that_only_the_last_event_has_are_taken_from_it() -> None:
    end = {"type": "response.completed", "response": {"output": [text_item("a"), text_item("b"), text_item("c")]}}
    deltas = decode_deltas(START, item_done(0, **text_item("kept")), item_added(1, type="message"), end)
    assert deltas[1:3] == [TextDelta(0, "kept"), TextDelta(1, "c")]
    assert isinstance(deltas[-1], ReplyFinished)
    assert deltas[-1].reply.content == (Text("kept"), Text("b"), Text("c"))


def test_an_item_without_a_final_form_is_the_sum_of_its_deltas() -> None:
    assert decode_streamed(
        item_added(0, type="reasoning", encrypted_content="half"),
        item_delta("reasoning_summary_text", 0, "b", summary_index=1),
        item_delta("reasoning_summary_text", 0, "a", summary_index=0),
        item_added(1, type="message"),
        item_delta("output_text", 1, "c", content_index=0),
        item_added(2, **call_item("")),
        item_delta("function_call_arguments", 2, '{"x":'),
        item_added(3, type="web_search_call", id="ws"),
    ).content == (
        Thinking("a\n\nb"),
        Text("c"),
        ToolUse("c", "t", '{"INVALID_JSON":"{\\"x\\":"}'),
        Opaque("web_search_call", b'{"type": "web_search_call", "id": "ws"}'),
    )


def test_items_are_ordered_by_their_index() -> None:
    assert decode_streamed(item_done(1, **text_item("b")), item_done(0, **text_item("a"))).content == (
        Text("a"),
        Text("b"),
    )


def test_unnamed_and_unknown_events_are_tolerated() -> None:
    unknown: Payload = {"type": "response.not_yet_invented", "delta": {"x": 1}}
    body = b"".join(encode_event(payload, "") for payload in (START, unknown, item_done(0, **text_item("a")), END))
    deltas = list(openai_responses.make_stream_decoder().feed(body))
    assert [type(delta) for delta in deltas] == [ReplyStarted, TextDelta, ReplyFinished]


def test_a_delta_of_another_kind_than_its_item_is_ignored() -> None:
    deltas = decode_deltas(
        START,
        item_added(0, type="web_search_call"),
        item_delta("output_text", 0, "a", content_index=0),
        item_delta("function_call_arguments", 0, "a"),
    )
    assert len(deltas) == 1


def test_there_are_no_deltas_after_the_end() -> None:
    reader = openai_responses.make_stream_decoder()
    deltas = list(reader.feed(b"".join(map(encode_event, (START, END, START, END)))))
    assert [type(delta) for delta in deltas] == [ReplyStarted, ReplyFinished]
    assert reader.partial() == Reply((), "end_turn", Usage(output=9), "gpt", "resp_1")


@pytest.mark.parametrize(
    "payloads",
    [
        (END,),
        (START, START),
        (START, item_added(0, type="message"), item_added(0, type="message")),
        (START, item_delta("output_text", 0, "a", content_index=0)),
        (START, item_delta("function_call_arguments", 0, "a")),
        (START, item_done(0, **text_item("a")), item_delta("output_text", 0, "a", content_index=0)),
        (START, item_done(0, **text_item("a")), item_done(0, **text_item("a"))),
        (START, item_added(0, type="function_call", name="t")),
        (START, item_added(0)),
        (START, item_done(0, type="message", content="secret")),
        (START, item_done(0, type="message", content=[{"type": "refusal"}])),
        (START, {"type": "response.output_text.delta", "delta": 1}),
        (START, {"type": "response.completed", "response": {"usage": {"input_tokens": "secret"}}}),
    ],
)
def test_a_contradictory_stream_is_the_providers_failure(payloads: tuple[Payload, ...]) -> None:
    failure = decode_failure(*payloads)
    assert failure.kind == "server_error"
    assert "an event of the stream cannot be read" in str(failure)
    assert "secret" not in str(failure)


# How it ends


@pytest.mark.parametrize(
    ("fields", "item", "stop_reason"),
    [
        ({"status": "completed"}, text_item("a"), "end_turn"),
        ({"status": "completed"}, call_item(), "tool_use"),
        ({"status": "completed"}, {"type": "message", "content": [{"type": "refusal", "refusal": "a"}]}, "refusal"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, call_item(), "max_tokens"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, text_item("a"), "refusal"),
        ({"status": "incomplete", "incomplete_details": {"reason": "steered"}}, text_item("a"), "error"),
        ({"status": "incomplete", "incomplete_details": None}, text_item("a"), "error"),
        ({"status": "cancelled"}, text_item("a"), "cancelled"),
        ({"status": "in_progress"}, text_item("a"), "error"),
        ({}, text_item("a"), "end_turn"),
    ],
)
def test_the_stop_reason_is_derived_from_status_and_items(
    fields: dict[str, Any], item: dict[str, Any], stop_reason: StopReason
) -> None:
    reply = decode_whole(id="r", model="m", output=[item], **fields)
    assert reply.stop_reason == stop_reason
    end: Payload = {"type": "response.completed", "response": fields}
    assert decode_streamed(item_done(0, **item), end=end).stop_reason == stop_reason
    assert reply.content == (ToolUse("c", "t", "{}") if item["type"] == "function_call" else Text("a"),)


def test_an_end_without_status_is_identified_by_its_event() -> None:
    assert decode_streamed(end={"type": "response.incomplete", "response": {}}).stop_reason == "error"
    assert decode_streamed(end={"type": "response.completed", "response": {}}).stop_reason == "end_turn"


def test_a_body_that_is_not_a_response_is_an_error() -> None:
    assert decode_whole().stop_reason == "error"


@pytest.mark.parametrize(
    ("code", "kind"),
    [("rate_limit_exceeded", "rate_limit"), ("server_error", "server_error"), ("invalid_prompt", "invalid_request")],
)
def test_a_failed_response_is_a_failure(code: str, kind: FailureKind) -> None:
    fault = {"code": code, "message": "it went wrong"}
    failed: Payload = {"type": "response.failed", "response": {"status": "failed", "output": [], "error": fault}}
    failure = decode_failure(START, failed)
    assert (failure.kind, str(failure)) == (kind, "it went wrong")
    for members in ({"status": "failed", "output": [], "error": fault}, {"error": fault}):
        with pytest.raises(ProviderError, match="it went wrong") as refused:
            decode_whole(**members)
        assert refused.value.kind == kind


def test_an_error_event_is_a_failure() -> None:
    failure = decode_failure(START, {"type": "error", "code": "rate_limit_exceeded", "message": "slow down"})
    assert (failure.kind, str(failure)) == ("rate_limit", "slow down")
    assert decode_failure(START, {"type": "response.failed"}).kind == "server_error"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"\xff", b'{"output":[1]}', b'{"output":[{"type":"message"', b'{"id":"\\ud800"}']
)
def test_bytes_that_are_not_a_reply_are_the_providers_failure(body: bytes) -> None:
    with pytest.raises(ProviderError, match="the reply cannot be read") as failed:
        openai_responses.decode_reply(body)
    assert failed.value.kind == "server_error"


# Items


@pytest.mark.parametrize(
    ("item", "block"),
    [
        ({**REASONING, "status": "completed", "content": []}, Thinking("a", SIGNED)),
        ({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}, Thinking("")),
        (call_item(" "), ToolUse("c", "t", "{}")),
        (call_item('{"a": 1}', id="fc", status="completed"), ToolUse("c", "t", '{"a": 1}')),
        ({**text_item("a"), "phase": "final_answer", "id": "m", "role": "assistant"}, Text("a")),
    ],
)
def test_an_item_is_decoded(item: dict[str, Any], block: Block) -> None:
    assert decode_whole(output=[item]).content == (block,)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "compaction", "encrypted_content": "x"},
        call_item(namespace="n"),
        {**REASONING, "content": [{"type": "reasoning_text", "text": "x"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "a"}, {"type": "not_yet_invented"}]},
    ],
)
def test_an_item_with_unknown_members_is_preserved(item: dict[str, Any]) -> None:
    assert decode_whole(output=[item]).content == (Opaque(item["type"], json.dumps(item).encode()),)


def test_text_with_citations_is_preserved() -> None:
    cited = {"type": "output_text", "text": "a", "annotations": [{"type": "url_citation"}]}
    assert decode_whole(output=[{"type": "message", "content": [cited]}]).content == (
        Opaque("output_text", json.dumps(cited).encode()),
    )


# Interrupted streams


def test_an_interrupted_stream_leaves_a_valid_message() -> None:
    assert decode_partial() is None
    assert partial_content() == ()
    assert partial_content(item_done(0, **text_item("a", " ", "b"))) == (Text("a"), Text("b"))
    half = (item_added(0, type="message"), item_delta("output_text", 0, "a", content_index=0))
    assert partial_content(*half) == (Text("a"),)
    assert partial_content(*half, item_added(1, **call_item("")), item_delta("function_call_arguments", 1, "{}")) == (
        Text("a"),
    )
    assert partial_content(*half, item_done(1, **call_item())) == (Text("a"), ToolUse("c", "t", "{}"))
    assert partial_content(*half, item_added(1, type="web_search_call")) == (Text("a"),)
    assert partial_content(*half, item_done(1, type="web_search_call")) == (
        Text("a"),
        Opaque("web_search_call", b'{"type": "web_search_call"}'),
    )


def test_an_interrupted_stream_does_not_end_in_reasoning() -> None:
    assert partial_content(item_done(0, **REASONING)) == ()
    assert partial_content(item_done(0, **REASONING), item_done(1, **REASONING), item_added(2, **call_item())) == ()
    assert partial_content(item_done(0, **REASONING), item_done(1, **text_item("b"))) == (
        Thinking("a", SIGNED),
        Text("b"),
    )
    unsigned = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]}
    assert partial_content(item_done(0, **unsigned), item_done(1, **text_item("b"))) == (Text("b"),)
    growing = (item_added(0, type="reasoning"), item_delta("reasoning_summary_text", 0, "a", summary_index=0))
    assert partial_content(*growing, item_done(1, **text_item("b"))) == (Text("b"),)


# Encoding


def test_blocks_without_a_reply_form_are_omitted() -> None:
    reply = Reply((RedactedThinking("x"), Text("a")), "stop_sequence", Usage(), "m", "r")
    read = openai_responses.decode_reply(openai_responses.encode_reply(reply))
    assert (read.content, read.stop_reason) == ((Text("a"),), "end_turn")


def test_text_with_citations_is_encoded_in_the_surrounding_message() -> None:
    cited = Opaque("output_text", b'{"type":"output_text","text":"b","annotations":[{"type":"url_citation"}]}')
    reply = Reply((Text("a"), cited), "end_turn", Usage(), "m", "r")
    events = list(openai_responses.encode_stream(reply))
    assert sum(b"event: response.output_item.added\n" in encode_event for encode_event in events) == 1
    assert sum(b"event: response.content_part.added\n" in encode_event for encode_event in events) == 2
    deltas = list(openai_responses.make_stream_decoder().feed(b"".join(events)))
    assert deltas[-1] == ReplyFinished(reply)


@pytest.mark.parametrize("stop_reason", ["cancelled", "error"])
def test_an_unsuccessful_reply_is_not_encoded_as_a_successful_one(stop_reason: StopReason) -> None:
    reply = Reply((Text("a"),), stop_reason, Usage(), "m", "r")
    assert openai_responses.decode_reply(openai_responses.encode_reply(reply)) == reply
    deltas = list(openai_responses.make_stream_decoder().feed(b"".join(openai_responses.encode_stream(reply))))
    assert deltas[-1] == ReplyFinished(reply)


def test_a_reply_reports_cache_reads_and_writes_in_its_usage() -> None:
    usage = Usage(input=1, cache_read=2, cache_write_5m=3, cache_write_other=4, output=5)
    body = json.loads(openai_responses.encode_reply(Reply((), "end_turn", usage)))
    assert body["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 7},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 15,
    }
    assert body["created_at"] == 0
