"""Decoding of Gemini's replies, complete and streamed."""

import json
from collections.abc import Sequence

import pytest

from holdfast.errors import ProviderError
from holdfast.providers.gemini import gemini
from holdfast.providers.gemini.stream import GeminiReplyFold
from holdfast.providers.sse import DELTA_CHARS_MAX, EventStreamDecoder
from holdfast.types.blocks import Block, Opaque, Text, Thinking, ToolUse
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


def chunk(*parts: object, finish: str | None = None, **members: object) -> dict[str, object]:
    finished = {"finishReason": finish} if finish else {}
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, **finished}], **members}


def encode_event(payload: object) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\r\n\r\n"


def decode_deltas(*chunks: object) -> list[Delta]:
    reader = gemini.make_stream_decoder()
    return [delta for chunk_json in chunks for delta in reader.feed(encode_event(chunk_json))]


def decode_whole(*parts: object, finish: str = "STOP", **members: object) -> Reply:
    return gemini.decode_reply(json.dumps(chunk(*parts, finish=finish, **members)).encode())


def decode_content(*parts: object) -> tuple[Block, ...]:
    """The decoded content, which is the same complete and as a stream of one part per chunk."""
    content = decode_whole(*parts).content
    *first, last = parts
    finished = decode_deltas(*(chunk(part) for part in first), chunk(last, finish="STOP"))[-1]
    assert isinstance(finished, ReplyFinished)
    assert finished.reply.content == content
    return content


CALL = {"functionCall": {"id": "c", "name": "f", "args": {"a": 1}}}


def test_the_smallest_reply_is_decoded() -> None:
    reply = gemini.decode_reply(b'{"candidates":[{"content":{"parts":[{"text":"hi"}]}}]}')
    assert reply == Reply((Text("hi"),), "error", Usage())


def test_a_stream_becomes_deltas_as_it_arrives() -> None:
    assert decode_deltas(
        chunk({"text": "hm", "thought": True}, responseId="r", modelVersion="m", usageMetadata={"promptTokenCount": 4}),
        chunk({"text": "He"}),
        chunk({"text": "llo"}),
        chunk(CALL | {"thoughtSignature": "s"}),
        chunk(finish="STOP", usageMetadata={"promptTokenCount": 5, "candidatesTokenCount": 2}),
        chunk({"text": "late"}, usageMetadata={"promptTokenCount": 9}),
    ) == [
        ReplyStarted("r", "m", Usage(input=4)),
        ThinkingDelta(0, "hm"),
        TextDelta(1, "He"),
        TextDelta(1, "llo"),
        ToolUseStarted(3, "c", "f"),
        ToolUseDelta(3, '{"a": 1}'),
        ReplyFinished(
            Reply(
                (Thinking("hm"), Text("Hello"), Thinking("", "s"), ToolUse("c", "f", '{"a": 1}')),
                "tool_use",
                Usage(input=5, output=2),
                "m",
                "r",
            )
        ),
    ]


@pytest.mark.parametrize(
    ("parts", "content"),
    [
        ([{"text": "a"}, {"text": ""}, {"text": "b"}], (Text("ab"),)),
        ([{"text": ""}], ()),
        ([{"text": "", "thought": True}, {"text": "a"}], (Text("a"),)),
        ([{}, {"text": "a"}], (Text("a"),)),
        ([{"text": "a", "thought": True}, {"text": "b", "thought": True}, {"text": "c"}], (Thinking("ab"), Text("c"))),
        (
            [{"text": "a"}, {"text": "b", "thoughtSignature": "s"}, {"text": "c"}],
            (Text("a"), Thinking("", "s"), Text("b"), Text("c")),
        ),
        ([{"text": "a"}, {"text": "", "thoughtSignature": "s"}], (Text("a"), Thinking("", "s"))),
        (
            [
                {"text": "a", "thought": True},
                {"text": "", "thoughtSignature": "s"},
                {"text": "b", "thought": True},
                CALL | {"thoughtSignature": "t"},
            ],
            (Thinking("a", "s"), Thinking("b", "t"), ToolUse("c", "f", '{"a": 1}')),
        ),
        (
            [{"text": "a"}, {"executableCode": {"code": "1"}}, {"text": "b"}],
            (Text("a"), Opaque("executableCode", b'{"executableCode": {"code": "1"}}'), Text("b")),
        ),
        (
            [{"functionCall": {"id": "c", "name": "f", "args": [1]}}],
            (ToolUse("c", "f", '{"INVALID_JSON":"[1]"}'),),
        ),
    ],
)
def test_parts_become_blocks(parts: Sequence[object], content: tuple[Block, ...]) -> None:
    assert decode_content(*parts) == content


