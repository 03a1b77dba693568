"""Sessions whose requests are refused for known reasons: repaired, retried, recorded, and never in a loop."""

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

PayloadType = TypeVar("PayloadType", bound=AnyPayload)

BINDS_THINKING = "anthropic:claude-sonnet-5-5"
DOES_NOT_BIND_THINKING = "anthropic:claude-sonnet-4-6"
PROMPT = "Follow the rules of the house. " * 700
THOUGHT = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Said."}]
LOOKS = [{"type": "thinking", "thinking": "look"}, {"type": "tool_use", "name": "look", "input": {"lines": 3}}]
BREAKPOINTS_REFUSED = ProviderError("invalid_request", "cache_control: Extra inputs are not permitted", status=400)


def look(lines: int) -> str:
    """Look."""
    return "a line of what is seen\n" * lines


class FaultySession:
    """A session against a simulator that fails as its script says."""

    def __init__(self, *lines: object, **options: Unpack[Options]) -> None:
        script = "\n".join(json.dumps(line if isinstance(line, dict) else {"content": line}) for line in lines)
        self.provider = SimulatedProvider(clock=ManualClock(), script=script)
        self.store = MemoryStore()
        self.dependencies: Options = {
            "store": self.store,
            "transport": self.provider,
            "new_id": CountingIds(),
            "tools": [look],
        }
        defaults: Options = {"model": BINDS_THINKING, "system_prompt": PROMPT, "clock": ManualClock()}
        created: Options = defaults | self.dependencies | options
        self.session = Session.create(**created)

    async def say(self, *messages: str) -> list[str]:
        """The text of each answer, or the kind of the error that was raised."""
        outcomes: list[str] = []
        async with self.session as session:
            for message in messages:
                try:
                    outcomes.append((await session.send(message)).text)
                except ProviderError as error:
                    outcomes.append(error.kind)
        return outcomes

    @property
    def events(self) -> list[Event]:
        return list(self.store.read(self.session.id))

    def payloads_of(self, kind: type[PayloadType]) -> list[PayloadType]:
        return [event.payload for event in self.events if isinstance(event.payload, kind)]

    @property
    def statuses(self) -> list[int]:
        return [request.status for request in self.provider.requests]

    @property
    def steps(self) -> list[tuple[str, str]]:
        """The steps of the last recovery that succeeded."""
        results = [payload.results for payload in self.payloads_of(RecoverySucceeded)]
        return [(result.step, result.status) for result in results[-1]]

    def check(self) -> None:
        """The transcript is valid, the log rebuilds the bytes that were sent, and every cache miss was planned."""
        state = fold_events(self.events, self.session.id)
        assert validate_transcript(merge_into_messages(state.entries)) == ()
        violations = [certificate.violation for certificate in certify(self.events, self.session.id, shipped_models())]
        assert violations == [None] * len(violations)
        verdicts = [entry.verdict.kind for entry in iter_entries(self.events, shipped_models()) if entry.verdict]
        assert not {"prefix_changed", "lookback_miss", "provider_side"} & set(verdicts)


def breakpoint_counts(faulty: FaultySession) -> list[int]:
    return [len(payload.plan.breakpoints) for payload in faulty.payloads_of(RequestPrepared)]


async def test_a_refused_breakpoint_count_is_not_exceeded_again() -> None:
    faulty = FaultySession({"fault": "breakpoints;max=2"}, "One.", "Two.", "Three.")
    assert await faulty.say("a", "b", "c") == ["One.", "Two.", "Three."]
    assert breakpoint_counts(faulty) == [3, 2, 2, 2]
    assert faulty.steps == [("drop_deepest_marker", "done"), ("retry_request", "recovered")]
    assert faulty.payloads_of(ProviderLimited) == [ProviderLimited("provider_rejects_marker", breakpoints_max=2)]
    assert "2 of 3 are set" in faulty.payloads_of(RequestPrepared)[-1].plan.notes[-1]
    faulty.check()


