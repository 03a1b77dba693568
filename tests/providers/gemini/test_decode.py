"""Decoding of requests in Gemini's format."""

import json

import pytest

from holdfast.errors import ProviderError
from holdfast.providers.adapter import PATH_HEADER, WireRequest
from holdfast.providers.gemini import gemini
from holdfast.providers.gemini.decode import GEMINI_BODY_BYTES_MAX
from holdfast.types.blocks import (
    Base64Source,
    Block,
    FileSource,
    Image,
    Opaque,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    UrlSource,
)
from holdfast.types.prompt import HistoryEntry, Parameters, Plan
from holdfast.types.tool_spec import ToolSpec

AT = {PATH_HEADER: "/v1beta/models/gemini-3.8-flash:generateContent"}


def request(**members: object) -> WireRequest:
    return gemini.decode_request(json.dumps({"contents": [], **members}).encode(), AT)


def decode_entries(*contents: object) -> tuple[HistoryEntry, ...]:
    return request(contents=list(contents)).prompt.entries


def decode_blocks(*parts: object) -> tuple[Block, ...]:
    return decode_entries({"role": "model", "parts": list(parts)})[0].content


def refusal_message(body: bytes, path: str = AT[PATH_HEADER]) -> ProviderError:
    with pytest.raises(ProviderError) as refused:
        gemini.decode_request(body, {PATH_HEADER: path})
    assert refused.value.kind == "invalid_request"
    assert len(str(refused.value).splitlines()) == 1
    return refused.value


@pytest.mark.parametrize(
    ("path", "model", "stream"),
    [
        ("/v1/models/m-1.5:generateContent", "m-1.5", False),
        ("/v1beta/models/m:streamGenerateContent?alt=sse", "m", True),
        ("/proxy/x.y/v1/models/m:streamGenerateContent", "m", True),
        ("/models/m:generateContent?key=k", "m", False),
    ],
)
def test_model_and_streaming_are_decoded_from_the_path(path: str, model: str, stream: bool) -> None:
    read = gemini.decode_request(b'{"contents":[]}', {PATH_HEADER: path}).parameters
    assert (read.model, read.stream) == (model, stream)


@pytest.mark.parametrize(
    "path",
    ["", "/v1/models/m", "/v1/models/a/b:generateContent", "/v1/models/:generateContent", "/v1/models/m:countTokens"],
)
def test_a_path_without_a_model_is_refused(path: str) -> None:
    assert "the path names no model" in str(refusal_message(b'{"contents":[]}', path))


def test_a_path_full_of_slashes_is_refused_at_once() -> None:
    assert refusal_message(b'{"contents":[]}', "/a" * 50_000 + "/models/m").status == 404


def test_a_request_without_settings_has_no_limit() -> None:
    expected = Parameters("gemini-3.8-flash", 0)
    assert request().parameters == expected
    assert request(generationConfig={"temperature": None, "stopSequences": None}).parameters == expected


def test_unknown_settings_and_fields_are_preserved() -> None:
    read = request(
        generationConfig={"maxOutputTokens": 7, "topK": 3, "thinkingConfig": {"thinkingBudget": 1}},
        safetySettings=[],
        cachedContent="cachedContents/a",
    )
    assert read.parameters == Parameters(
        "gemini-3.8-flash",
        7,
        thinking_json='{"thinkingBudget": 1}',
        extra=(
            ("generationConfig.topK", "3"),
            ("safetySettings", "[]"),
            ("cachedContent", '"cachedContents/a"'),
        ),
    )


@pytest.mark.parametrize(
    "config",
    [
        {"functionCallingConfig": {"mode": "VALIDATED"}},
        {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["a", "b"]}},
        {"functionCallingConfig": {"mode": "AUTO", "allowedFunctionNames": ["a"]}},
        {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": [""]}},
        {"functionCallingConfig": {"mode": "ANY"}, "retrievalConfig": {}},
        {"functionCallingConfig": {"mode": "ANY", "new": 1}},
    ],
)
def test_a_tool_config_that_only_gemini_has_is_preserved(config: object) -> None:
    read = request(toolConfig=config).parameters
    assert read.tool_choice_json is None
    assert read.extra == (("toolConfig", json.dumps(config)),)


