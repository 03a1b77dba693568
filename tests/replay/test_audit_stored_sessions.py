"""Sessions of our own store as recordings: what was sent, in the order it was sent."""

import json
from decimal import Decimal

import anthropic
import pytest
from anthropic.types import MessageParam
from tests.support.agents import Agent, MakeAgent, says
from tests.support.served import SimulatorServer

from holdfast.catalog.lookup import shipped_models
from holdfast.errors import ProviderError
from holdfast.events.log import Event
from holdfast.events.payloads.cache import ExplicitCacheChanged
from holdfast.events.payloads.session import EpochOpened
from holdfast.integrations import recorder_of, wrap
from holdfast.ledger.calls import iter_calls
from holdfast.ledger.spending import SessionSpending, SpendingFold
from holdfast.providers.registry import get_adapter
from holdfast.replay.audit import PriceLookup, audit_transcript
from holdfast.replay.recording import ReplayPrompt, Transcript
from holdfast.replay.stored_sessions import build_stored_transcript
from holdfast.simulator.script import parse_script
from holdfast.types.blocks import Thinking, ToolUse
from holdfast.types.prompt import LayerText
from holdfast.types.usage import Usage

CALL = ToolUse("t1", "add", '{"a": 1, "b": 2}')
REFUSED = ProviderError("invalid_request", "messages.0: image cannot be read", status=400)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def build_transcript(events: list[Event]) -> Transcript:
    transcript = build_stored_transcript(events, events[0].session_id)
    assert transcript is not None
    return transcript


def audit_session(transcript: Transcript) -> SessionSpending:
    conversation = audit_transcript(transcript, PriceLookup(shipped_models()))
    assert conversation is not None
    fold = SpendingFold()
    fold.add(conversation)
    (row,) = fold.build().sessions
    return row


def messages_and_system_end(body: bytes) -> tuple[object, str]:
    """The messages of a request without its breakpoints, and the end of its system prompt."""
    request = json.loads(body)
    for message in request["messages"]:
        for block in message["content"]:
            block.pop("cache_control", None)
    return request["messages"], (request.get("system") or [{"text": ""}])[-1]["text"]


def assert_replays_what_was_sent(harness: Agent, refused: tuple[int, ...] = ()) -> None:
    recording = build_transcript(harness.events).recording
    prompt = ReplayPrompt(recording, get_adapter("anthropic"), 1.0)
    bodies = [body for number, body in enumerate(harness.transport.bodies) if number not in refused]
    assert len(recording.calls) == len(bodies)
    for call, body in zip(prompt.iterate_calls(recording), bodies, strict=True):
        messages, system_end = messages_and_system_end(body)
        assert messages_and_system_end(b"{" + prompt.buffer.render(b"{").removeprefix(b"{").lstrip(b","))[0] == messages
        assert call.system_suffix in ("", system_end)


async def test_a_tool_loop_with_volatile_text_is_recorded_as_it_was_sent(agent: MakeAgent) -> None:
    state = {"memory": "milk"}
    harness = agent(
        *(says(CALL), says("3"), says("ok")),
        tools=[add],
        system_prompt="Be kind.",
        system_prompt_volatile=lambda: state["memory"],
    )
    async with harness.session as session:
        await session.send("1 + 2?")
        state["memory"] = "bread"
        harness.clock.advance(400)
        await session.send("and now?")
    assert_replays_what_was_sent(harness)
    recording = build_transcript(harness.events).recording
    assert [call.waited_for for call in recording.calls] == ["start", "tool", "user"]
    assert [call.kept_entries for call in recording.calls] == [None, None, None]
    assert recording.calls[2].at - recording.calls[1].at == 400
    assert recording.system == "Be kind."
    assert [tool.name for tool in recording.tools] == ["add", "recall_history"]


@pytest.mark.changes_prefix(reason="ephemeral text leaves with its turn")
async def test_ephemeral_text_leaves_the_recording_with_its_turn(agent: MakeAgent) -> None:
    texts = [LayerText("rag-context", "found", ephemeral=True)]
    harness = agent(says(Thinking("hm", "signed"), CALL), says("3"), says("ok"), tools=[add], volatile=texts)
    async with harness.session as session:
        await session.send("1 + 2?")
        await session.send("more")
    assert_replays_what_was_sent(harness)
    assert [call.kept_entries for call in build_transcript(harness.events).recording.calls] == [None, None, 1]


