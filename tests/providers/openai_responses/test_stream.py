"""What a reply of OpenAI's Responses API says while it arrives, when it is whole, and when it breaks off."""

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

Told = Mapping[str, object]

START: Told = {"type": "response.created", "response": {"id": "resp_1", "model": "gpt", "status": "in_progress"}}
END: Told = {"type": "response.completed", "response": {"status": "completed", "usage": {"output_tokens": 9}}}
SIGNED = make_signature("gAAA", "rs_1", ["a"])
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "a"}],
    "encrypted_content": "gAAA",
}


def event(told: Told, name: str | None = None) -> bytes:
    named = told["type"] if name is None else name
    return (f"event: {named}\n" if named else "").encode() + f"data: {json.dumps(told)}\n\n".encode()


def added(index: int, **item: object) -> Told:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: int, **item: object) -> Told:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def grown(kind: str, index: int, delta: str, **at: int) -> Told:
    return {"type": f"response.{kind}.delta", "output_index": index, "delta": delta, **at}


def text_item(*texts: str) -> dict[str, object]:
    return {"type": "message", "content": [{"type": "output_text", "text": text} for text in texts]}


def call_item(arguments: str = "{}", **members: object) -> dict[str, object]:
    return {"type": "function_call", "call_id": "c", "name": "t", "arguments": arguments, **members}


def deltas_of(*told: Told) -> list[Delta]:
    return list(openai_responses.make_stream_decoder().feed(b"".join(map(event, told))))


def reply_of(*told: Told, end: Told = END) -> Reply:
    finished = deltas_of(START, *told, end)[-1]
    assert isinstance(finished, ReplyFinished)
    return finished.reply


def partial_of(*told: Told) -> Reply | None:
    reader = openai_responses.make_stream_decoder()
    list(reader.feed(b"".join(map(event, told))))
    return reader.partial()


def salvaged(*told: Told) -> tuple[Block, ...]:
    partial = partial_of(START, *told)
    assert partial is not None
    assert partial.stop_reason == "cancelled"
    return partial.content


def whole(**members: Any) -> Reply:
    return openai_responses.decode_reply(json.dumps(members).encode())


def failure_of(*told: Told) -> ProviderError:
    with pytest.raises(ProviderError) as failed:
        deltas_of(*told)
    assert len(str(failed.value).splitlines()) == 1
    return failed.value


# As it arrives


