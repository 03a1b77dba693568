"""Replies that we encode as OpenAI and OpenRouter, decoded by their official clients."""

import openai.types.chat as openai_types
import openrouter.components as openrouter_types
import pytest

from holdfast.providers.adapter import Adapter
from holdfast.providers.openai_chat import openai_chat
from holdfast.providers.openrouter import openrouter
from holdfast.types.blocks import RedactedThinking, Text, Thinking, ToolUse
from holdfast.types.reply import Reply, StopReason
from holdfast.types.usage import Usage

USAGE = Usage(input=1, cache_read=2, cache_write_other=3, output=4)
CALL = ToolUse("call_1", "ls", '{"path":"."}')
REPLIES = [
    Reply((Thinking("hm", "sig"), RedactedThinking("x"), Text("Let me see. " * 9), CALL), "tool_use", USAGE, "m", "r1"),
    Reply((Text("I cannot."),), "refusal", USAGE, "m", "r1"),
    Reply((), "max_tokens", USAGE, "m", "r1"),
]
every_reply = pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.stop_reason)
FINISH_REASONS: dict[StopReason, str] = {"tool_use": "tool_calls", "refusal": "stop", "max_tokens": "length"}


def chunks(adapter: Adapter, reply: Reply) -> list[bytes]:
    events = [event.removeprefix(b"data: ").strip() for event in adapter.encode_stream(reply)]
    assert events.pop() == b"[DONE]"
    return events


@every_reply
def test_openais_client_decodes_a_whole_reply(reply: Reply) -> None:
    read = openai_types.ChatCompletion.model_validate_json(openai_chat.encode_reply(reply))
    assert read.choices[0].finish_reason == FINISH_REASONS[reply.stop_reason]
    assert read.choices[0].message.content == ("Let me see. " * 9 if reply.stop_reason == "tool_use" else None)
    assert read.choices[0].message.refusal == ("I cannot." if reply.stop_reason == "refusal" else None)
    calls = [call.to_dict() for call in read.choices[0].message.tool_calls or ()]
    function = {"name": "ls", "arguments": '{"path":"."}'}
    expected = [{"id": "call_1", "type": "function", "function": function}]
    assert calls == (expected if reply.stop_reason == "tool_use" else [])
    assert read.usage is not None
    assert (read.usage.prompt_tokens, read.usage.completion_tokens, read.usage.total_tokens) == (6, 4, 10)


@every_reply
def test_openais_client_decodes_every_chunk(reply: Reply) -> None:
    read = [openai_types.ChatCompletionChunk.model_validate_json(chunk) for chunk in chunks(openai_chat, reply)]
    deltas = [chunk.choices[0] for chunk in read if chunk.choices]
    name = "refusal" if reply.stop_reason == "refusal" else "content"
    assert "".join(getattr(choice.delta, name) or "" for choice in deltas) == "".join(
        block.text for block in reply.content if isinstance(block, Text)
    )
    arguments = [
        call.function.arguments for choice in deltas for call in choice.delta.tool_calls or () if call.function
    ]
    assert "".join(part or "" for part in arguments) == ('{"path":"."}' if reply.stop_reason == "tool_use" else "")
    assert deltas[-1].finish_reason == FINISH_REASONS[reply.stop_reason]
    assert read[-1].usage is not None
    assert read[-1].choices == []


@every_reply
def test_openrouters_client_decodes_a_whole_reply(reply: Reply) -> None:
    read = openrouter_types.ChatResult.model_validate_json(openrouter.encode_reply(reply))
    assert read.choices[0].finish_reason == FINISH_REASONS[reply.stop_reason]
    assert read.usage is not None
    assert read.usage.prompt_tokens == 6
    details = read.choices[0].message.reasoning_details or []
    assert [detail.type for detail in details] == (
        ["reasoning.text", "reasoning.encrypted"] if reply.stop_reason == "tool_use" else []
    )


@every_reply
def test_openrouters_client_decodes_every_chunk(reply: Reply) -> None:
    read = [openrouter_types.ChatStreamChunk.model_validate_json(chunk) for chunk in chunks(openrouter, reply)]
    reasons = [choice.finish_reason for chunk in read for choice in chunk.choices]
    assert reasons[-1] == FINISH_REASONS[reply.stop_reason]
    assert set(reasons[:-1]) == {None}
    assert read[-1].usage is not None
