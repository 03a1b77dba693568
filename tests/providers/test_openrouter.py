"""What OpenRouter adds to chat completions: reasoning, breakpoints, sessions, prices by route."""

import json

import msgspec
import pytest
from tests.support.chat_streams import DONE, chunk, decode_cut_stream, decode_stream, feed_events, usage

from holdfast.catalog.lookup import find_model
from holdfast.errors import UserError
from holdfast.providers.openai_chat import openai_chat
from holdfast.providers.openrouter import openrouter
from holdfast.providers.registry import get_provider
from holdfast.types.blocks import Block, Image, Opaque, RedactedThinking, Text, Thinking, ToolUse, UrlSource
from holdfast.types.prompt import Breakpoint, HistoryEntry, Parameters, Plan, Prompt, Segment, Stability
from holdfast.types.reply import Reply, ReplyFinished, ThinkingDelta
from holdfast.types.usage import Usage

PARAMETERS = Parameters("anthropic/claude-opus-5.5", 100)
STOP = chunk(finish_reason="stop")


def encode_body(
    *entries: HistoryEntry, parameters: Parameters = PARAMETERS, breakpoints: tuple[Breakpoint, ...] = ()
) -> bytes:
    history = Segment("history", Stability.GROWING, "messages", entries=entries)
    return openrouter.encode_request(Prompt((history,)), Plan(breakpoints), parameters)


def reply_entry(*content: Block) -> HistoryEntry:
    return HistoryEntry("assistant", content)


