"""Encoding of requests to Gemini."""

import json

import pytest

from holdfast.errors import OrderError, UserError
from holdfast.providers.gemini import gemini
from holdfast.types.blocks import (
    Base64Source,
    Block,
    FileSource,
    Image,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    UrlSource,
    make_assistant_message,
    make_user_message,
)
from holdfast.types.prompt import Breakpoint, HistoryEntry, Parameters, Plan, Prompt, Segment, Stability
from holdfast.types.request_buffer import EncodedBlock
from holdfast.types.tool_spec import ToolSpec

MODEL = "gemini-3.8-flash"
READ = ToolSpec("read", "Reads.", '{"type":"object"}')
READ_TOOL = ToolSpec("look", "", "{}")
SEARCH = ToolSpec("googleSearch", "", "{}", '{"googleSearch":{}}')


def encode_parts(*content: Block) -> list[object]:
    """The encoded parts of one message of the model."""
    return encode_contents(HistoryEntry("assistant", content))[0]["parts"]


def encode_contents(*entries: HistoryEntry) -> list[dict[str, list[object]]]:
    body = gemini.encode_request(
        Prompt((Segment("history", Stability.GROWING, "messages", entries=entries),)), Plan(), Parameters(MODEL, 1)
    )
    contents: list[dict[str, list[object]]] = json.loads(body)["contents"]
    return contents


def encode_tools(*segments: tuple[ToolSpec, ...]) -> object:
    prompt = Prompt(tuple(Segment("tools", Stability.FROZEN, "tools", tools=tools) for tools in segments))
    return json.loads(gemini.encode_request(prompt, Plan(), Parameters(MODEL, 1)))["tools"]


def test_a_request_has_its_members_in_a_fixed_order() -> None:
    prompt = Prompt(
        (
            Segment("tools", Stability.FROZEN, "tools", tools=(READ,)),
            Segment("role", Stability.EPOCH, "system", system=(Text("Be brief."), Text("Be kind."))),
            Segment(
                "history",
                Stability.GROWING,
                "messages",
                entries=(
                    HistoryEntry("user", make_user_message("Hi.").content),
                    HistoryEntry("assistant", make_assistant_message("Yes?").content),
                ),
            ),
        )
    )
    parameters = Parameters(
        "models/" + MODEL,
        100,
        stop_sequences=("END",),
        temperature=0.5,
        tool_choice_json='{"type":"tool","name":"read"}',
        thinking_json='{"thinkingLevel": "high"}',
        extra=(("safetySettings", "[]"), ("generationConfig.topK", "3")),
    )
    assert gemini.encode_request(prompt, Plan(), parameters) == (
        b'{"generationConfig":{"maxOutputTokens":100,"temperature":0.5,"stopSequences":["END"],'
        b'"thinkingConfig":{"thinkingLevel": "high"},"topK":3},'
        b'"toolConfig":{"functionCallingConfig":{"mode":"ANY","allowedFunctionNames":["read"]}},"safetySettings":[],'
        b'"tools":[{"functionDeclarations":[{"name":"read","description":"Reads.",'
        b'"parametersJsonSchema":{"type":"object"}}]}],'
        b'"systemInstruction":{"parts":[{"text":"Be brief."},{"text":"Be kind."}]},'
        b'"contents":[{"role":"user","parts":[{"text":"Hi."}]},{"role":"model","parts":[{"text":"Yes?"}]}]}'
    )


@pytest.mark.parametrize("places", [(), ("tools",), ("system",), ("tools", "system")])
def test_a_request_without_messages_is_complete(places: tuple[str, ...]) -> None:
    segments = {
        "tools": Segment("tools", Stability.FROZEN, "tools", tools=(READ,)),
        "system": Segment("role", Stability.EPOCH, "system", system=(Text("x"),)),
    }
    body = json.loads(
        gemini.encode_request(Prompt(tuple(segments[index] for index in places)), Plan(), Parameters(MODEL, 1))
    )
    named = {"tools": "tools", "system": "systemInstruction"}
    assert list(body) == ["generationConfig", *(named[index] for index in places), "contents"]
    assert body["contents"] == []