@pytest.mark.parametrize("model", [BINDS_THINKING, "openai:gpt-6.1-sol", "openai-chat:gpt-6.1-sol"])
async def test_a_provider_that_refuses_breakpoints_gets_none(model: str) -> None:
    faulty = FaultySession({"fault": "breakpoints"}, "One.", {"fault": "breakpoints"}, "Two.", model=model)
    assert await faulty.say("a", "b") == ["One.", "Two."]
    assert breakpoint_counts(faulty)[-2:] == [0, 0]
    assert len(faulty.payloads_of(RecoveryAttempted)) == 1
    assert len(faulty.statuses) <= 4
    faulty.check()


async def test_a_refused_ttl_is_replaced_by_the_shortest() -> None:
    faulty = FaultySession("One.", {"fault": "ttl"}, "Two.", "Three.")
    assert await faulty.say("a", "b", "c") == ["One.", "Two.", "Three."]
    ttls = [
        {breakpoint.ttl for breakpoint in payload.plan.breakpoints} for payload in faulty.payloads_of(RequestPrepared)
    ]
    assert ttls == [{"5m"}, {"1h"}, {"5m"}, {"5m"}]
    assert faulty.payloads_of(ProviderLimited) == [ProviderLimited("provider_rejects_marker", shortest_ttl_only=True)]
    faulty.check()


async def test_a_cache_without_breakpoints_is_not_kept_alive() -> None:
    faulty = FaultySession({"fault": "breakpoints"}, "One.", "Two.", keep_alive=True)
    await faulty.say("a", "b")
    assert faulty.payloads_of(RequestPrepared)[-1].plan.notes[-1] == ("no keep-alive: the provider refused breakpoints")


async def test_another_model_gets_breakpoints_again() -> None:
    faulty = FaultySession({"fault": "breakpoints"}, "One.", "Two.")
    async with faulty.session as session:
        await session.send("a")
        await session.switch_model("anthropic:claude-opus-5-5")
        await session.send("b")
    assert breakpoint_counts(faulty)[-1] == 3


async def test_breakpoints_that_stay_refused_raise_the_providers_own_error(agent: MakeAgent) -> None:
    harness = agent(BREAKPOINTS_REFUSED, BREAKPOINTS_REFUSED, BREAKPOINTS_REFUSED, says("Yes."), system_prompt=PROMPT)
    async with harness.session as session:
        with pytest.raises(ProviderError, match="Extra inputs are not permitted"):
            await session.send("hi")
        assert len(harness.transport.bodies) == 3
        assert (await session.send("again")).text == "Yes."
    escalated = [payload for payload in harness.payloads if isinstance(payload, RecoveryEscalated)]
    assert [(it.scenario, it.policy) for it in escalated] == [("provider_rejects_marker", "log_and_continue")]


async def test_refused_thinking_is_dropped() -> None:
    faulty = FaultySession(THOUGHT, {"fault": "thinking"}, THOUGHT, "Three.")
    assert await faulty.say("a", "b", "c") == ["Said.", "Said.", "Three."]
    assert faulty.payloads_of(ThinkingDropped) == [
        ThinkingDropped("thinking_prefix_mismatch", entry_count=3, block_count=1)
    ]
    assert faulty.steps == [("drop_old_thinking", "done"), ("retry_request", "recovered")]
    last = faulty.session.history
    # Later thinking is sent again.
    assert [any(map(is_thinking, message.content)) for message in last if message.role == "assistant"][:2] == [
        False,
        True,
    ]
    assert len(faulty.payloads_of(RecoveryAttempted)) == 1
    faulty.check()