@pytest.mark.changes_prefix(reason="the seed layout puts volatile text in front of the history")
async def test_volatile_text_at_the_end_of_the_system_prompt_is_recorded_per_call(agent: MakeAgent) -> None:
    state = {"memory": "milk"}
    harness = agent(
        *(says(Thinking("hm", "signed"), CALL), says("3"), says("ok")),
        tools=[add],
        layout="seed",
        system_prompt="Be kind.",
        system_prompt_volatile=lambda: state["memory"],
    )
    async with harness.session as session:
        await session.send("1 + 2?")
        state["memory"] = "bread"
        await session.send("and now?")
    assert_replays_what_was_sent(harness)
    assert [call.system_suffix for call in build_transcript(harness.events).recording.calls] == [
        "milk",
        "milk",
        "bread",
    ]


async def test_a_refused_message_is_in_no_recording(agent: MakeAgent) -> None:
    harness = agent(says("Hello."), REFUSED, says("Yes."), system_prompt="Be brief.")
    async with harness.session as session:
        await session.send("hi")
        with pytest.raises(ProviderError):
            await session.send("broken")
        await session.send("Are you there?")
    assert_replays_what_was_sent(harness, refused=(1,))


async def test_each_call_is_recorded_and_priced_with_its_own_model(agent: MakeAgent) -> None:
    used = Usage(input=40, cache_write_5m=9_000, output=50)
    harness = agent(
        says(Thinking("hm", "signed"), "One.", usage=used), says("Two.", usage=used), system_prompt="Be brief."
    )
    async with harness.session as session:
        await session.send("one")
        await session.switch_model("anthropic:claude-opus-5-5")
        await session.send("two")
    assert_replays_what_was_sent(harness)
    row = audit_session(build_transcript(harness.events))
    assert row.main_cause == "model_switched"
    assert row.amounts.usd == sum(record.cost_usd for record in iter_calls(harness.events))


async def test_a_new_epoch_keeps_no_entries_and_explicit_caches_are_paid_for(agent: MakeAgent) -> None:
    harness = agent(says("One."), says("Two."), system_prompt="Be brief.")
    async with harness.session as session:
        await session.send("one")
        await session.send("two")
    events = harness.events
    opened = next(event for event in events if isinstance(event.payload, EpochOpened))
    second = max(number for number, event in enumerate(events) if event.actor == "user")
    explicit_cache = ExplicitCacheChanged(
        "created", "c", "m", "d", 9, 0.0, cost_usd=Decimal("0.5"), storage_cost_usd=Decimal("0.25")
    )
    extra = [
        Event("x", opened.at, opened.session_id, "system", payload) for payload in (opened.payload, explicit_cache)
    ]
    transcript = build_transcript([*events[:second], *extra, *events[second:]])
    assert [call.kept_entries for call in transcript.recording.calls] == [None, 0]
    difference = audit_session(transcript).amounts.usd - audit_session(build_transcript(events)).amounts.usd
    assert difference == Decimal("0.75")


async def test_a_session_without_a_paid_call_has_no_recording(agent: MakeAgent) -> None:
    harness = agent(REFUSED)
    async with harness.session as session:
        with pytest.raises(ProviderError):
            await session.send("hi")
    assert build_stored_transcript(harness.events, session.id) is None


def test_the_session_of_a_wrapped_client_has_sizes_and_no_text() -> None:
    with SimulatorServer(parse_script("")) as simulated, wrap(simulated.client()) as client:
        assert isinstance(client, anthropic.Anthropic)
        messages: list[MessageParam] = [{"role": "user", "content": "Hello."}]
        for _ in range(2):
            reply = client.messages.create(
                model="claude-sonnet-5-5",
                max_tokens=100,
                system="Be careful with the books of the harbour. " * 600,
                messages=messages,
            )
            messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": "Go on."}]
        recorder = recorder_of(client)
        transcript = build_transcript(list(recorder.read_events()))
        cost = sum(record.cost_usd for record in recorder.calls)
    assert not transcript.has_text
    row = audit_session(transcript)
    assert (row.amounts.calls, row.amounts.cache_misses) == (2, 0)
    assert row.amounts.usd == cost
