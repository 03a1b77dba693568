"""Properties of the simulator for any input, on every endpoint of every provider."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import simulated_gemini as gemini
from tests.support.simulated import simulator
from tests.support.simulated_openai import Chat, Responses, Wire

KEY = {"authorization": "Bearer key"}
SECRET = "the secret words"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def _openai(api: Chat, **fields: Any) -> Wire:
    messages = [
        api.message("developer", api.part("Be brief.", {"mode": "explicit", "ttl": "12h"})),
        api.message("user", SECRET, "And more."),
        *api.calls("call_1", "call_2"),
        api.result("call_1"),
        api.result("call_2"),
        api.message("assistant", "Done."),
        api.message("user", "And?"),
    ]
    return api.body(*messages, tools=[api.tool("read")], tool_choice="auto", stream=False, **fields)


ANTHROPIC: Wire = {
    "model": "claude-sonnet-5-5",
    "max_tokens": 10,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": SECRET}]}],
}
OPTIONS: Wire = {"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}, "prompt_cache_key": "k"}
ROUTED = {**_openai(Chat()), "model": "anthropic/claude-sonnet-5.5", "reasoning": {"effort": "low"}}
ROUTED["messages"] = [
    {**entry, "content": SECRET} if entry["role"] == "developer" else entry for entry in ROUTED["messages"]
]
GEMINI = gemini.request(
    gemini.user(SECRET, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}),
    gemini.model(
        {"text": "Hm.", "thought": True},
        {"text": "I look.", "thoughtSignature": "skip_thought_signature_validator"},
        gemini.call("read", "c1"),
        gemini.call(),
    ),
    gemini.user(gemini.result("read", "c1"), gemini.result(), "And?"),
    system="Be brief.",
    tools=[gemini.tool("read"), {"googleSearch": {}}],
    toolConfig={"functionCallingConfig": {"mode": "AUTO"}},
    generationConfig={"maxOutputTokens": 10, "stopSequences": ["x"], "thinkingConfig": {"includeThoughts": True}},
)
BODIES: dict[str, Wire] = {
    "/v1/messages": ANTHROPIC,
    "/v1/chat/completions": _openai(Chat(), stream_options={"include_usage": True}, **OPTIONS),
    "/v1/responses": _openai(Responses(), text={"verbosity": "low"}, **OPTIONS),
    "/v1/responses/input_tokens": _openai(Responses()),
    "/api/v1/chat/completions": ROUTED,
    "/v1/models/gemini-3.8-flash:generateContent": GEMINI,
    "/v1beta/models/gemini-3.8-flash:streamGenerateContent": GEMINI,
    "/v1/models/gemini-3.8-flash:countTokens": {"generateContentRequest": GEMINI},
    "/v1/cachedContents": {
        "model": "models/gemini-3.8-flash",
        "ttl": "300s",
        "displayName": "x",
        "contents": GEMINI["contents"][:1],
        "tools": GEMINI["tools"],
        "systemInstruction": {"parts": [{"text": gemini.LONG}]},
    },
}

every_endpoint = pytest.mark.parametrize("path", BODIES)


def value_paths(value: Any) -> list[tuple[str | int, ...]]:
    """The paths to every value inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *((key, *rest) for key, inner in inside for rest in value_paths(inner))]


def changed(value: Any, place: tuple[str | int, ...], change: Callable[[Any], Any]) -> Any:
    if not place:
        return change(value)
    if isinstance(value, dict):
        return {key: changed(inner, place[1:], change) if key == place[0] else inner for key, inner in value.items()}
    return [changed(inner, place[1:], change) if index == place[0] else inner for index, inner in enumerate(value)]


def check_response(path: str, body: bytes) -> int:
    """The response is a reply, or a refusal on one line that quotes nothing of the request."""
    answer = simulator().handle("POST", path, headers=KEY, body=body)
    read = answer.read_body()
    if answer.status == 200:
        assert read
        return 200
    message: str = msgspec.json.decode(read)["error"]["message"]
    assert 400 <= answer.status < 500, message
    assert SECRET not in message
    assert "\n" not in message
    return answer.status


@every_endpoint
def test_every_body_is_valid_before_it_is_changed(path: str) -> None:
    assert check_response(path, msgspec.json.encode(BODIES[path])) == 200


@every_endpoint
@settings(max_examples=2 * settings().max_examples)
@given(data=st.data())
def test_a_value_of_another_type_anywhere_is_answered_or_refused(path: str, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(value_paths(BODIES[path])))
    value = data.draw(json_values)
    check_response(path, msgspec.json.encode(changed(BODIES[path], place, lambda _: value)))


@every_endpoint
@given(data=st.data())
def test_a_removed_duplicated_or_added_member_is_answered_or_refused(path: str, data: st.DataObject) -> None:
    places = [place for place in value_paths(BODIES[path]) if place]
    place = data.draw(st.sampled_from(places))
    name = data.draw(
        st.sampled_from(
            ["type", "content", "id", "cache_control", "prompt_cache_breakpoint", "parts", "functionCall", "text", "x"]
        )
    )
    value = data.draw(json_values)

    def change(inner: Any) -> Any:
        if isinstance(inner, dict):
            return {**inner, name: value}
        if isinstance(inner, list):
            return data.draw(st.sampled_from([[], inner * 2, inner[1:], inner[:-1], inner[::-1]]))
        return inner

    check_response(path, msgspec.json.encode(changed(BODIES[path], place, change)))


@every_endpoint
@given(body=st.binary(max_size=40), cut_at=st.integers(0, 150))
def test_arbitrary_bytes_are_refused(path: str, body: bytes, cut_at: int) -> None:
    assert check_response(path, body) == 400
    assert check_response(path, msgspec.json.encode(BODIES[path])[:cut_at] + body) == 400


@every_endpoint
def test_endless_nesting_is_refused(path: str) -> None:
    body = msgspec.json.encode({**BODIES[path], "extra": 0})
    assert check_response(path, body.replace(b'"extra":0', b'"extra":' + b"[" * 100_000 + b"]" * 100_000)) in (200, 400)
    assert check_response(path, b"[" * 100_000) == 400


@every_endpoint
def test_the_same_requests_get_the_same_responses_byte_for_byte(path: str) -> None:
    def play() -> list[bytes]:
        provider = simulator('{"content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}]}')
        body = msgspec.json.encode(BODIES[path])
        return [provider.handle("POST", path, headers=KEY, body=body).read_body() for _ in range(3)]

    assert play() == play()