def test_every_kind_of_growth_is_told_as_it_happens() -> None:
    assert deltas_of(
        START,
        {"type": "response.in_progress", "response": {}},
        added(0, type="reasoning", summary=[]),
        grown("reasoning_summary_text", 0, "a", summary_index=0),
        grown("reasoning_summary_text", 0, "b", summary_index=0),
        grown("reasoning_summary_text", 0, "c", summary_index=1),
        done(0, **REASONING),
        added(1, type="message", content=[]),
        grown("output_text", 1, "d", content_index=0),
        grown("output_text", 1, "", content_index=0),
        grown("refusal", 1, "e", content_index=1),
        done(1, **text_item("d", "e")),
        added(2, **call_item("")),
        grown("function_call_arguments", 2, "{}"),
        grown("function_call_arguments", 2, ""),
        done(2, **call_item()),
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


def test_what_an_item_is_at_its_end_counts() -> None:
    reply = reply_of(
        added(0, type="message"), grown("output_text", 0, "draft", content_index=0), done(0, **text_item("final"))
    )
    assert reply.content == (Text("final"),)


def test_an_item_that_comes_at_once_is_told_at_once() -> None:
    told = deltas_of(
        START,
        done(0, **REASONING),
        done(1, **text_item("b", "")),
        done(2, **call_item('{"x":1}')),
        done(3, type="web_search_call"),
    )
    assert told[1:] == [
        ThinkingDelta(0, "a"),
        TextDelta(1, "b"),
        ToolUseStarted(2, "c", "t"),
        ToolUseDelta(2, '{"x":1}'),
    ]


def test_items_that_only_the_last_event_has_are_taken_from_it() -> None:
    end = {"type": "response.completed", "response": {"output": [text_item("a"), text_item("b"), text_item("c")]}}
    told = deltas_of(START, done(0, **text_item("kept")), added(1, type="message"), end)
    assert told[1:3] == [TextDelta(0, "kept"), TextDelta(1, "c")]
    assert isinstance(told[-1], ReplyFinished)
    assert told[-1].reply.content == (Text("kept"), Text("b"), Text("c"))


def test_an_item_without_an_end_is_what_it_has_grown_to() -> None:
    assert reply_of(
        added(0, type="reasoning", encrypted_content="half"),
        grown("reasoning_summary_text", 0, "b", summary_index=1),
        grown("reasoning_summary_text", 0, "a", summary_index=0),
        added(1, type="message"),
        grown("output_text", 1, "c", content_index=0),
        added(2, **call_item("")),
        grown("function_call_arguments", 2, '{"x":'),
        added(3, type="web_search_call", id="ws"),
    ).content == (
        Thinking("a\n\nb"),
        Text("c"),
        ToolUse("c", "t", '{"INVALID_JSON":"{\\"x\\":"}'),
        Opaque("web_search_call", b'{"type": "web_search_call", "id": "ws"}'),
    )


def test_items_stand_in_the_order_of_their_numbers() -> None:
    assert reply_of(done(1, **text_item("b")), done(0, **text_item("a"))).content == (Text("a"), Text("b"))


def test_events_without_names_and_events_we_do_not_know_are_no_trouble() -> None:
    unknown: Told = {"type": "response.not_yet_invented", "delta": {"x": 1}}
    body = b"".join(event(told, "") for told in (START, unknown, done(0, **text_item("a")), END))
    told = list(openai_responses.make_stream_decoder().feed(body))
    assert [type(delta) for delta in told] == [ReplyStarted, TextDelta, ReplyFinished]


def test_growth_of_another_kind_than_the_item_changes_nothing() -> None:
    told = deltas_of(
        START,
        added(0, type="web_search_call"),
        grown("output_text", 0, "a", content_index=0),
        grown("function_call_arguments", 0, "a"),
    )
    assert len(told) == 1


def test_nothing_is_told_after_the_end() -> None:
    reader = openai_responses.make_stream_decoder()
    told = list(reader.feed(b"".join(map(event, (START, END, START, END)))))
    assert [type(delta) for delta in told] == [ReplyStarted, ReplyFinished]
    assert reader.partial() == Reply((), "end_turn", Usage(output=9), "gpt", "resp_1")


@pytest.mark.parametrize(
    "told",
    [
        (END,),
        (START, START),
        (START, added(0, type="message"), added(0, type="message")),
        (START, grown("output_text", 0, "a", content_index=0)),
        (START, grown("function_call_arguments", 0, "a")),
        (START, done(0, **text_item("a")), grown("output_text", 0, "a", content_index=0)),
        (START, done(0, **text_item("a")), done(0, **text_item("a"))),
        (START, added(0, type="function_call", name="t")),
        (START, added(0)),
        (START, done(0, type="message", content="secret")),
        (START, done(0, type="message", content=[{"type": "refusal"}])),
        (START, {"type": "response.output_text.delta", "delta": 1}),
        (START, {"type": "response.completed", "response": {"usage": {"input_tokens": "secret"}}}),
    ],
)
def test_a_stream_that_contradicts_itself_is_a_failure_of_the_provider(told: tuple[Told, ...]) -> None:
    failure = failure_of(*told)
    assert failure.kind == "server_error"
    assert "an event of the stream cannot be read" in str(failure)
    assert "secret" not in str(failure)


# How it ends


@pytest.mark.parametrize(
    ("ended", "item", "stop_reason"),
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
def test_a_reply_ends_for_a_reason(ended: dict[str, Any], item: dict[str, Any], stop_reason: StopReason) -> None:
    reply = whole(id="r", model="m", output=[item], **ended)
    assert reply.stop_reason == stop_reason
    end: Told = {"type": "response.completed", "response": ended}
    assert reply_of(done(0, **item), end=end).stop_reason == stop_reason
    assert reply.content == (ToolUse("c", "t", "{}") if item["type"] == "function_call" else Text("a"),)


def test_an_end_without_status_is_told_by_its_event() -> None:
    assert reply_of(end={"type": "response.incomplete", "response": {}}).stop_reason == "error"
    assert reply_of(end={"type": "response.completed", "response": {}}).stop_reason == "end_turn"


def test_an_answer_that_is_no_response_is_an_error() -> None:
    assert whole().stop_reason == "error"


@pytest.mark.parametrize(
    ("code", "kind"),
    [("rate_limit_exceeded", "rate_limit"), ("server_error", "server_error"), ("invalid_prompt", "invalid_request")],
)
def test_a_response_that_failed_is_a_failure(code: str, kind: FailureKind) -> None:
    fault = {"code": code, "message": "it went wrong"}
    failed: Told = {"type": "response.failed", "response": {"status": "failed", "output": [], "error": fault}}
    failure = failure_of(START, failed)
    assert (failure.kind, str(failure)) == (kind, "it went wrong")
    for members in ({"status": "failed", "output": [], "error": fault}, {"error": fault}):
        with pytest.raises(ProviderError, match="it went wrong") as refused:
            whole(**members)
        assert refused.value.kind == kind


def test_an_event_that_is_an_error_is_a_failure() -> None:
    failure = failure_of(START, {"type": "error", "code": "rate_limit_exceeded", "message": "slow down"})
    assert (failure.kind, str(failure)) == ("rate_limit", "slow down")
    assert failure_of(START, {"type": "response.failed"}).kind == "server_error"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"\xff", b'{"output":[1]}', b'{"output":[{"type":"message"', b'{"id":"\\ud800"}']
)
def test_bytes_that_are_no_reply_are_a_failure_of_the_provider(body: bytes) -> None:
    with pytest.raises(ProviderError, match="the reply cannot be read") as failed:
        openai_responses.decode_reply(body)
    assert failed.value.kind == "server_error"