@pytest.mark.parametrize("model", [DOES_NOT_BIND_THINKING, "openai:gpt-6.1-sol", "gemini:gemini-3.8-flash"])
async def test_the_thinking_of_the_current_turn_is_dropped_last(model: str) -> None:
    faulty = FaultySession(THOUGHT, LOOKS, {"fault": "thinking"}, "Two.", model=model, thinking={"type": "adaptive"})
    assert await faulty.say("a", "b") == ["Said.", "Two."]
    if model == DOES_NOT_BIND_THINKING:
        assert [payload.entry_count for payload in faulty.payloads_of(ThinkingDropped)] == [2, 5]
        assert [status for _, status in faulty.steps] == ["done", "done", "done", "recovered"]
    assert not any(map(is_thinking, (block for message in faulty.session.history for block in message.content)))
    faulty.check()


async def test_all_thinking_is_dropped_at_once_if_it_is_bound_to_its_prefix() -> None:
    faulty = FaultySession(THOUGHT, LOOKS, {"fault": "thinking"}, "Two.")
    assert await faulty.say("a", "b") == ["Said.", "Two."]
    assert [(payload.entry_count, payload.block_count) for payload in faulty.payloads_of(ThinkingDropped)] == [(5, 2)]
    faulty.check()


async def test_thinking_that_is_refused_although_there_is_none_ends_the_turn(agent: MakeAgent) -> None:
    words = ProviderError("invalid_request", "messages.1: Invalid `signature` in `thinking` block", status=400)
    harness = agent(words, says("Yes."))
    async with harness.session as session:
        with pytest.raises(ProviderError, match="signature"):
            await session.send("hi")
        await session.send("again")
    assert len(harness.transport.bodies) == 2


@pytest.mark.changes_prefix(reason="thinking that the provider refuses leaves the view")
async def test_a_repair_that_did_not_help_stays_in_place(agent: MakeAgent) -> None:
    words = ProviderError("invalid_request", "messages.1: Invalid `signature` in `thinking` block", status=400)
    harness = agent(says(Thinking("hm", "sealed"), "One."), words, words, says("Three."))
    async with harness.session as session:
        await session.send("a")
        with pytest.raises(ProviderError, match="signature"):
            await session.send("b")
        assert len(harness.transport.bodies) == 3
        assert (await session.send("c")).text == "Three."


async def test_a_tool_result_over_the_window_is_cut_and_the_turn_continues() -> None:
    many = [{"type": "tool_use", "name": "look", "input": {"lines": 4000}}]
    faulty = FaultySession(many, {"fault": "window;tokens=15000"}, "Seen.", "Yes.")
    assert await faulty.say("look", "and?") == ["Seen.", "Yes."]
    assert faulty.payloads_of(ProviderLimited) == [ProviderLimited("context_overflow", window_tokens_max=15_000)]
    (repair,) = faulty.payloads_of(ContextRepaired)
    result = repair.splices[0].entries[0].content[0]
    assert isinstance(result, ToolResult)
    assert isinstance(result.content[0], Text)
    assert "characters are left out here" in result.content[0].text
    results = [
        payload.message
        for payload in faulty.payloads_of(MessageAppended)
        if isinstance(payload.message.content[0], ToolResult)
    ]
    assert len(str(results)) > len(str(result)), "the log keeps what was seen"
    assert all(record.is_prefix_unchanged for record in iter_calls(faulty.events))
    # What was cached before is still cached, and the plan expects to read it.
    assert faulty.payloads_of(RequestPrepared)[2].plan.expected_read_tokens > 0
    faulty.check()


@pytest.mark.parametrize("model", ["openai:gpt-5.4", "gemini:gemini-3.8-flash", "openai-chat:gpt-5.4"])
async def test_every_providers_window_is_learned(model: str) -> None:
    many = [{"type": "tool_use", "name": "look", "input": {"lines": 4000}}]
    faulty = FaultySession(many, {"fault": "window;tokens=15000"}, "Seen.", model=model)
    assert await faulty.say("look") == ["Seen."]
    assert [payload.window_tokens_max for payload in faulty.payloads_of(ProviderLimited)] == [15_000]
    faulty.check()