@pytest.mark.parametrize(
    ("tools", "shape"),
    [
        ((READ, READ_TOOL), [["read", "look"]]),
        ((READ, SEARCH, READ_TOOL), [["read"], None, ["look"]]),
        ((SEARCH, READ), [None, ["read"]]),
        ((SEARCH, SEARCH), [None, None]),
        ((READ, SEARCH), [["read"], None]),
    ],
)
def test_declarations_share_an_element_and_provider_tools_keep_their_position(
    tools: tuple[ToolSpec, ...], shape: list[object]
) -> None:
    encoded_tools = encode_tools(tools)
    assert isinstance(encoded_tools, list)
    declared = [element.get("functionDeclarations") for element in encoded_tools]
    assert [names and [declaration["name"] for declaration in names] for names in declared] == shape
    assert encode_tools(*((tool,) for tool in tools)) == encoded_tools


def test_entries_of_one_role_remain_separate_contents() -> None:
    entries = (
        HistoryEntry("user", (Text("a"), Text("b"))),
        HistoryEntry("user", (Text("c"),)),
        HistoryEntry("system", (Text("d"),)),
    )
    assert encode_contents(*entries) == [
        {"role": "user", "parts": [{"text": "a"}, {"text": "b"}]},
        {"role": "user", "parts": [{"text": "c"}]},
        {"role": "user", "parts": [{"text": "d"}]},
    ]


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (Image(Base64Source("image/png", "aGk=")), {"inlineData": {"mimeType": "image/png", "data": "aGk="}}),
        (Image(UrlSource("https://a.b/c.png")), {"fileData": {"fileUri": "https://a.b/c.png"}}),
        *(
            (
                Image(FileSource(name)),
                {"fileData": {"fileUri": "https://generativelanguage.googleapis.com/v1beta/files/f1"}},
            )
            for name in ("f1", "files/f1", "https://generativelanguage.googleapis.com/v1beta/files/f1")
        ),
        (ToolUse("t", "read", '{"a": 1}'), {"functionCall": {"id": "t", "name": "read", "args": {"a": 1}}}),
        (Opaque("executableCode", b'{"executableCode":{"code":"1"}}'), {"executableCode": {"code": "1"}}),
        (
            ToolResult("t", (Text("3"),), name="add"),
            {"functionResponse": {"id": "t", "name": "add", "response": {"result": "3"}}},
        ),
        (
            ToolResult("t", (Text("no"), Text("never")), is_error=True, name="add"),
            {"functionResponse": {"id": "t", "name": "add", "response": {"error": "no\n\nnever"}}},
        ),
        (
            ToolResult("t", (Image(FileSource("f")), Opaque("response", b'{"x":1}')), name="snap"),
            {
                "functionResponse": {
                    "id": "t",
                    "name": "snap",
                    "response": {"result": ""},
                    "parts": [
                        {"fileData": {"fileUri": "https://generativelanguage.googleapis.com/v1beta/files/f"}},
                        {"x": 1},
                    ],
                }
            },
        ),
        (
            ToolResult(
                "t", (Opaque("response", b'{"output":[1]}'), Image(Base64Source("image/png", "aA=="))), name="f"
            ),
            {
                "functionResponse": {
                    "id": "t",
                    "name": "f",
                    "response": {"output": [1]},
                    "parts": [{"inlineData": {"mimeType": "image/png", "data": "aA=="}}],
                }
            },
        ),
    ],
)
def test_a_block_is_encoded_as_a_part(block: Block, part: object) -> None:
    assert encode_parts(block) == [part]


@pytest.mark.parametrize(
    ("id", "name"),
    [
        ("read_file-0123456789ab", "read_file"),
        ("read-2", "read"),
        ("a-b-3", "a-b"),
        ("toolu_1", "toolu_1"),
        ("call-xyz", "call-xyz"),
    ],
)
def test_a_result_without_a_name_takes_it_from_the_id_of_its_call(id: str, name: str) -> None:
    entry = gemini.lower_entry(HistoryEntry("user", (ToolResult(id, (Text("x"),)),)))
    assert entry == HistoryEntry("user", (ToolResult(id, (Text("x"),), name=name),))