# What an item says


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
def test_an_item_is_read(item: dict[str, Any], block: Block) -> None:
    assert whole(output=[item]).content == (block,)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "compaction", "encrypted_content": "x"},
        call_item(namespace="n"),
        {**REASONING, "content": [{"type": "reasoning_text", "text": "x"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "a"}, {"type": "not_yet_invented"}]},
    ],
)
def test_an_item_with_more_than_we_know_is_kept_as_it_came(item: dict[str, Any]) -> None:
    assert whole(output=[item]).content == (Opaque(item["type"], json.dumps(item).encode()),)


def test_text_with_citations_is_kept_as_it_came() -> None:
    cited = {"type": "output_text", "text": "a", "annotations": [{"type": "url_citation"}]}
    assert whole(output=[{"type": "message", "content": [cited]}]).content == (
        Opaque("output_text", json.dumps(cited).encode()),
    )


# When it breaks off


def test_a_cut_stream_leaves_a_legal_message() -> None:
    assert partial_of() is None
    assert salvaged() == ()
    assert salvaged(done(0, **text_item("a", " ", "b"))) == (Text("a"), Text("b"))
    half = (added(0, type="message"), grown("output_text", 0, "a", content_index=0))
    assert salvaged(*half) == (Text("a"),)
    assert salvaged(*half, added(1, **call_item("")), grown("function_call_arguments", 1, "{}")) == (Text("a"),)
    assert salvaged(*half, done(1, **call_item())) == (Text("a"), ToolUse("c", "t", "{}"))
    assert salvaged(*half, added(1, type="web_search_call")) == (Text("a"),)
    assert salvaged(*half, done(1, type="web_search_call")) == (
        Text("a"),
        Opaque("web_search_call", b'{"type": "web_search_call"}'),
    )


def test_a_cut_stream_does_not_end_in_reasoning() -> None:
    assert salvaged(done(0, **REASONING)) == ()
    assert salvaged(done(0, **REASONING), done(1, **REASONING), added(2, **call_item())) == ()
    assert salvaged(done(0, **REASONING), done(1, **text_item("b"))) == (Thinking("a", SIGNED), Text("b"))
    unsigned = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]}
    assert salvaged(done(0, **unsigned), done(1, **text_item("b"))) == (Text("b"),)
    growing = (added(0, type="reasoning"), grown("reasoning_summary_text", 0, "a", summary_index=0))
    assert salvaged(*growing, done(1, **text_item("b"))) == (Text("b"),)


# As we write it


def test_what_has_no_word_in_a_reply_is_left_out() -> None:
    reply = Reply((RedactedThinking("x"), Text("a")), "stop_sequence", Usage(), "m", "r")
    read = openai_responses.decode_reply(openai_responses.encode_reply(reply))
    assert (read.content, read.stop_reason) == ((Text("a"),), "end_turn")


def test_text_with_citations_stands_in_the_message_around_it() -> None:
    cited = Opaque("output_text", b'{"type":"output_text","text":"b","annotations":[{"type":"url_citation"}]}')
    reply = Reply((Text("a"), cited), "end_turn", Usage(), "m", "r")
    events = list(openai_responses.encode_stream(reply))
    assert sum(b"event: response.output_item.added\n" in event for event in events) == 1
    assert sum(b"event: response.content_part.added\n" in event for event in events) == 2
    told = list(openai_responses.make_stream_decoder().feed(b"".join(events)))
    assert told[-1] == ReplyFinished(reply)


@pytest.mark.parametrize("stop_reason", ["cancelled", "error"])
def test_a_reply_that_did_not_end_well_is_not_written_as_one_that_did(stop_reason: StopReason) -> None:
    reply = Reply((Text("a"),), stop_reason, Usage(), "m", "r")
    assert openai_responses.decode_reply(openai_responses.encode_reply(reply)) == reply
    told = list(openai_responses.make_stream_decoder().feed(b"".join(openai_responses.encode_stream(reply))))
    assert told[-1] == ReplyFinished(reply)


def test_a_reply_says_what_others_paid_for() -> None:
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
