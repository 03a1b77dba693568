"""Request parameters of a session: temperature, tool choice, and fields that have no option."""

import json
from typing import Any, Unpack

import pytest

from holdfast import MemoryStore, Session, SimulatedProvider, UserError
from holdfast.runtime.options import Options
from holdfast.simulator.exchange import RequestRing
from holdfast.types.blocks import Json

CHOICE: dict[str, Json] = {"type": "auto", "disable_parallel_tool_use": True}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class RecordedProvider:
    """A simulated provider, a store, and the bodies that were sent."""

    def __init__(self) -> None:
        self.ring = RequestRing()
        self.store = MemoryStore()
        self.transport = SimulatedProvider(requests=self.ring)

    def options_with(self, **more: Unpack[Options]) -> Options:
        return {"store": self.store, "transport": self.transport, "tools": [add], **more}

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in self.ring.list_requests()]


@pytest.mark.parametrize(
    ("model", "field", "expected"),
    [
        ("anthropic:claude-sonnet-5-5", "top_p", {"temperature": 0.0, "top_p": 0.9}),
        ("openai:gpt-6-luna", "top_p", {"temperature": 0.0, "top_p": 0.9}),
        ("openai-chat:gpt-6-luna", "top_p", {"temperature": 0.0, "top_p": 0.9}),
        ("gemini:gemini-3.8-flash", "generationConfig.topP", {"temperature": 0.0, "topP": 0.9}),
    ],
)
async def test_temperature_and_other_fields_are_in_every_request(
    model: str, field: str, expected: dict[str, float]
) -> None:
    recorded = RecordedProvider()
    async with Session.create(
        **recorded.options_with(model=model, temperature=0, request_fields={field: 0.9})
    ) as session:
        await session.send("one")
        await session.send("two")
    assert len(recorded.bodies) == 2
    for body in recorded.bodies:
        parameters = body.get("generationConfig", body)
        assert {name: parameters[name] for name in expected} == expected


async def test_a_tool_choice_is_encoded_in_the_format_of_each_provider() -> None:
    recorded = RecordedProvider()
    async with Session.create(
        **recorded.options_with(model="anthropic:claude-sonnet-5-5", tool_choice=CHOICE)
    ) as session:
        await session.send("one")
        await session.switch_model("openai:gpt-6-luna")
        await session.send("two")
    first, second = recorded.bodies
    assert first["tool_choice"] == CHOICE
    assert (second["tool_choice"], second["parallel_tool_calls"]) == ("auto", False)


async def test_a_resumed_session_keeps_its_parameters_unless_given_others() -> None:
    recorded = RecordedProvider()
    async with Session.create(**recorded.options_with(temperature=0.5, request_fields={"top_k": 4})) as session:
        await session.send("one")
    async with Session.resume(session.id, **recorded.options_with()) as again:
        await again.send("two")
    async with Session.resume(session.id, **recorded.options_with(temperature=1, request_fields={})) as again:
        await again.send("three")
    sent = [(body["temperature"], body.get("top_k")) for body in recorded.bodies]
    assert sent == [(0.5, 4), (0.5, 4), (1.0, None)]


async def test_provider_specific_fields_are_not_sent_to_another_provider() -> None:
    recorded = RecordedProvider()
    async with Session.create(
        **recorded.options_with(model="anthropic:claude-sonnet-5-5", request_fields={"top_k": 4}, temperature=0.5)
    ) as session:
        await session.switch_model("openai:gpt-6-luna")
        await session.send("two")
    (body,) = recorded.bodies
    assert "top_k" not in body
    assert body["temperature"] == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 2.5}, "temperature must be a number from 0 to 2, not 2.5"),
        ({"temperature": float("nan")}, "temperature must be a number from 0 to 2, not nan"),
        ({"temperature": True}, "temperature must be a number from 0 to 2, not True"),
        ({"temperature": "hot"}, "temperature must be a number from 0 to 2, not str"),
        ({"calls_expected": -1}, "calls_expected must be a whole number of at least 1, not -1"),
        ({"tool_choice": "any"}, "tool_choice must be a mapping such as {'type': 'auto'}, not str"),
        ({"request_fields": [1]}, "request_fields must be a mapping from names of fields to values"),
        ({"request_fields": {"": 1}}, "request_fields must be a mapping from names of fields to values"),
        ({"request_fields": {"max_tokens": 1}}, "'max_tokens' has a place of its own in the request"),
        ({"request_fields": {"messages": []}}, "'messages' has a place of its own in the request"),
        ({"request_fields": {"cache_control": {}}}, "'cache_control' is set by the session"),
        ({"request_fields": {"prompt_cache_key": "x"}}, "'prompt_cache_key' is set by the session"),
        ({"request_fields": {"top_p": object()}}, "request_fields: 'top_p' cannot be written as JSON"),
        ({"request_fields": {"user": "\ud800"}}, "request_fields: 'user' cannot be written as JSON"),
        ({"thinking": {"type": object()}}, "thinking cannot be written as JSON"),
        ({"stop_sequences": ["\ud800"]}, "stop_sequences must be non-empty texts in valid Unicode"),
        ({"stop_sequences": [""]}, "stop_sequences must be non-empty texts in valid Unicode"),
    ],
)
async def test_parameters_that_cannot_be_sent_are_refused_before_anything_is_stored(
    options: dict[str, object], message: str
) -> None:
    recorded = RecordedProvider()
    with pytest.raises(UserError) as caught:
        async with Session.create(**recorded.options_with(**options)):  # type: ignore[arg-type]
            pass
    assert message in str(caught.value)
    assert list(recorded.store.sessions()) == []


async def test_parameters_that_a_provider_does_not_support_are_refused_when_the_session_is_created() -> None:
    with pytest.raises(UserError, match="takes no stop sequences"):
        async with Session.create(**RecordedProvider().options_with(model="openai:gpt-6-luna", stop_sequences=["END"])):
            pass