CALL = ToolUse("t", "read", "{}")
CALLED = {"id": "t", "name": "read", "args": {}}


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ((Thinking("", "s"), CALL), [{"functionCall": CALLED, "thoughtSignature": "s"}]),
        (
            (Thinking("hm", "s"), CALL, CALL),
            [
                {"text": "hm", "thought": True},
                {"functionCall": CALLED, "thoughtSignature": "s"},
                {"functionCall": CALLED},
            ],
        ),
        ((Thinking("", "s"), Text("a")), [{"text": "a", "thoughtSignature": "s"}]),
        ((Text("a"), Thinking("", "s")), [{"text": "a"}, {"text": "", "thoughtSignature": "s"}]),
        (
            (Thinking("", "s"), Image(Base64Source("image/png", "aGk="))),
            [{"inlineData": {"mimeType": "image/png", "data": "aGk="}, "thoughtSignature": "s"}],
        ),
        (
            (Thinking("hm", "s"), Opaque("x", b'{"x":1}'), Text("a")),
            [{"text": "hm", "thought": True}, {"text": "", "thoughtSignature": "s"}, {"x": 1}, {"text": "a"}],
        ),
        (
            (Thinking("a", "s"), Thinking("b", "t"), CALL),
            [
                {"text": "a", "thought": True},
                {"text": "", "thoughtSignature": "s"},
                {"text": "b", "thought": True},
                {"functionCall": CALLED, "thoughtSignature": "t"},
            ],
        ),
        ((Thinking("hm"), Text("a"), Thinking("so")), [{"text": "hm", "thought": True}, {"text": "a"}]),
        ((RedactedThinking("x"), Text("a"), Thinking("", None)), [{"text": "a"}]),
    ],
)
def test_a_signature_is_on_the_part_after_its_thinking(content: tuple[Block, ...], parts: list[object]) -> None:
    assert encode_parts(*content) == parts


def test_a_message_without_encodable_content_is_omitted() -> None:
    assert (
        gemini.lower_entry(HistoryEntry("assistant", (RedactedThinking("x"), Thinking("hm"), Thinking("", "")))) is None
    )
    assert encode_contents(HistoryEntry("assistant", (Thinking("hm"),)), HistoryEntry("user", (Text("a"),))) == [
        {"role": "user", "parts": [{"text": "a"}]}
    ]


def test_an_entry_that_needs_no_lowering_remains_the_same_object() -> None:
    entry = HistoryEntry("assistant", (Text("a"), CALL))
    assert gemini.lower_entry(entry) is entry


def test_an_injected_entry_keeps_its_layer_when_it_is_lowered() -> None:
    entry = HistoryEntry("system", (Text("d"),), "memory", Stability.VOLATILE, True)
    assert gemini.lower_entry(entry) == HistoryEntry("user", (Text("d"),), "memory", Stability.VOLATILE, True)
    (block,) = gemini.encode_segment(Segment("x", Stability.VOLATILE, "messages", entries=(entry,)))
    assert (block.layer, block.stability, block.ephemeral, block.accepts_breakpoint) == (
        "memory",
        Stability.VOLATILE,
        True,
        False,
    )


def test_a_content_whose_start_is_omitted_is_opened_again() -> None:
    blocks = gemini.encode_segment(
        Segment("x", Stability.GROWING, "messages", entries=(HistoryEntry("assistant", (Text("a"), Text("b"))),))
    )
    assert gemini.separator(None, blocks[1]) == b',"contents":[{"role":"model","parts":['


