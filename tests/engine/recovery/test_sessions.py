"""Sessions whose requests are refused for known reasons: mended, asked again, recorded, and never in a loop."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import TypeVar, Unpack

import msgspec
import pytest
from tests.support.agents import MakeAgent, Pause, says

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import CountingIds, ManualClock
from holdfast.compaction.models import CompactionConfig
from holdfast.engine.certify import certify
from holdfast.engine.conversation import Conversation
from holdfast.engine.reducer import fold_events
from holdfast.errors import ProviderError
from holdfast.events.log import Event, event_type_of
from holdfast.events.payloads.calls import LlmCallCompleted, RequestPrepared
from holdfast.events.payloads.compaction import ContextCompacted
from holdfast.events.payloads.recovery import (
    ContextRepaired,
    ProviderLimited,
    RecoveryAttempted,
    RecoveryEnqueued,
    RecoveryEscalated,
    RecoveryFailed,
    RecoverySucceeded,
    Splice,
    StepResult,
    ThinkingDropped,
)
from holdfast.events.payloads.session import MessageAppended
from holdfast.events.payloads.union import AnyPayload
from holdfast.ledger.accounting import iter_entries
from holdfast.ledger.calls import iter_calls
from holdfast.providers.adapter import Endpoint
from holdfast.providers.registry import get_adapter
from holdfast.providers.wire_request import OnRetry
from holdfast.recovery.scenarios import StepName
from holdfast.replay.stored_sessions import build_stored_transcript
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import Text, Thinking, ToolResult, is_thinking
from holdfast.types.transcript import merge_into_messages, validate_transcript

Kept = TypeVar("Kept", bound=AnyPayload)

BINDING = "anthropic:claude-sonnet-5-5"
UNBOUND = "anthropic:claude-sonnet-4-6"
PROMPT = "Follow the rules of the house. " * 700
THOUGHT = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Said."}]
LOOKS = [{"type": "thinking", "thinking": "look"}, {"type": "tool_use", "name": "look", "input": {"lines": 3}}]
MARKS_REFUSED = ProviderError("invalid_request", "cache_control: Extra inputs are not permitted", status=400)


def look(lines: int) -> str:
    """Look."""
    return "a line of what is seen\n" * lines


class Played:
    """A session against a simulator that objects as its script says."""

    def __init__(self, *lines: object, **options: Unpack[Options]) -> None:
        written = "\n".join(json.dumps(line if isinstance(line, dict) else {"content": line}) for line in lines)
        self.provider = SimulatedProvider(clock=ManualClock(), script=written)
        self.store = MemoryStore()
        self.parts: Options = {
            "store": self.store,
            "transport": self.provider,
            "new_id": CountingIds(),
            "tools": [look],
        }
        given: Options = {"model": BINDING, "system_prompt": PROMPT, "clock": ManualClock()}
        created: Options = given | self.parts | options
        self.session = Session.create(**created)

    async def say(self, *messages: str) -> list[str]:
        """What was answered; what was raised, by its kind."""
        said: list[str] = []
        async with self.session as session:
            for message in messages:
                try:
                    said.append((await session.send(message)).text)
                except ProviderError as error:
                    said.append(error.kind)
        return said

    @property
    def events(self) -> list[Event]:
        return list(self.store.read(self.session.id))

    def kept(self, kind: type[Kept]) -> list[Kept]:
        return [event.payload for event in self.events if isinstance(event.payload, kind)]

    @property
    def statuses(self) -> list[int]:
        return [request.status for request in self.provider.requests]

    @property
    def steps(self) -> list[tuple[str, str]]:
        """Of the last attempt that succeeded."""
        results = [it.results for it in self.kept(RecoverySucceeded)]
        return [(result.step, result.status) for result in results[-1]]

    def check(self) -> None:
        """The session is legal, its log makes the bytes that were sent, and what was lost was planned."""
        state = fold_events(self.events, self.session.id)
        assert validate_transcript(merge_into_messages(state.entries)) == ()
        made = [one.violation for one in certify(self.events, self.session.id, shipped_models())]
        assert made == [None] * len(made)
        judged = [one.verdict.kind for one in iter_entries(self.events, shipped_models()) if one.verdict]
        assert not {"prefix_changed", "lookback_miss", "provider_side"} & set(judged)


def marks_of(played: Played) -> list[int]:
    return [len(it.plan.breakpoints) for it in played.kept(RequestPrepared)]


async def test_one_mark_too_many_is_left_out_from_then_on() -> None:
    played = Played({"fault": "breakpoints;max=2"}, "One.", "Two.", "Three.")
    assert await played.say("a", "b", "c") == ["One.", "Two.", "Three."]
    assert marks_of(played) == [3, 2, 2, 2]
    assert played.steps == [("drop_deepest_marker", "done"), ("retry_request", "recovered")]
    assert played.kept(ProviderLimited) == [ProviderLimited("provider_rejects_marker", breakpoints_max=2)]
    assert "2 of 3 are set" in played.kept(RequestPrepared)[-1].plan.notes[-1]
    played.check()


@pytest.mark.parametrize("model", [BINDING, "openai:gpt-6.1-sol", "openai-chat:gpt-6.1-sol"])
async def test_where_no_mark_is_taken_none_is_sent(model: str) -> None:
    played = Played({"fault": "breakpoints"}, "One.", {"fault": "breakpoints"}, "Two.", model=model)
    assert await played.say("a", "b") == ["One.", "Two."]
    assert marks_of(played)[-2:] == [0, 0]
    assert len(played.kept(RecoveryAttempted)) == 1
    assert len(played.statuses) <= 4
    played.check()


async def test_a_lifetime_that_is_refused_becomes_the_shortest() -> None:
    played = Played("One.", {"fault": "ttl"}, "Two.", "Three.")
    assert await played.say("a", "b", "c") == ["One.", "Two.", "Three."]
    lifetimes = [{mark.ttl for mark in it.plan.breakpoints} for it in played.kept(RequestPrepared)]
    assert lifetimes == [{"5m"}, {"1h"}, {"5m"}, {"5m"}]
    assert played.kept(ProviderLimited) == [ProviderLimited("provider_rejects_marker", shortest_ttl_only=True)]
    played.check()


async def test_a_cache_that_cannot_be_marked_is_not_kept_alive() -> None:
    played = Played({"fault": "breakpoints"}, "One.", "Two.", keep_alive=True)
    await played.say("a", "b")
    assert played.kept(RequestPrepared)[-1].plan.notes[-1] == ("no keep-alive: the provider refused breakpoints")


async def test_another_model_may_take_marks_again() -> None:
    played = Played({"fault": "breakpoints"}, "One.", "Two.")
    async with played.session as session:
        await session.send("a")
        await session.switch_model("anthropic:claude-opus-5-5")
        await session.send("b")
    assert marks_of(played)[-1] == 3


async def test_marks_that_stay_refused_end_in_the_providers_own_words(agent: MakeAgent) -> None:
    one = agent(MARKS_REFUSED, MARKS_REFUSED, MARKS_REFUSED, says("Yes."), system_prompt=PROMPT)
    async with one.session as session:
        with pytest.raises(ProviderError, match="Extra inputs are not permitted"):
            await session.send("hi")
        assert len(one.transport.bodies) == 3
        assert (await session.send("again")).text == "Yes."
    escalated = [it for it in one.payloads if isinstance(it, RecoveryEscalated)]
    assert [(it.scenario, it.policy) for it in escalated] == [("provider_rejects_marker", "log_and_continue")]


async def test_thinking_that_is_refused_stays_behind() -> None:
    played = Played(THOUGHT, {"fault": "thinking"}, THOUGHT, "Three.")
    assert await played.say("a", "b", "c") == ["Said.", "Said.", "Three."]
    assert played.kept(ThinkingDropped) == [ThinkingDropped("thinking_prefix_mismatch", entry_count=3, block_count=1)]
    assert played.steps == [("drop_old_thinking", "done"), ("retry_request", "recovered")]
    last = played.session.history
    # What was thought after that is sent again.
    assert [any(map(is_thinking, message.content)) for message in last if message.role == "assistant"][:2] == [
        False,
        True,
    ]
    assert len(played.kept(RecoveryAttempted)) == 1
    played.check()


@pytest.mark.parametrize("model", [UNBOUND, "openai:gpt-6.1-sol", "gemini:gemini-3.8-flash"])
async def test_the_thinking_of_the_turn_goes_last(model: str) -> None:
    played = Played(THOUGHT, LOOKS, {"fault": "thinking"}, "Two.", model=model, thinking={"type": "adaptive"})
    assert await played.say("a", "b") == ["Said.", "Two."]
    if model == UNBOUND:
        assert [it.entry_count for it in played.kept(ThinkingDropped)] == [2, 5]
        assert [status for _, status in played.steps] == ["done", "done", "done", "recovered"]
    assert not any(map(is_thinking, (block for message in played.session.history for block in message.content)))
    played.check()


async def test_where_thinking_is_bound_all_of_it_goes_at_once() -> None:
    played = Played(THOUGHT, LOOKS, {"fault": "thinking"}, "Two.")
    assert await played.say("a", "b") == ["Said.", "Two."]
    assert [(it.entry_count, it.block_count) for it in played.kept(ThinkingDropped)] == [(5, 2)]
    played.check()


async def test_thinking_that_is_refused_where_there_is_none_ends_the_turn(agent: MakeAgent) -> None:
    words = ProviderError("invalid_request", "messages.1: Invalid `signature` in `thinking` block", status=400)
    one = agent(words, says("Yes."))
    async with one.session as session:
        with pytest.raises(ProviderError, match="signature"):
            await session.send("hi")
        await session.send("again")
    assert len(one.transport.bodies) == 2


@pytest.mark.changes_prefix(reason="thinking that the provider refuses leaves the view")
async def test_what_was_changed_to_no_avail_is_not_sent_again_unchanged(agent: MakeAgent) -> None:
    words = ProviderError("invalid_request", "messages.1: Invalid `signature` in `thinking` block", status=400)
    one = agent(says(Thinking("hm", "sealed"), "One."), words, words, says("Three."))
    async with one.session as session:
        await session.send("a")
        with pytest.raises(ProviderError, match="signature"):
            await session.send("b")
        assert len(one.transport.bodies) == 3
        assert (await session.send("c")).text == "Three."


async def test_a_result_that_does_not_fit_is_cut_and_the_turn_goes_on() -> None:
    many = [{"type": "tool_use", "name": "look", "input": {"lines": 4000}}]
    played = Played(many, {"fault": "window;tokens=15000"}, "Seen.", "Yes.")
    assert await played.say("look", "and?") == ["Seen.", "Yes."]
    assert played.kept(ProviderLimited) == [ProviderLimited("context_overflow", window_tokens_max=15_000)]
    (mended,) = played.kept(ContextRepaired)
    result = mended.splices[0].entries[0].content[0]
    assert isinstance(result, ToolResult)
    assert isinstance(result.content[0], Text)
    assert "characters are left out here" in result.content[0].text
    whole = [it.message for it in played.kept(MessageAppended) if isinstance(it.message.content[0], ToolResult)]
    assert len(str(whole)) > len(str(result)), "the log keeps what was seen"
    assert all(record.is_prefix_unchanged for record in iter_calls(played.events))
    # What was taken before is still there, and known to be.
    assert played.kept(RequestPrepared)[2].plan.expected_read_tokens > 0
    played.check()


@pytest.mark.parametrize("model", ["openai:gpt-5.4", "gemini:gemini-3.8-flash", "openai-chat:gpt-5.4"])
async def test_every_providers_window_is_learned(model: str) -> None:
    many = [{"type": "tool_use", "name": "look", "input": {"lines": 4000}}]
    played = Played(many, {"fault": "window;tokens=15000"}, "Seen.", model=model)
    assert await played.say("look") == ["Seen."]
    assert [it.window_tokens_max for it in played.kept(ProviderLimited)] == [15_000]
    played.check()


async def test_a_question_that_does_not_fit_leaves_the_conversation_and_nothing_else() -> None:
    played = Played("One.", {"fault": "window;tokens=10"}, "Two.")
    assert await played.say("a", "b") == ["One.", "context_overflow"]
    assert played.statuses == [200, 400]
    assert [message.role for message in played.session.history] == ["user", "assistant"]
    (escalated,) = played.kept(RecoveryEscalated)
    assert (escalated.policy, escalated.results[-1].detail) == (
        "alert_human",
        "nothing could be changed",
    )
    played.check()


async def test_steps_that_make_the_view_smaller_can_be_given() -> None:
    async def clear(talk: Conversation) -> str:
        first = talk.state.entries[0]
        shorter = msgspec.structs.replace(first, content=(Text("(left out)"),))
        await talk.record("system", ContextRepaired("cleared", (Splice(0, 1, (shorter,)),)))
        return "the first question was left out"

    played = Played("One.", {"fault": "window;tokens=9000"}, "Two.")
    async with played.session as session:
        talk = session._open_conversation
        talk.deps = msgspec.structs.replace(talk.deps, overflow_steps={StepName.BatchClear: clear})
        await session.send("far too much " * 1000)
        assert (await session.send("b")).text == "Two."
    assert [step for step, _ in played.steps] == [
        "learn_window",
        "shorten_newest_results",
        "retry_request",
        "batch_clear",
        "retry_request",
    ]
    assert played.statuses == [200, 400, 200]
    played.check()


@pytest.mark.parametrize("never", [False, True])
async def test_a_history_that_does_not_fit_is_made_shorter_unless_it_must_not_be(never: bool) -> None:
    said = [f"Part {number}: " + "so it was told. " * 400 for number in range(6)]
    lines = ["One.", "Two.", "Three.", "Four.", "Five.", {"fault": "window;tokens=16000"}, "Six."]
    played = Played(*lines, model=UNBOUND, compaction=False if never else CompactionConfig(money=False))
    outcome = await played.say(*said)
    if never:
        assert outcome[-1] == "context_overflow"
        assert played.kept(ContextCompacted) == []
        return
    # The script answers by how often the model has spoken, as far as that is in view.
    assert outcome == ["One.", "Two.", "Three.", "Four.", "Five.", "Two."]
    shorter = played.kept(ContextCompacted)
    assert shorter[-1].trigger == "overflow"
    assert shorter[-1].tokens_after < 16_000 < shorter[0].tokens_before
    assert "checkpoint" in [step for step, _ in played.steps]
    assert played.statuses[-2:] == [400, 200]
    played.check()


def damaged(played: Played, lost: int) -> MemoryStore:
    """The store of a session whose log has lost one of its messages."""
    store = MemoryStore()
    messages = [event.id for event in played.events if isinstance(event.payload, MessageAppended)]
    store.append([event for event in played.events if event.id != messages[lost]]).result()
    return store


LOOKED = [{"type": "tool_use", "name": "look", "input": {"lines": 3}}]


@pytest.mark.parametrize("model", [BINDING, "openai:gpt-5.4", "openai-chat:gpt-5.4", "gemini:gemini-3.8-flash"])
@pytest.mark.parametrize("lost", [1, 2])
async def test_a_call_or_a_result_that_was_lost_is_made_up_for(model: str, lost: int) -> None:
    played = Played(LOOKED, "Seen.", "Yes.", "Yes.", "Yes.", model=model)
    await played.say("look")
    store = damaged(played, lost)
    resumed: Options = {**played.parts, "store": store}
    async with Session.resume(played.session.id, **resumed) as session:
        assert (await session.send("and?")).text
        history = session.history
    events = list(store.read(session.id))
    told = [
        event_type_of(event.payload)
        for event in events
        if event_type_of(event.payload).startswith(("recovery", "context."))
    ]
    assert told == ["recovery.attempted", "context.repaired", "recovery.succeeded"]
    assert validate_transcript(history) == ()
    assert ("This call was interrupted" in str(history)) == (lost == 2)
    assert "a line of what is seen" not in str(history)
    # What was mended is mended for good, in another process too.
    async with Session.resume(session.id, **resumed) as session:
        await session.send("still?")
    assert sum(isinstance(event.payload, RecoveryAttempted) for event in store.read(session.id)) == 1


async def test_where_nothing_is_unpaired_the_turn_ends_and_the_session_does_not() -> None:
    played = Played("One.", {"fault": "unpaired"}, "Two.")
    assert await played.say("a", "b", "c") == ["One.", "invalid_request", "Two."]
    (escalated,) = played.kept(RecoveryEscalated)
    assert (escalated.scenario, escalated.policy) == ("orphan_tool_pair", "abort")
    assert "every call has its result" in escalated.reason
    played.check()


async def test_two_reasons_are_mended_one_after_the_other() -> None:
    played = Played(THOUGHT, {"fault": "breakpoints"}, {"fault": "thinking"}, "Two.")
    assert await played.say("a", "b") == ["Said.", "Two."]
    assert [it.scenario for it in played.kept(RecoverySucceeded)] == [
        "provider_rejects_marker",
        "thinking_prefix_mismatch",
    ]
    played.check()


async def test_another_failure_while_it_is_mended_is_what_the_caller_is_told(agent: MakeAgent) -> None:
    down = ProviderError("server_error", "out of order", status=500)
    one = agent(MARKS_REFUSED, down, says("Yes."), system_prompt=PROMPT)
    async with one.session as session:
        with pytest.raises(ProviderError, match="out of order"):
            await session.send("hi")
        assert (await session.send("go on")).text == "Yes."
        assert session.history[0].content == (Text("hi"), Text("go on"))
    failed = [it for it in one.payloads if isinstance(it, RecoveryFailed)]
    assert [(it.results[-1].step, it.results[-1].detail) for it in failed] == [("retry_request", "out of order")]


async def test_a_turn_can_be_cancelled_while_it_is_mended(agent: MakeAgent) -> None:
    one = agent(MARKS_REFUSED, Pause(says("Half of", "it."), 4), says("Yes."), system_prompt=PROMPT)
    async with one.session as session:
        turn = asyncio.ensure_future(session.send("hi"))
        await one.transport.paused.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert (await session.send("go on")).text == "Yes."
        assert validate_transcript(session.history) == ()
    failed = [it for it in one.payloads if isinstance(it, RecoveryFailed)]
    assert [it.results[-1] for it in failed] == [StepResult("retry_request", "failed", "cancelled")]


class Wire:
    """A provider that refuses in the middle of its reply, or is broken itself."""

    def __init__(self, *steps: bytes | Exception) -> None:
        self._steps = list(steps)
        self.sent = 0

    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        self.sent += 1
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        for chunk in [*get_adapter("anthropic").encode_stream(says("Half.", "Whole."))][:3]:
            yield chunk
        yield step

    async def aclose(self) -> None: ...


async def test_a_reply_that_has_begun_is_not_asked_for_again() -> None:
    fault = {"type": "error", "error": {"type": "invalid_request_error", "message": "cache_control: no"}}
    wire = Wire(b"event: error\ndata: " + json.dumps(fault).encode() + b"\n\n")
    async with Session.create(model=BINDING, store=MemoryStore(), transport=wire, system_prompt=PROMPT) as session:
        with pytest.raises(ProviderError, match="cache_control"):
            await session.send("hi")
    assert wire.sent == 1


async def test_what_is_no_fault_of_the_provider_is_raised_as_it_is() -> None:
    wire = Wire(MARKS_REFUSED, LookupError("a bug"))
    async with Session.create(model=BINDING, store=MemoryStore(), transport=wire, system_prompt=PROMPT) as session:
        with pytest.raises(LookupError, match="a bug"):
            await session.send("hi")


@pytest.mark.parametrize("fault", ["breakpoints", "thinking", "window;tokens=1", "unpaired", "ttl"])
@pytest.mark.parametrize("model", [BINDING, "openai:gpt-6.1-sol", "gemini:gemini-3.8-flash"])
async def test_nothing_is_asked_more_than_a_few_times(fault: str, model: str) -> None:
    lines = [line for _ in range(3) for line in ({"fault": fault}, {"fault": fault}, {"content": THOUGHT})]
    played = Played(*lines, model=model)
    await played.say("a", "b", "c")
    assert len(played.statuses) <= 3 * 4
    assert len(played.kept(LlmCallCompleted)) == played.statuses.count(200)
    attempts = [it.incident for it in played.kept(RecoveryAttempted)]
    assert len(attempts) == len(set(attempts))
    played.check()


async def test_a_resumed_session_makes_the_same_state_of_its_log() -> None:
    played = Played(THOUGHT, {"fault": "thinking"}, THOUGHT, {"fault": "breakpoints;max=1"}, "Three.")
    async with played.session as session:
        for message in "abc":
            await session.send(message)
        assert fold_events(played.events, session.id) == session._open_conversation.state


async def test_what_a_mended_view_costs_is_called_planned_also_after_another_failure() -> None:
    played = Played(THOUGHT, "One.", {"fault": "thinking"}, {"fault": "403"}, "Two.")
    assert await played.say("a", "a long question " * 1500, "b", "c") == ["Said.", "One.", "auth", "Two."]
    judged = [one.verdict for one in iter_entries(played.events, shipped_models()) if one.verdict]
    assert [(one.kind, one.component) for one in judged][1:] == [("held", None), ("planned", "recovery")]
    assert judged[2].detail == "the request was repaired: thinking_prefix_mismatch"
    played.check()


async def test_what_marks_were_left_out_for_costs_is_called_planned() -> None:
    played = Played("One.", {"fault": "breakpoints"}, "Two.")
    await played.say("a", "b")
    judged = [one.verdict for one in iter_entries(played.events, shipped_models()) if one.verdict]
    assert judged[1].detail == "breakpoints were changed: provider_rejects_marker"


async def test_a_recording_of_the_session_sends_what_was_mended() -> None:
    played = Played(THOUGHT, {"fault": "thinking"}, "Two.")
    await played.say("a", "b")
    told = build_stored_transcript(played.events, played.session.id)
    assert told is not None
    second = told.recording.calls[1]
    assert second.kept_entries == 1
    assert [passage.content for passage in second.added] == [(Text("Said."),), (Text("b"),)]


async def test_a_provider_that_fails_is_told(agent: MakeAgent) -> None:
    busy = ProviderError("server_error", "the provider is overloaded", status=529)
    refused = ProviderError("invalid_request", "no such model", status=404)
    one = agent(busy, refused, says("Yes."))
    async with one.session as session:
        for message in ("a", "b"):
            with pytest.raises(ProviderError):
                await session.send(message)
        assert (await session.send("c")).text == "Yes."
    (told,) = [it for it in one.payloads if isinstance(it, RecoveryEnqueued)]
    assert (told.scenario, told.follow_up, told.detail) == (
        "provider_failure",
        "surface",
        "the provider is overloaded",
    )