async def test_a_question_over_the_window_leaves_the_conversation_and_nothing_else() -> None:
    faulty = FaultySession("One.", {"fault": "window;tokens=10"}, "Two.")
    assert await faulty.say("a", "b") == ["One.", "context_overflow"]
    assert faulty.statuses == [200, 400]
    assert [message.role for message in faulty.session.history] == ["user", "assistant"]
    (escalated,) = faulty.payloads_of(RecoveryEscalated)
    assert (escalated.policy, escalated.results[-1].detail) == (
        "alert_human",
        "nothing could be changed",
    )
    faulty.check()


async def test_a_host_can_add_steps_that_shorten_the_view() -> None:
    async def clear(conversation: Conversation) -> str:
        first = conversation.state.entries[0]
        shorter = msgspec.structs.replace(first, content=(Text("(left out)"),))
        await conversation.record("system", ContextRepaired("cleared", (Splice(0, 1, (shorter,)),)))
        return "the first question was left out"

    faulty = FaultySession("One.", {"fault": "window;tokens=9000"}, "Two.")
    async with faulty.session as session:
        conversation = session._open_conversation
        conversation.deps = msgspec.structs.replace(conversation.deps, overflow_steps={StepName.BatchClear: clear})
        await session.send("far too much " * 1000)
        assert (await session.send("b")).text == "Two."
    assert [step for step, _ in faulty.steps] == [
        "learn_window",
        "shorten_newest_results",
        "retry_request",
        "batch_clear",
        "retry_request",
    ]
    assert faulty.statuses == [200, 400, 200]
    faulty.check()


@pytest.mark.parametrize("never", [False, True])
async def test_a_history_over_the_window_is_compacted_unless_disabled(never: bool) -> None:
    messages = [f"Part {number}: " + "so it was noted. " * 400 for number in range(6)]
    lines = ["One.", "Two.", "Three.", "Four.", "Five.", {"fault": "window;tokens=16000"}, "Six."]
    faulty = FaultySession(*lines, model=DOES_NOT_BIND_THINKING, compaction="off" if never else CompactionConfig())
    outcome = await faulty.say(*messages)
    if never:
        assert outcome[-1] == "context_overflow"
        assert faulty.payloads_of(ContextCompacted) == []
        return
    # The script answers by the number of replies that are in the view.
    assert outcome == ["One.", "Two.", "Three.", "Four.", "Five.", "Two."]
    compactions = faulty.payloads_of(ContextCompacted)
    assert compactions[-1].trigger == "overflow"
    assert compactions[-1].tokens_after < 16_000 < compactions[0].tokens_before
    assert "checkpoint" in [step for step, _ in faulty.steps]
    assert faulty.statuses[-2:] == [400, 200]
    faulty.check()


def store_without_message(faulty: FaultySession, lost_index: int) -> MemoryStore:
    """A copy of the session's store whose log lacks one message."""
    store = MemoryStore()
    messages = [event.id for event in faulty.events if isinstance(event.payload, MessageAppended)]
    store.append([event for event in faulty.events if event.id != messages[lost_index]]).result()
    return store


LOOKED = [{"type": "tool_use", "name": "look", "input": {"lines": 3}}]


