"""What holds for every request to and every reply from OpenAI's Responses API."""

import json

from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_values as values
from tests.support.wires.openai import VALUES

from holdfast.errors import ProviderError
from holdfast.providers.json_splice import split_object
from holdfast.providers.openai_responses import openai_responses
from holdfast.providers.openai_responses.items import (
    SUMMARY_SEPARATOR,
    decode_reasoning,
    encode_reasoning,
    make_signature,
)
from holdfast.types.blocks import THINKING_TYPES, Opaque, Text, Thinking, ToolUse
from holdfast.types.prompt import HistoryEntry
from holdfast.types.reply import Reply, TextDelta, ThinkingDelta, ToolUseDelta
from holdfast.types.usage import clamp_token_count

members = st.dictionaries(st.text('ab"\\{}[],:\n', max_size=6), values.json_values, max_size=4)
spaces = st.sampled_from(["", " ", "\n  ", "\t"])
tokens = st.none() | st.integers(-(2**70), 2**70)


def with_whitespace(value: object, space: str) -> bytes:
    """JSON with the given whitespace wherever whitespace is allowed."""
    separators = (f"{space},{space}", f"{space}:{space}")
    return json.dumps(value, separators=separators, ensure_ascii=False).encode()


@given(members, spaces)
def test_an_unknown_item_keeps_every_byte(item: dict[str, object], space: str) -> None:
    raw = with_whitespace({**item, "type": "not_yet_invented"}, space)
    body = b'{"model":"m","store":false,"include":["reasoning.encrypted_content"],"input":[' + raw + b"]}"
    read = openai_responses.decode_request(body)
    assert read.prompt.entries == (HistoryEntry("assistant", (Opaque("not_yet_invented", raw),)),)
    assert openai_responses.encode_request(read.prompt, read.plan, read.parameters) == body


@given(st.lists(values.texts, max_size=4), st.text(min_size=1, max_size=9), st.none() | st.text(max_size=9))
def test_reasoning_is_sent_back_unchanged(summaries: list[str], encrypted_content: str, id: str | None) -> None:
    thinking = Thinking(SUMMARY_SEPARATOR.join(summaries), make_signature(encrypted_content, id, summaries))
    item = json.loads(encode_reasoning(thinking))
    assert [part["text"] for part in item["summary"]] == summaries
    assert (item["encrypted_content"], item.get("id")) == (encrypted_content, id)
    assert decode_reasoning(split_object(encode_reasoning(thinking))) == thinking


@given(tokens, tokens, tokens, tokens)
def test_the_usage_buckets_add_up_to_the_providers_count(
    total: int | None, cached: int | None, cache_write: int | None, output: int | None
) -> None:
    details = {"cached_tokens": cached, "cache_write_tokens": cache_write}
    reported = {"input_tokens": total, "input_tokens_details": details, "output_tokens": output}
    usage = openai_responses.decode_reply(json.dumps({"usage": reported}).encode()).usage
    assert usage.tokens_sent == clamp_token_count(total)
    assert usage.output == clamp_token_count(output)
    assert min(usage.input, usage.cache_read, usage.cache_write) >= 0
    if cached is not None and 0 <= cached <= clamp_token_count(total):
        assert usage.cache_read == cached


@given(VALUES.replies)
def test_the_deltas_add_up_to_the_content_of_the_reply(reply: Reply) -> None:
    deltas = list(openai_responses.make_stream_decoder().feed(b"".join(openai_responses.encode_stream(reply))))
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    assert text == "".join(block.text for block in reply.content if isinstance(block, Text))
    arguments = "".join(delta.json_part for delta in deltas if isinstance(delta, ToolUseDelta))
    assert arguments == "".join(block.arguments_json for block in reply.content if isinstance(block, ToolUse))
    thought = "".join(delta.text for delta in deltas if isinstance(delta, ThinkingDelta))
    assert set(thought) <= set("".join(block.text for block in reply.content if isinstance(block, Thinking)))


@given(VALUES.replies, st.data())
def test_the_partial_reply_of_an_interrupted_stream_can_be_sent_back(reply: Reply, data: st.DataObject) -> None:
    events = list(openai_responses.encode_stream(reply))
    reader = openai_responses.make_stream_decoder()
    for event in events[: data.draw(st.integers(1, len(events) - 1))]:
        list(reader.feed(event))
    partial = reader.partial()
    assert partial is not None
    assert not partial.content or not isinstance(partial.content[-1], THINKING_TYPES)
    calls = [block for block in reply.content if isinstance(block, ToolUse)]
    assert [block for block in partial.content if isinstance(block, ToolUse)] == calls[
        : sum(isinstance(block, ToolUse) for block in partial.content)
    ]
    entry = HistoryEntry("assistant", partial.content)
    assert openai_responses.lower_entry(entry) == (entry if partial.content else None)


@given(
    st.sampled_from(
        ["response.created", "response.output_item.done", "response.completed", "error", "response.failed"]
    ),
    values.json_objects,
    st.sampled_from(["item", "response", "output_index", "delta", "x"]),
    values.json_values,
)
def test_any_event_is_decoded_or_refused(name: str, event: dict[str, object], member: str, value: object) -> None:
    reader = openai_responses.make_stream_decoder()
    body = json.dumps({**event, "type": name, member: value}).encode()
    deltas, failure = [], ""
    try:
        deltas = list(reader.feed(b"data: " + body + b"\n\n"))
    except ProviderError as refused:
        failure = str(refused)
    # Before its start a stream has no partial reply.
    assert (len(deltas), len(failure.splitlines())) == (
        (1, 0) if name == "response.created" and not failure else (0, 1)
    )