def test_a_call_without_an_id_gets_a_unique_id_that_starts_with_its_name() -> None:
    call = {"functionCall": {"name": "read", "args": {}}}
    replies = [decode_whole(call, call, responseId=id) for id in ("r1", "r2", "r1")]
    ids = [[block.id for block in reply.content if isinstance(block, ToolUse)] for reply in replies]
    assert ids[0] == ids[2]
    assert len({*ids[0], *ids[1]}) == 4
    assert all(id.startswith("read-") for id in ids[0])


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("STOP", "end_turn"),
        ("MAX_TOKENS", "max_tokens"),
        ("CONTINUATION", "max_tokens"),
        *((reason, "refusal") for reason in ("SAFETY", "RECITATION", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII")),
        *((reason, "error") for reason in ("MALFORMED_FUNCTION_CALL", "OTHER", "NOT_YET_INVENTED")),
    ],
)
def test_stop_reasons_are_decoded(reason: str, expected: StopReason) -> None:
    assert decode_whole({"text": "a"}, finish=reason).stop_reason == expected


def test_a_call_turns_only_a_normal_stop_into_tool_use() -> None:
    assert decode_whole(CALL).stop_reason == "tool_use"
    assert decode_whole(CALL, finish="MAX_TOKENS").stop_reason == "max_tokens"


def test_a_blocked_prompt_is_a_refusal() -> None:
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}}
    expected = Reply((), "refusal", Usage(input=3))
    assert gemini.decode_reply(json.dumps(blocked).encode()) == expected
    assert decode_deltas(blocked)[-1] == ReplyFinished(expected)
    assert not any(
        isinstance(delta, ReplyFinished) for delta in decode_deltas({"promptFeedback": {"safetyRatings": []}})
    )


def test_only_the_first_candidate_is_decoded() -> None:
    others = [{"index": 1, "content": {"parts": [{"text": "b"}]}}, {"index": 0, "content": {"parts": [{"text": "a"}]}}]
    assert gemini.decode_reply(json.dumps({"candidates": others}).encode()).content == (Text("a"),)


def test_an_error_in_a_stream_has_its_kind() -> None:
    reader = gemini.make_stream_decoder()
    list(reader.feed(encode_event(chunk({"text": "a"}))))
    with pytest.raises(ProviderError, match=r"Overloaded\.") as failed:
        list(reader.feed(encode_event({"error": {"code": 503, "message": "Overloaded.", "status": "UNAVAILABLE"}})))
    assert (failed.value.kind, failed.value.status) == ("server_error", 503)
    partial = reader.partial()
    assert partial is not None
    assert (partial.content, partial.stop_reason) == ((Text("a"),), "cancelled")