def detail(**fields: object) -> dict[str, object]:
    return {"reasoning_details": [{"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0, **fields}]}


def decode_whole(message: dict[str, object]) -> tuple[Block, ...]:
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return openrouter.decode_reply(json.dumps({"id": "r1", "model": "m", "choices": [choice]}).encode()).content


def test_thinking_comes_before_the_content() -> None:
    entry = reply_entry(
        Text("a"), ToolUse("c", "ls", "{}"), Thinking("hm", "sig"), RedactedThinking("x"), Thinking("m")
    )
    assert encode_body(entry) == (
        b'{"model":"anthropic/claude-opus-5.5","max_tokens":100,"messages":[{"role":"assistant","reasoning_details":['
        b'{"type":"reasoning.text","text":"hm","signature":"sig"},{"type":"reasoning.encrypted","data":"x"},'
        b'{"type":"reasoning.text","text":"m"}],"content":[{"type":"text","text":"a"}],"tool_calls":['
        b'{"id":"c","type":"function","function":{"name":"ls","arguments":"{}"}}]}]}'
    )


def test_reasoning_is_encoded_in_the_form_it_was_given() -> None:
    parameters = msgspec.structs.replace(PARAMETERS, thinking_json='{"max_tokens": 2000}')
    assert b'"reasoning":{"max_tokens": 2000}' in encode_body(reply_entry(Text("a")), parameters=parameters)
    with pytest.raises(UserError, match="extra field 'reasoning'"):
        openrouter.request_head(msgspec.structs.replace(PARAMETERS, extra=(("reasoning", "{}"),)))
    with pytest.raises(UserError, match="OpenRouter takes none"):
        openrouter.request_head(msgspec.structs.replace(PARAMETERS, betas=("x",)))


def test_breakpoints_are_anthropics_and_only_on_text() -> None:
    entry = HistoryEntry("user", (Text("a"), Image(UrlSource("u")), Text("b")))
    body = encode_body(entry, breakpoints=(Breakpoint(0, "1h"), Breakpoint(2, "5m")))
    assert b'"text":"a","cache_control":{"type":"ephemeral","ttl":"1h"}}' in body
    assert b'"text":"b","cache_control":{"type":"ephemeral"}}' in body
    assert openrouter.decode_request(body).plan == Plan((Breakpoint(0, "1h"), Breakpoint(2, "5m")))
    history = Segment("history", Stability.GROWING, "messages", entries=(entry,))
    assert [block.accepts_breakpoint for block in openrouter.encode_segment(history)] == [True, False, True]
    with pytest.raises(UserError, match="OpenRouter's cache TTL is 5m or 1h, not 12h"):
        openrouter.encode_breakpoint("12h")


def test_a_session_stays_with_one_provider() -> None:
    model = find_model("openai:gpt-5.4")
    assert openrouter.session_fields(model, "s-1") == (("session_id", '"s-1"'),)
    ((_, session_key),) = openrouter.session_fields(model, "s" * 256)
    ((_, long),) = openrouter.session_fields(model, "s" * 257)
    assert json.loads(session_key) == "s" * 256
    assert len(json.loads(long)) == 64


def test_reasoning_details_are_joined_and_the_duplicate_text_is_dropped() -> None:
    events = [
        chunk({"reasoning": "h", **detail(text="h")}),
        chunk({"reasoning": "m", **detail(text="m", signature=None)}),
        chunk({"reasoning": None, **detail(signature="sig")}),
        chunk({"content": "a"}),
        STOP,
        DONE,
    ]
    _, deltas = feed_events(openrouter, events)
    assert [delta for delta in deltas if isinstance(delta, ThinkingDelta)] == [
        ThinkingDelta(0, "h"),
        ThinkingDelta(0, "m"),
    ]
    assert isinstance(deltas[-1], ReplyFinished)
    assert deltas[-1].reply.content == (Thinking("hm", "sig"), Text("a"))


def test_details_replace_text_that_came_before_them() -> None:
    reply = decode_stream(openrouter, chunk({"reasoning": "hm"}), chunk(detail(text="hm")), STOP, DONE)
    assert reply.content == (Thinking("hm"),)


def test_details_of_an_unknown_format_are_preserved() -> None:
    sealed = {"type": "reasoning.encrypted", "data": "x", "id": "rs_1", "format": "openai-responses-v1", "index": 0}
    raw = json.dumps(sealed).encode()
    content = decode_whole({"content": "a", "reasoning_details": [sealed]})
    assert content == (Opaque("reasoning_details.reasoning.encrypted", raw), Text("a"))
    body = encode_body(reply_entry(*content))
    assert b'"reasoning_details":[' + raw + b"]" in body
    assert openrouter.decode_request(body).prompt.entries[0].content == content


@pytest.mark.parametrize(
    ("sent", "block"),
    [
        ({"type": "reasoning.text", "text": "hm", "format": "unknown"}, Thinking("hm")),
        ({"type": "reasoning.text", "text": None, "signature": "", "id": "i"}, Thinking("")),
        ({"type": "reasoning.encrypted", "data": "x", "format": None}, RedactedThinking("x")),
    ],
)
def test_details_of_a_plain_format_are_thinking(sent: dict[str, object], block: Block) -> None:
    assert decode_whole({"reasoning_details": [sent]}) == (block,)


@pytest.mark.parametrize(
    "sent",
    [
        {"type": "reasoning.text", "text": "hm", "signature": None},
        {"type": "reasoning.text", "text": "hm", "index": 0},
        {"type": "reasoning.text"},
        {"type": "reasoning.encrypted", "data": "x", "id": "i"},
        {"type": "reasoning.summary", "summary": "x"},
    ],
)
def test_details_in_a_request_keep_every_byte(sent: dict[str, object]) -> None:
    message = {"role": "assistant", "reasoning_details": [sent], "reasoning": "hm", "content": "a"}
    read_back = openrouter.decode_request(json.dumps({"model": "m", "messages": [message]}).encode())
    kinds = [block.kind for block in read_back.prompt.entries[0].content if isinstance(block, Opaque)]
    assert kinds == ["message.reasoning", f"reasoning_details.{sent['type']}"]
    again = openrouter.encode_request(read_back.prompt, read_back.plan, read_back.parameters)
    assert json.dumps(sent).encode() in again


@pytest.mark.parametrize(
    ("events", "content"),
    [
        ([chunk(detail(text="hm"))], ()),
        ([chunk(detail(text="hm")), chunk({"content": "a"})], (Text("a"),)),
        ([chunk(detail(text="hm", signature="s")), chunk({"content": "a"})], (Thinking("hm", "s"), Text("a"))),
        ([chunk(detail(text="hm", signature="s"))], ()),
        ([chunk({"images": [{"a": 1}]})], (Opaque("message.images", b'[{"a": 1}]'),)),
    ],
)
def test_an_interrupted_stream_keeps_only_thinking_that_can_be_sent_back(
    events: list[bytes], content: tuple[Block, ...]
) -> None:
    assert decode_cut_stream(openrouter, *events) == Reply(content, "cancelled", Usage(), "m", "r1")


def test_the_ttl_of_a_cache_write_is_known_for_anthropic_only() -> None:
    took = usage(10, 1, cached_tokens=3, cache_write_tokens=5)
    of_openai = decode_stream(openrouter, STOP, took).usage
    of_anthropic = decode_stream(openrouter, STOP.replace(b'"m"', b'"anthropic/claude"'), took).usage
    assert of_openai == Usage(input=2, cache_read=3, cache_write_other=5, output=1)
    assert of_anthropic == Usage(input=2, cache_read=3, cache_write_5m=5, output=1)
    on_chat = decode_stream(openai_chat, STOP.replace(b'"m"', b'"anthropic/claude"'), took).usage
    assert on_chat == of_openai


def test_costs_and_other_additions_are_tolerated() -> None:
    took = {"prompt_tokens": 1, "completion_tokens": 2, "cost": 0.1, "cost_details": {}, "is_byok": False}
    last = chunk({"role": "assistant", "content": ""}, usage=took, provider="Anthropic", native_finish_reason="x")
    assert decode_stream(
        openrouter, b": OPENROUTER PROCESSING\n\n", chunk({"content": "a"}), STOP, last
    ).usage == Usage(1, output=2)


def test_both_providers_use_the_addresses_of_their_official_clients() -> None:
    chat, route = get_provider("openai-chat"), get_provider("openrouter")
    assert (chat.base_url, chat.base_url_variable, chat.key_variable) == (
        "https://api.openai.com/v1",
        "OPENAI_BASE_URL",
        "OPENAI_API_KEY",
    )
    assert (route.base_url, route.base_url_variable, route.key_variable) == (
        "https://openrouter.ai/api/v1",
        "OPENROUTER_BASE_URL",
        "OPENROUTER_API_KEY",
    )
    for provider in (chat, route):
        assert provider.adapter.endpoint(PARAMETERS).path == "/chat/completions"
        assert provider.adapter.credentials("k") == {"authorization": "Bearer k"}
