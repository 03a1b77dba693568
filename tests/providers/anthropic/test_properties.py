"""Properties of every request to and every reply from Anthropic."""

import json

from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_values as values

from holdfast.providers.anthropic import anthropic
from holdfast.providers.json_splice import join_object, remove_member, split_object
from holdfast.providers.sse import SseParser
from holdfast.types.blocks import Opaque, Text, Thinking, ToolUse
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Breakpoint, Plan, Ttl
from holdfast.types.reply import Reply, ReplyFinished
from holdfast.types.usage import Usage

members = st.dictionaries(st.text('ab"\\{}[],:\n', max_size=6), values.json_values, max_size=4)
spaces = st.sampled_from(["", " ", "\n  ", "\t"])


def with_whitespace(value: object, space: str) -> bytes:
    """JSON with the given whitespace wherever whitespace is allowed."""
    separators = (f"{space},{space}", f"{space}:{space}")
    return json.dumps(value, separators=separators, ensure_ascii=False).encode()


def body_with_block(*blocks: bytes) -> bytes:
    start = b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":['
    return start + b",".join(blocks) + b"]}]}"


@given(members, spaces)
def test_an_unknown_block_keeps_every_byte(block: dict[str, object], space: str) -> None:
    raw = with_whitespace({**block, "type": "not_yet_invented"}, space)
    read = anthropic.decode_request(body_with_block(raw))
    assert read.prompt.entries[0].content == (Opaque("not_yet_invented", raw),)
    assert anthropic.encode_request(read.prompt, read.plan, read.parameters) == body_with_block(raw)


@given(members, spaces, st.sampled_from(["5m", "1h"]))
def test_a_breakpoint_is_removed_from_an_unknown_block_without_other_changes(
    block: dict[str, object], space: str, ttl: Ttl
) -> None:
    unknown_block = {"type": "not_yet_invented", **block}
    cache_control = {"type": "ephemeral", "ttl": ttl}
    read = anthropic.decode_request(
        body_with_block(with_whitespace({**unknown_block, "cache_control": cache_control}, space))
    )
    (opaque,) = read.prompt.entries[0].content
    assert isinstance(opaque, Opaque)
    assert json.loads(opaque.raw) == unknown_block
    assert split_object(opaque.raw) == split_object(with_whitespace(unknown_block, space))
    assert read.plan == Plan((Breakpoint(0, ttl),))


@given(members, spaces, st.sampled_from(["a", "b", "cache_control"]))
def test_an_object_without_a_member_has_all_the_others(block: dict[str, object], space: str, name: str) -> None:
    raw = with_whitespace(block, space)
    assert split_object(remove_member(raw, name)) == {
        key: value for key, value in split_object(raw).items() if key != name
    }
    if name not in block:
        assert remove_member(raw, name) == raw


@given(members)
def test_an_object_split_into_members_can_be_joined_again(block: dict[str, object]) -> None:
    assert join_object(split_object(encode_json(block))) == encode_json(block)


@given(st.lists(st.integers(0, 10**6), min_size=8, max_size=8), st.booleans())
def test_the_usage_buckets_add_up_to_the_providers_count(numbers: list[int], compacted: bool) -> None:
    plain, read, five, hour, output, more_plain, more_cache_write, more_output = numbers
    usage = {
        "input_tokens": plain,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": five + hour,
        "cache_creation": {"ephemeral_5m_input_tokens": five, "ephemeral_1h_input_tokens": hour},
        "output_tokens": output,
        "iterations": [
            {"type": "message", "input_tokens": 77, "output_tokens": 77},
            {
                "type": "compaction" if compacted else "message",
                "input_tokens": more_plain,
                "cache_creation_input_tokens": more_cache_write,
                "cache_read_input_tokens": 0,
                "output_tokens": more_output,
            },
        ],
    }
    usage_decoded = anthropic.decode_reply(encode_json({"content": [], "usage": usage})).usage

    factor = 1 if compacted else 0
    assert usage_decoded.tokens_sent == plain + read + five + hour + factor * (more_plain + more_cache_write)
    assert usage_decoded.output == output + factor * more_output
    assert (usage_decoded.cache_read, usage_decoded.cache_write_1h) == (read, hour)