@pytest.mark.parametrize("model", [BINDS_THINKING, "openai:gpt-5.4", "openai-chat:gpt-5.4", "gemini:gemini-3.8-flash"])
@pytest.mark.parametrize("lost_index", [1, 2])
async def test_a_lost_call_or_result_is_repaired(model: str, lost_index: int) -> None:
    faulty = FaultySession(LOOKED, "Seen.", "Yes.", "Yes.", "Yes.", model=model)
    await faulty.say("look")
    store = store_without_message(faulty, lost_index)
    resumed: Options = {**faulty.dependencies, "store": store}
    async with Session.resume(faulty.session.id, **resumed) as session:
        assert (await session.send("and?")).text
        history = session.history
    events = list(store.read(session.id))
    event_types = [
        event_type_of(event.payload)
        for event in events
        if event_type_of(event.payload).startswith(("recovery", "context."))
    ]
    assert event_types == ["recovery.attempted", "context.repaired", "recovery.succeeded"]
    assert validate_transcript(history) == ()
    assert ("This call was interrupted" in str(history)) == (lost_index == 2)
    assert "a line of what is seen" not in str(history)
    # The repair is permanent, in another process too.
    async with Session.resume(session.id, **resumed) as session:
        await session.send("still?")
    assert sum(isinstance(event.payload, RecoveryAttempted) for event in store.read(session.id)) == 1


async def test_a_refusal_for_unpaired_calls_without_any_ends_the_turn_and_not_the_session() -> None:
    faulty = FaultySession("One.", {"fault": "unpaired"}, "Two.")
    assert await faulty.say("a", "b", "c") == ["One.", "invalid_request", "Two."]
    (escalated,) = faulty.payloads_of(RecoveryEscalated)
    assert (escalated.scenario, escalated.policy) == ("orphan_tool_pair", "abort")
    assert "every call has its result" in escalated.reason
    faulty.check()


async def test_two_faults_are_repaired_one_after_the_other() -> None:
    faulty = FaultySession(THOUGHT, {"fault": "breakpoints"}, {"fault": "thinking"}, "Two.")
    assert await faulty.say("a", "b") == ["Said.", "Two."]
    assert [payload.scenario for payload in faulty.payloads_of(RecoverySucceeded)] == [
        "provider_rejects_marker",
        "thinking_prefix_mismatch",
    ]
    faulty.check()


async def test_another_failure_during_a_repair_is_raised_to_the_caller(agent: MakeAgent) -> None:
    down = ProviderError("server_error", "out of order", status=500)
    harness = agent(BREAKPOINTS_REFUSED, down, says("Yes."), system_prompt=PROMPT)
    async with harness.session as session:
        with pytest.raises(ProviderError, match="out of order"):
            await session.send("hi")
        assert (await session.send("go on")).text == "Yes."
        assert session.history[0].content == (Text("hi"), Text("go on"))
    failed = [payload for payload in harness.payloads if isinstance(payload, RecoveryFailed)]
    assert [(failure.results[-1].step, failure.results[-1].detail) for failure in failed] == [
        ("retry_request", "out of order")
    ]


async def test_a_turn_can_be_cancelled_during_a_repair(agent: MakeAgent) -> None:
    harness = agent(BREAKPOINTS_REFUSED, Pause(says("Half of", "it."), 4), says("Yes."), system_prompt=PROMPT)
    async with harness.session as session:
        turn = asyncio.ensure_future(session.send("hi"))
        await harness.transport.paused.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert (await session.send("go on")).text == "Yes."
        assert validate_transcript(session.history) == ()
    failed = [payload for payload in harness.payloads if isinstance(payload, RecoveryFailed)]
    assert [failure.results[-1] for failure in failed] == [StepResult("retry_request", "failed", "cancelled")]


class BrokenTransport:
    """A transport that fails in the middle of the reply, or raises an error of its own."""

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


async def test_a_reply_that_has_started_is_not_requested_again() -> None:
    fault = {"type": "error", "error": {"type": "invalid_request_error", "message": "cache_control: no"}}
    transport = BrokenTransport(b"event: error\ndata: " + json.dumps(fault).encode() + b"\n\n")
    async with Session.create(
        model=BINDS_THINKING, store=MemoryStore(), transport=transport, system_prompt=PROMPT
    ) as session:
        with pytest.raises(ProviderError, match="cache_control"):
            await session.send("hi")
    assert transport.sent == 1


