"""Our encoding, validated by the types of Google's official client."""

import base64
import json

import pytest
from google.genai import types

from holdfast.providers.gemini import gemini
from holdfast.providers.sse import SseParser
from holdfast.types.blocks import Base64Source, Image, Text, Thinking, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry, Parameters, Plan, Prompt, Segment, Stability
from holdfast.types.reply import Reply
from holdfast.types.tool_spec import ToolSpec
from holdfast.types.usage import Usage

SIGNATURE = base64.b64encode(b"sealed").decode()
REPLY = Reply(
    (Thinking("hm", SIGNATURE), ToolUse("c1", "read", '{"path": "a"}'), Text("Done.")),
    "tool_use",
    Usage(input=10, cache_read=30, output=5),
    "gemini-3.8-flash",
    "r1",
)


def test_a_reply_is_accepted() -> None:
    read = types.GenerateContentResponse.model_validate_json(gemini.encode_reply(REPLY))
    assert read.candidates is not None
    (candidate,) = read.candidates
    assert candidate.finish_reason == types.FinishReason.STOP
    assert candidate.content is not None
    assert candidate.content.parts is not None
    thought, call, text = candidate.content.parts
    assert (thought.text, thought.thought) == ("hm", True)
    assert call.function_call == types.FunctionCall(id="c1", name="read", args={"path": "a"})
    assert call.thought_signature == b"sealed"
    assert text.text == "Done."
    usage = read.usage_metadata
    assert usage is not None
    assert (usage.prompt_token_count, usage.cached_content_token_count) == (40, 30)
    assert (usage.candidates_token_count, usage.total_token_count) == (5, 45)
    assert (read.response_id, read.model_version) == ("r1", "gemini-3.8-flash")


def test_every_chunk_of_a_stream_is_accepted() -> None:
    reader = SseParser()
    for chunk in gemini.encode_stream(REPLY):
        reader.feed(chunk)
    read = [types.GenerateContentResponse.model_validate_json(event.data) for event in reader.events()]
    assert len(read) == 3
    assert [parsed.usage_metadata is not None for parsed in read] == [False, False, True]


def test_an_error_is_accepted() -> None:
    status, body = gemini.encode_error("rate_limit", "Slow down.")
    assert json.loads(body)["error"] == {"code": status, "message": "Slow down.", "status": "RESOURCE_EXHAUSTED"}


@pytest.mark.parametrize("is_error", [False, True])
def test_the_contents_of_a_request_are_accepted(is_error: bool) -> None:
    picture = Image(Base64Source("image/png", base64.b64encode(b"png").decode()))
    entries = (
        HistoryEntry("user", (Text("Look."), picture)),
        HistoryEntry("assistant", REPLY.content),
        HistoryEntry("user", (ToolResult("c1", (Text("seen"), picture), is_error, "read"),)),
    )
    prompt = Prompt(
        (
            Segment("tools", Stability.FROZEN, "tools", tools=(ToolSpec("read", "Reads.", '{"type":"object"}'),)),
            Segment("role", Stability.EPOCH, "system", system=(Text("Be brief."),)),
            Segment("history", Stability.GROWING, "messages", entries=entries),
        )
    )
    parameters = Parameters("gemini-3.8-flash", 9, tool_choice_json='{"type":"tool","name":"read"}')
    body = json.loads(gemini.encode_request(prompt, Plan(), parameters))

    question, tool_call, tool_response = [types.Content.model_validate(content) for content in body["contents"]]
    assert (question.role, tool_call.role, tool_response.role) == ("user", "model", "user")
    assert tool_response.parts is not None
    response = tool_response.parts[0].function_response
    assert response is not None
    assert (response.id, response.name) == ("c1", "read")
    assert response.response == {"error" if is_error else "result": "seen"}
    assert response.parts == [types.FunctionResponsePart.from_bytes(data=b"png", mime_type="image/png")]
    (tool,) = [types.Tool.model_validate(tool_json) for tool_json in body["tools"]]
    assert tool.function_declarations is not None
    assert tool.function_declarations[0].parameters_json_schema == {"type": "object"}
    config = types.ToolConfig.model_validate(body["toolConfig"]).function_calling_config
    assert config == types.FunctionCallingConfig(
        mode=types.FunctionCallingConfigMode.ANY, allowed_function_names=["read"]
    )
    assert types.GenerationConfig.model_validate(body["generationConfig"]).max_output_tokens == 9
    assert types.Content.model_validate(body["systemInstruction"]).parts == [types.Part(text="Be brief.")]