def test_a_field_named_like_a_setting_is_refused() -> None:
    assert "a field of the request is named like one of" in str(
        refusal_message(b'{"contents":[],"generationConfig.topK":1}')
    )


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (
            [{"functionDeclarations": [{"name": "a", "description": "A.", "parametersJsonSchema": {"x": 1}}]}],
            (ToolSpec("a", "A.", '{"x": 1}'),),
        ),
        (
            [{"functionDeclarations": [{"name": "a", "parameters": {"type": "OBJECT"}}, {"name": "b"}]}],
            (
                ToolSpec(
                    "a",
                    "",
                    '{"type": "OBJECT"}',
                    '{"functionDeclarations":[{"name": "a", "parameters": {"type": "OBJECT"}}]}',
                ),
                ToolSpec("b", "", "{}", '{"functionDeclarations":[{"name": "b"}]}'),
            ),
        ),
        (
            [{"functionDeclarations": [], "googleSearch": {}}, {"codeExecution": {}}],
            (
                ToolSpec("googleSearch", "", "{}", '{"googleSearch": {}}'),
                ToolSpec("codeExecution", "", "{}", '{"codeExecution": {}}'),
            ),
        ),
        ([{"functionDeclarations": None}], ()),
    ],
)
def test_tools_are_decoded(tools: list[object], expected: tuple[ToolSpec, ...]) -> None:
    read = request(tools=tools)
    texts = tuple(
        ToolSpec(
            tool.name, tool.description, tool.input_schema_json, tool.wire_json and tool.wire_json.replace("{ ", "{")
        )
        for tool in read.prompt.tools
    )
    assert texts == expected


def test_a_preserved_tool_is_encoded_and_decoded_as_the_same_tool() -> None:
    read = request(tools=[{"functionDeclarations": [{"name": "a", "behavior": "BLOCKING"}], "googleSearch": {}}])
    body = gemini.encode_request(read.prompt, Plan(), read.parameters)
    assert gemini.decode_request(body, AT).prompt == read.prompt
    assert b'"tools":[{"functionDeclarations":[{"name": "a", "behavior": "BLOCKING"}]},' in body


def test_a_system_instruction_is_decoded_whatever_its_role() -> None:
    read = request(systemInstruction={"role": "user", "parts": [{"text": "a"}, {"text": "b"}]})
    assert read.prompt.segments[0].system == (Text("a"), Text("b"))
    assert request(systemInstruction=None).prompt.segments == ()


@pytest.mark.parametrize("part", [{"inlineData": {}}, {"text": "a", "thoughtSignature": "s"}, {"functionCall": {}}])
def test_a_system_instruction_that_is_not_text_is_refused(part: object) -> None:
    body = json.dumps({"contents": [], "systemInstruction": {"parts": [{"text": "a"}, part]}}).encode()
    assert "systemInstruction.parts.1 cannot be read" in str(refusal_message(body))


@pytest.mark.parametrize(
    ("role", "expected"), [("user", "user"), ("model", "assistant"), ("function", "user"), (None, "user")]
)
def test_roles_are_decoded(role: str | None, expected: str) -> None:
    assert decode_entries({"role": role, "parts": [{"text": "a"}]})[0].role == expected


@pytest.mark.parametrize(
    ("part", "block"),
    [
        ({"text": ""}, Text("")),
        ({"text": "hm", "thought": True}, Thinking("hm")),
        ({"text": "", "thoughtSignature": "s"}, Thinking("", "s")),
        ({"text": "a", "thoughtSignature": ""}, Text("a")),
        ({"inlineData": {"mimeType": "image/png", "data": "aGk="}}, Image(Base64Source("image/png", "aGk="))),
        ({"fileData": {"fileUri": "gs://b/o"}}, Image(UrlSource("gs://b/o"))),
        (
            {"fileData": {"fileUri": "https://generativelanguage.googleapis.com/v1beta/files/f1"}},
            Image(FileSource("files/f1")),
        ),
        ({"functionCall": {"id": "t", "name": "f", "args": {"a": 1}}}, ToolUse("t", "f", '{"a": 1}')),
        ({"functionCall": {"name": "f", "args": None}}, ToolUse("f-1", "f", "{}")),
        (
            {"functionResponse": {"id": "t", "name": "f", "response": {"result": "x"}}},
            ToolResult("t", (Text("x"),), name="f"),
        ),
        (
            {"functionResponse": {"name": "f", "response": {"error": "x"}}},
            ToolResult("f-1", (Text("x"),), is_error=True, name="f"),
        ),
        (
            {"functionResponse": {"id": "t", "name": "f", "response": {"result": 3}}},
            ToolResult("t", (Opaque("response", b'{"result": 3}'),), name="f"),
        ),
        (
            {"functionResponse": {"id": "t", "name": "f", "response": {"error": "x", "code": 3}}},
            ToolResult("t", (Opaque("response", b'{"error": "x", "code": 3}'),), is_error=True, name="f"),
        ),
        ({"functionResponse": {"id": "t"}}, ToolResult("t", (Opaque("response", b"{}"),))),
        (
            {
                "functionResponse": {
                    "id": "t",
                    "name": "f",
                    "response": {"result": "x"},
                    "parts": [
                        {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
                        {"inlineData": {"mimeType": "audio/wav", "data": "aGk="}},
                        {"text": "a"},
                    ],
                }
            },
            ToolResult(
                "t",
                (
                    Text("x"),
                    Image(Base64Source("image/png", "aGk=")),
                    Opaque("inlineData", b'{"inlineData": {"mimeType": "audio/wav", "data": "aGk="}}'),
                    Opaque("text", b'{"text": "a"}'),
                ),
                name="f",
            ),
        ),
    ],
)
def test_a_part_is_decoded(part: object, block: Block) -> None:
    assert decode_blocks(part) == (block,)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"executableCode": {"code": "1"}}, "executableCode"),
        ({"executableCode": {"code": "1"}, "thoughtSignature": "s"}, "executableCode"),
        ({"thoughtSignature": "s", "toolCall": {}}, "toolCall"),
        ({"text": "a", "partMetadata": {}}, "text"),
        ({"text": "hm", "thought": True, "thoughtSignature": "s"}, "text"),
        ({"text": "hm", "thought": False}, "text"),
        ({"inlineData": {"mimeType": "application/pdf", "data": ""}}, "inlineData"),
        ({"inlineData": {"mimeType": "image/png", "data": "", "displayName": "x"}}, "inlineData"),
        ({"fileData": {"fileUri": "u", "mimeType": "image/png"}}, "fileData"),
        ({"functionCall": {"name": "f", "willContinue": True}}, "functionCall"),
        ({"functionResponse": {"name": "f", "scheduling": "SILENT"}}, "functionResponse"),
        ({"functionResponse": {"name": "f"}, "thoughtSignature": "s"}, "functionResponse"),
        ({"type": "document", "x": 1}, "document"),
        ({"type": 3}, "type"),
        ({}, ""),
    ],
)
def test_a_part_with_an_unknown_field_is_preserved(part: object, kind: str) -> None:
    assert decode_blocks(part) == (Opaque(kind, json.dumps(part).encode()),)