def test_segments_out_of_order_are_refused_by_layer() -> None:
    late = EncodedBlock("role", "system", Stability.EPOCH, b"{}", accepts_breakpoint=False)
    early = EncodedBlock(
        "history", "messages", Stability.GROWING, b"{}", accepts_breakpoint=False, role="user", container_start=b"["
    )
    with pytest.raises(OrderError, match=r"layer 'role' \(system\) comes after layer 'history' \(messages\)"):
        gemini.separator(early, late)


def test_a_cache_breakpoint_is_refused() -> None:
    prompt = Prompt((Segment("tools", Stability.FROZEN, "tools", tools=(READ,)),))
    with pytest.raises(UserError, match="Gemini accepts no cache breakpoints"):
        gemini.encode_request(prompt, Plan((Breakpoint(0),)), Parameters(MODEL, 1))


@pytest.mark.parametrize(
    ("model", "stream", "path"),
    [
        (MODEL, False, f"/v1/models/{MODEL}:generateContent"),
        ("models/" + MODEL, True, f"/v1/models/{MODEL}:streamGenerateContent?alt=sse"),
    ],
)
def test_model_and_streaming_are_encoded_in_the_path(model: str, stream: bool, path: str) -> None:
    endpoint = gemini.endpoint(Parameters(model, 1, stream=stream))
    assert (endpoint.path, endpoint.method) == (path, "POST")
    assert dict(gemini.credentials("secret")) == {"x-goog-api-key": "secret"}


@pytest.mark.parametrize(
    "model", ["", "a/b", "models/models/a", "a:b", "a?b", "a%2f", "..", ".a", "ä", "a\n", "x" * 200]
)
def test_a_model_that_is_invalid_in_a_path_is_refused(model: str) -> None:
    with pytest.raises(UserError, match="is not valid in a path") as refused:
        gemini.endpoint(Parameters(model, 1))
    assert len(str(refused.value)) < 200


def test_betas_are_refused() -> None:
    with pytest.raises(UserError, match="Gemini has no betas, but the request names 'b-1'"):
        gemini.endpoint(Parameters(MODEL, 1, betas=("b-1",)))


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        ('{"type":"auto"}', {"mode": "AUTO"}),
        ('{"type": "any", "disable_parallel_tool_use": true}', {"mode": "ANY"}),
        ('{"type":"none"}', {"mode": "NONE"}),
    ],
)
def test_a_tool_choice_is_encoded_as_a_mode(choice: str, config: object) -> None:
    request_head = json.loads(gemini.request_head(Parameters(MODEL, 1, tool_choice_json=choice)) + b"}")
    assert request_head["toolConfig"] == {"functionCallingConfig": config}


@pytest.mark.parametrize(
    "choice",
    ['{"type":"tool"}', '{"type":"any","name":"x"}', '{"type":"all"}', "null", "{", '{"type":"any","x":1}', "[" * 9999],
)
def test_a_tool_choice_that_gemini_lacks_is_refused(choice: str) -> None:
    with pytest.raises(UserError, match="the tool choice cannot be encoded for Gemini"):
        gemini.request_head(Parameters(MODEL, 1, tool_choice_json=choice))


@pytest.mark.parametrize(
    "name", ["tools", "contents", "systemInstruction", "generationConfig", "generationConfig.temperature"]
)
def test_an_extra_field_that_has_a_parameter_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"extra field '{name}' has a place of its own"):
        gemini.request_head(Parameters(MODEL, 1, extra=((name, "1"),)))


def test_a_tool_config_is_encoded_once() -> None:
    config = ("toolConfig", '{"functionCallingConfig":{"mode":"VALIDATED"}}')
    assert b'"toolConfig":{"functionCallingConfig":{"mode":"VALIDATED"}}' in gemini.request_head(
        Parameters(MODEL, 1, extra=(config,))
    )
    with pytest.raises(UserError, match="extra field 'toolConfig' has a place of its own"):
        gemini.request_head(Parameters(MODEL, 1, tool_choice_json='{"type":"any"}', extra=(config,)))


def test_a_lone_surrogate_is_replaced() -> None:
    assert encode_parts(Text("a\ud800")) == [{"text": "a\ufffd"}]