def test_an_error_without_a_code_is_identified_by_its_name() -> None:
    with pytest.raises(ProviderError) as failed:
        gemini.decode_reply(b'{"error":{"status":"RESOURCE_EXHAUSTED","message":"Slow down."}}')
    assert (failed.value.kind, failed.value.status) == ("rate_limit", 429)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([{"text": " "}], ()),
        ([{"text": "a"}, {"text": "hm", "thought": True}], (Text("a"),)),
        ([{"text": "a"}, {"text": "", "thoughtSignature": "s"}], (Text("a"),)),
        ([{"text": "", "thoughtSignature": "s"}, CALL], (Thinking("", "s"), ToolUse("c", "f", '{"a": 1}'))),
    ],
)
def test_an_interrupted_stream_leaves_a_valid_message(parts: list[object], expected: tuple[Block, ...]) -> None:
    reader = gemini.make_stream_decoder()
    assert reader.partial() is None
    list(reader.feed(encode_event(chunk(*parts, responseId="r"))))
    assert reader.partial() == Reply(expected, "cancelled", Usage(), "", "r")


def test_a_finished_stream_leaves_its_reply() -> None:
    reader = gemini.make_stream_decoder()
    *_, finished = reader.feed(encode_event(chunk({"text": " "}, finish="STOP")))
    assert finished == ReplyFinished(Reply((Text(" "),), "end_turn", Usage()))
    assert reader.partial() == finished.reply


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"candidates":3}',
        b'{"candidates":[{"content":{"parts":[3]}}]}',
        b'{"candidates":[{"content":{"parts":[{"text":3}]}}]}',
        b'{"candidates":[{"content":{"parts":[{"functionCall":{}}]}}]}',
        b'{"candidates":[{"content":{"parts":[{"text":"\\ud800"}]}}]}',
        b'{"candidates":[],"x":"\xff"}',
        b'{"candidates":' + b"[" * 100_000,
        b'{"usageMetadata":{"promptTokenCount":"x"}}',
        b'{"error":' + b"[" * 100_000,
        b'{"error":3}',
    ],
)
def test_bytes_that_are_not_a_reply_are_refused_in_one_line(body: bytes) -> None:
    for read in (gemini.decode_reply, lambda body: list(gemini.make_stream_decoder().feed(b"data: " + body + b"\n\n"))):
        with pytest.raises(ProviderError) as refused:
            read(body)
        assert refused.value.kind == "server_error"
        assert len(str(refused.value).splitlines()) == 1


def test_an_endless_stream_is_refused() -> None:
    reader = EventStreamDecoder(GeminiReplyFold(), reply_bytes_max=10)
    with pytest.raises(ProviderError, match="more than 10 bytes in one response"):
        reader.feed(b"x" * 11)
    with pytest.raises(ProviderError, match="an event of more than 10 bytes"):
        list(EventStreamDecoder(GeminiReplyFold(), event_bytes_max=10).feed(b"x" * 11))


def test_text_is_streamed_in_small_deltas_and_signed_text_at_once() -> None:
    long = "ä" * (DELTA_CHARS_MAX + 1)
    content = (Thinking(long, "c2ln"), Text(long), Opaque("x", b'{"x":\n1}'), Text(long))
    events = list(gemini.encode_stream(Reply(content, "end_turn", Usage())))
    deltas = [delta for encoded in events for delta in gemini.make_stream_decoder().feed(encoded)]
    assert [len(delta.text) for delta in deltas if isinstance(delta, ThinkingDelta | TextDelta)] == [64, 1, 65, 64, 1]
    assert all(encoded.startswith(b"data: ") for encoded in events)


def test_impossible_counters_are_ignored() -> None:
    usage = decode_whole(
        usageMetadata={"promptTokenCount": 3, "cachedContentTokenCount": 5, "thoughtsTokenCount": -1}
    ).usage
    assert usage == Usage(input=0, cache_read=3, output=0)


def test_a_reply_without_provider_fields_can_be_encoded() -> None:
    body = json.loads(gemini.encode_reply(Reply((Thinking("hm"),), "cancelled", Usage(cache_write_5m=2, output=1))))
    (candidate,) = body["candidates"]
    assert candidate == {"content": {"role": "model", "parts": []}, "index": 0}
    assert body["usageMetadata"] == {"promptTokenCount": 2, "candidatesTokenCount": 1, "totalTokenCount": 3}