async def test_an_error_that_is_not_the_providers_is_raised_unchanged() -> None:
    transport = BrokenTransport(BREAKPOINTS_REFUSED, LookupError("a bug"))
    async with Session.create(
        model=BINDS_THINKING, store=MemoryStore(), transport=transport, system_prompt=PROMPT
    ) as session:
        with pytest.raises(LookupError, match="a bug"):
            await session.send("hi")


@pytest.mark.parametrize("fault", ["breakpoints", "thinking", "window;tokens=1", "unpaired", "ttl"])
@pytest.mark.parametrize("model", [BINDS_THINKING, "openai:gpt-6.1-sol", "gemini:gemini-3.8-flash"])
async def test_no_request_is_retried_more_than_a_few_times(fault: str, model: str) -> None:
    lines = [line for _ in range(3) for line in ({"fault": fault}, {"fault": fault}, {"content": THOUGHT})]
    faulty = FaultySession(*lines, model=model)
    await faulty.say("a", "b", "c")
    assert len(faulty.statuses) <= 3 * 4
    assert len(faulty.payloads_of(LlmCallCompleted)) == faulty.statuses.count(200)
    attempts = [payload.incident for payload in faulty.payloads_of(RecoveryAttempted)]
    assert len(attempts) == len(set(attempts))
    faulty.check()


async def test_a_fold_over_the_log_gives_the_state_after_repairs() -> None:
    faulty = FaultySession(THOUGHT, {"fault": "thinking"}, THOUGHT, {"fault": "breakpoints;max=1"}, "Three.")
    async with faulty.session as session:
        for message in "abc":
            await session.send(message)
        assert fold_events(faulty.events, session.id) == session._open_conversation.state


async def test_a_miss_caused_by_a_repair_is_planned_even_after_another_failure() -> None:
    faulty = FaultySession(THOUGHT, "One.", {"fault": "thinking"}, {"fault": "403"}, "Two.")
    assert await faulty.say("a", "a long question " * 1500, "b", "c") == ["Said.", "One.", "auth", "Two."]
    verdicts = [entry.verdict for entry in iter_entries(faulty.events, shipped_models()) if entry.verdict]
    assert [(verdict.kind, verdict.component) for verdict in verdicts][1:] == [("held", None), ("planned", "recovery")]
    assert verdicts[2].detail == "the request was repaired: thinking_prefix_mismatch"
    faulty.check()


async def test_a_miss_caused_by_dropped_breakpoints_is_planned() -> None:
    faulty = FaultySession("One.", {"fault": "breakpoints"}, "Two.")
    await faulty.say("a", "b")
    verdicts = [entry.verdict for entry in iter_entries(faulty.events, shipped_models()) if entry.verdict]
    assert verdicts[1].detail == "breakpoints were changed: provider_rejects_marker"


async def test_a_recording_of_the_session_contains_the_repaired_request() -> None:
    faulty = FaultySession(THOUGHT, {"fault": "thinking"}, "Two.")
    await faulty.say("a", "b")
    transcript = build_stored_transcript(faulty.events, faulty.session.id)
    assert transcript is not None
    second = transcript.recording.calls[1]
    assert second.kept_entries == 1
    assert [entry.content for entry in second.added] == [(Text("Said."),), (Text("b"),)]


async def test_a_provider_failure_is_reported(agent: MakeAgent) -> None:
    busy = ProviderError("server_error", "the provider is overloaded", status=529)
    refused = ProviderError("invalid_request", "no such model", status=404)
    harness = agent(busy, refused, says("Yes."))
    async with harness.session as session:
        for message in ("a", "b"):
            with pytest.raises(ProviderError):
                await session.send(message)
        assert (await session.send("c")).text == "Yes."
    (incident,) = [payload for payload in harness.payloads if isinstance(payload, RecoveryEnqueued)]
    assert (incident.scenario, incident.follow_up, incident.detail) == (
        "provider_failure",
        "surface",
        "the provider is overloaded",
    )