@given(values.usages, values.usages)
def test_usage_in_a_later_event_replaces_the_initial_usage(first: Usage, last: Usage) -> None:
    events = list(anthropic.encode_stream(Reply((), "end_turn", first)))
    usage_json = json.loads(anthropic.encode_reply(Reply((), "end_turn", last)))["usage"]
    final_delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage_json}
    events[-2] = b"event: message_delta\ndata: " + encode_json(final_delta) + b"\n\n"
    deltas = list(anthropic.make_stream_decoder().feed(b"".join(events)))
    assert deltas[-1] == ReplyFinished(Reply((), "end_turn", last))


@given(st.data())
def test_line_ends_comments_and_unknown_events_do_not_change_the_reply(data: st.DataObject) -> None:
    reply = data.draw(values.replies)
    foreign = st.sampled_from(
        [b": keep-alive\n\n", b'event: ping\ndata: {"type":"ping"}\n\n', b"event: x\ndata: no json\n\n", b"\n"]
    )
    stream = b"".join(data.draw(foreign) + event for event in anthropic.encode_stream(reply))
    stream = stream.replace(b"\n", b"\r\n") if data.draw(st.booleans()) else stream
    reader = anthropic.make_stream_decoder()
    deltas = [delta for chunk in data.draw(values.chunks(stream)) for delta in reader.feed(chunk)]
    assert deltas[-1] == ReplyFinished(reply)


@given(st.lists(st.text('{}[]":,a1 \\', max_size=6), max_size=5))
def test_arguments_are_those_streamed_or_an_object_that_wraps_them(parts: list[str]) -> None:
    message_start, start, *_, stop, delta, last = anthropic.encode_stream(
        Reply((ToolUse("t", "run", "{}"),), "tool_use", Usage())
    )
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": part}}
        for part in parts
    ]
    middle = b"".join(b"data: " + encode_json(part) + b"\n\n" for part in deltas)
    stream = b"".join([message_start, start, middle, stop, delta, last])
    finished = list(anthropic.make_stream_decoder().feed(stream))[-1]

    assert isinstance(finished, ReplyFinished)
    (call,) = finished.reply.content
    assert isinstance(call, ToolUse)
    text = "".join(parts)
    assert isinstance(json.loads(call.arguments_json), dict)
    assert call.arguments_json in (text, "{}") or json.loads(call.arguments_json) == {"INVALID_JSON": text}


@given(st.data())
def test_an_interrupted_reply_can_be_sent_back(data: st.DataObject) -> None:
    reply = data.draw(values.replies)
    stream = b"".join(anthropic.encode_stream(reply))
    reader = anthropic.make_stream_decoder()
    list(reader.feed(stream[: data.draw(st.integers(0, len(stream) - 40))]))
    partial = reader.partial()
    if partial is None or partial.stop_reason != "cancelled":
        return
    assert not any(isinstance(block, Text) and not block.text.strip() for block in partial.content)
    assert not any(isinstance(block, Thinking) and not block.signature for block in partial.content)
    assert not partial.content or not isinstance(partial.content[-1], Thinking)
    complete_calls = {block for block in reply.content if isinstance(block, ToolUse)}
    assert complete_calls.issuperset(block for block in partial.content if isinstance(block, ToolUse))


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b c"]), st.text("x :\n", min_size=1, max_size=6))))
def test_encoded_events_are_decoded_to_the_same_values(events: list[tuple[str, str]]) -> None:
    reader = SseParser()
    for name, payload in events:
        lines = "".join(
            f"data:{line}\n" if not line.startswith(" ") else f"data: {line}\n" for line in payload.split("\n")
        )
        reader.feed(f"event: {name}\n{lines}\n".encode())
    assert [(event.name, event.data.decode()) for event in reader.events()] == events
