"""Properties of every request to and every reply from Gemini."""

import json

from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_values as values
from tests.support.wires.gemini import VALUES

from holdfast.errors import OrderError
from holdfast.providers.adapter import PATH_HEADER
from holdfast.providers.gemini import cached_content, gemini
from holdfast.providers.json_splice import close_brackets
from holdfast.types.blocks import Opaque, Text, Thinking, ToolResult
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import HistoryEntry, Parameters, Plan, Prompt, Segment, Stability
from holdfast.types.reply import Reply, ReplyFinished
from holdfast.types.request_buffer import RequestBuffer

AT = {PATH_HEADER: "/v1/models/m:generateContent"}
counters = st.integers(0, 10**6)
named_results = st.builds(ToolResult, values.ids, st.just((Text("x"),)), st.booleans(), values.names)
stabilities = st.sampled_from(Stability)


def body_with_part(part: bytes) -> bytes:
    request_start = b'{"generationConfig":{"maxOutputTokens":1},"contents":[{"role":"user","parts":['
    return request_start + part + b"]}]}"


@given(st.dictionaries(st.text('ab"\\{}[],:\n', min_size=1, max_size=6), values.json_values, min_size=1, max_size=4))
def test_an_unknown_part_keeps_every_byte(members: dict[str, object]) -> None:
    raw = json.dumps(members).encode()
    read = gemini.decode_request(body_with_part(raw), AT)
    assert read.prompt.entries[0].content == (Opaque(next(iter(members)), raw),)
    assert gemini.encode_request(read.prompt, read.plan, read.parameters) == body_with_part(raw)


@given(counters, counters, counters, counters, counters)
def test_the_usage_buckets_add_up_to_the_providers_count(
    prompt: int, cached: int, tools: int, candidates: int, thoughts: int
) -> None:
    usage_json = {
        "promptTokenCount": prompt,
        "cachedContentTokenCount": min(cached, prompt),
        "toolUsePromptTokenCount": tools,
        "candidatesTokenCount": candidates,
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": prompt + tools + candidates + thoughts,
    }
    usage = gemini.decode_reply(encode_json({"usageMetadata": usage_json})).usage
    assert usage.tokens_sent + usage.output == usage_json["totalTokenCount"]
    assert usage.cache_read == usage_json["cachedContentTokenCount"]
    assert usage.output == candidates + thoughts


@given(named_results)
def test_a_result_is_decoded_with_its_name(result: ToolResult) -> None:
    prompt = Prompt((Segment("history", Stability.GROWING, "messages", entries=(HistoryEntry("user", (result,)),)),))
    body = gemini.encode_request(prompt, Plan(), Parameters("m", 1))
    assert gemini.decode_request(body, AT).prompt.entries[0].content == (result,)


@given(VALUES.replies)
def test_a_reply_is_sent_back_as_the_parts_it_came_in(reply: Reply) -> None:
    content = json.loads(gemini.encode_reply(reply))["candidates"][0]["content"]
    history = Segment("history", Stability.GROWING, "messages", entries=(HistoryEntry("assistant", reply.content),))
    sent = json.loads(gemini.encode_request(Prompt((history,)), Plan(), Parameters("m", 1)))["contents"]
    assert sent == ([content] if content["parts"] else [])


@given(VALUES.replies)
def test_the_providers_own_types_accept_every_reply(reply: Reply) -> None:
    known_blocks = tuple(block for block in reply.content if not isinstance(block, Opaque))
    body = gemini.encode_reply(Reply(known_blocks, reply.stop_reason, reply.usage, reply.model, reply.id))
    read = types.GenerateContentResponse.model_validate_json(body)
    assert read.response_id == reply.id
    assert read.usage_metadata is not None
    assert read.usage_metadata.total_token_count == reply.usage.tokens_sent + reply.usage.output


@given(VALUES.replies, st.data())
def test_an_interrupted_reply_can_be_sent_back(reply: Reply, data: st.DataObject) -> None:
    stream = b"".join(gemini.encode_stream(reply))
    reader = gemini.make_stream_decoder()
    deltas = list(reader.feed(stream[: data.draw(st.integers(0, len(stream)))]))
    partial = reader.partial()
    assert (partial is None) == (not deltas)
    if partial is None or isinstance(deltas[-1], ReplyFinished):
        return
    assert partial.stop_reason == "cancelled"
    assert not any(isinstance(block, Text) and not block.text.strip() for block in partial.content)
    assert not partial.content or not isinstance(partial.content[-1], Thinking)
    entry = gemini.lower_entry(HistoryEntry("assistant", partial.content))
    assert entry is None or entry.content == partial.content


nested = st.recursive(
    st.text('a"\\[{]}', max_size=3), lambda inner: st.lists(inner) | st.dictionaries(st.text("a{"), inner)
)


def opening_positions(raw: bytes) -> list[int]:
    """The positions after each opening bracket outside of strings."""
    positions: list[int] = []
    at = 0
    while at < len(raw):
        if raw[at : at + 1] == b'"':
            while raw[(at := at + 1) : at + 1] != b'"':
                at += raw[at : at + 1] == b"\\"
        at += 1
        if raw[at - 1 : at] in (b"[", b"{"):
            positions.append(at)
    return positions


@given(nested, st.data())
def test_json_that_ends_after_an_opening_bracket_is_closed(value: object, data: st.DataObject) -> None:
    raw = encode_json([value])
    start = raw[: data.draw(st.sampled_from(opening_positions(raw)))]
    assert close_brackets(start).startswith(start)
    assert isinstance(json.loads(close_brackets(start)), list)
    assert close_brackets(raw) == raw


@given(st.lists(stabilities, min_size=4, max_size=4), values.prompts, VALUES.parameters)
def test_a_request_that_references_a_cache_repeats_nothing_of_the_prefix(
    levels: list[Stability], prompt: Prompt, parameters: Parameters
) -> None:
    buffer = RequestBuffer(gemini, count=len)
    for segment, stability in zip(prompt.segments, sorted(levels), strict=True):
        moved = Segment(segment.name, stability, segment.section, segment.tools, segment.system, segment.entries)
        buffer.extend(gemini.encode_segment(moved))
    if not buffer.stable_count:
        return
    request_head = gemini.request_head(cached_content.reference_cache(parameters, "cachedContents/a"))
    try:
        body = json.loads(buffer.render(request_head, start=buffer.stable_count))
    except OrderError:
        return
    assert body["cachedContent"] == "cachedContents/a"
    assert not body.keys() & {"tools", "systemInstruction", "toolConfig"}
    prefix = buffer.cacheable_bytes()[: buffer.stable_prefix_length]
    created = json.loads(cached_content.encode_create_cache(parameters, prefix, ttl_seconds=60)[1])
    assert [*created.get("contents", ()), *body["contents"]] == json.loads(
        buffer.render(gemini.request_head(parameters))
    )["contents"]