def test_signatures_are_decoded_on_their_blocks() -> None:
    assert decode_blocks(
        {"text": "hm", "thought": True},
        {"functionCall": {"id": "t", "name": "f"}, "thoughtSignature": "s"},
        {"text": "a", "thoughtSignature": "u"},
        {"text": "", "thoughtSignature": "v"},
    ) == (
        Thinking("hm", "s"),
        ToolUse("t", "f", "{}"),
        Thinking("", "u"),
        Text("a"),
        Thinking("", "v"),
    )


def test_results_without_ids_match_the_calls_of_their_name_in_order() -> None:
    called: list[object] = [{"functionCall": {"name": name, "args": {}}} for name in ("a", "b", "a")]
    result_parts = [{"functionResponse": {"name": name, "response": {"result": "x"}}} for name in ("a", "b", "a")]
    calls, results = decode_entries({"role": "model", "parts": called}, {"role": "user", "parts": result_parts})
    assert [block.id for block in calls.content if isinstance(block, ToolUse)] == ["a-1", "b-1", "a-2"]
    assert [block.tool_use_id for block in results.content if isinstance(block, ToolResult)] == ["a-1", "b-1", "a-2"]


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b'{"contents":null}',
        b'{"contents":[1]}',
        b'{"contents":[{"role":"king","parts":[]}]}',
        b'{"contents":[{"role":"user","parts":[],"new":1}]}',
        b'{"contents":[{"role":"user","parts":["text"]}]}',
        b'{"contents":[{"role":"user","parts":[{"text":3}]}]}',
        b'{"contents":[{"role":"user","parts":[{"text":"\\ud800"}]}]}',
        b'{"contents":[{"role":"user","parts":[{"functionCall":{"args":{}}}]}]}',
        b'{"contents":[{"role":"user","parts":[{"functionCall":{"name":"f","args":[1]}}]}]}',
        b'{"contents":[{"role":"user","parts":[{"fileData":{"fileUri":3}}]}]}',
        b'{"contents":[{"role":"user","parts":[{"functionResponse":{"name":"f","response":3}}]}]}',
        b'{"contents":[{"role":"user","parts":[{"functionResponse":{"name":"f","parts":[3]}}]}]}',
        b'{"contents":[],"generationConfig":{"maxOutputTokens":-1}}',
        b'{"contents":[],"generationConfig":{"maxOutputTokens":"x"}}',
        b'{"contents":[],"generationConfig":3}',
        b'{"contents":[],"tools":[3]}',
        b'{"contents":[],"tools":[{"functionDeclarations":[{"description":"x"}]}]}',
        b'{"contents":[],"x":"\xff"}',
        b'{"contents":' + b"[" * 100_000,
        b'{"contents":[{"parts":[' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"]}]}",
    ],
)
def test_undecodable_requests_are_refused_in_one_line(body: bytes) -> None:
    assert refusal_message(body).status == 400


def test_a_request_that_is_too_large_is_refused() -> None:
    assert refusal_message(b" " * (GEMINI_BODY_BYTES_MAX + 1)).status == 413
