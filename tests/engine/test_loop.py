"""A turn: model calls, tools, limits and failures, and which events are recorded when."""

import asyncio
import threading
from contextlib import aclosing
from decimal import Decimal
from pathlib import Path

import pytest
from tests.support.agents import MakeAgent, Pause, ReplayTransport, says

import holdfast
from holdfast import Session, ToolError, tool
from holdfast.catalog.lookup import find_model, shipped_models
from holdfast.clock import CountingIds
from holdfast.engine.reducer import fold_events
from holdfast.errors import BudgetError, ProviderError, UserError
from holdfast.events.log import Event, event_type_of
from holdfast.events.payloads.cache import CacheLearned
from holdfast.events.payloads.calls import (
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    RequestPrepared,
    ToolCalled,
    ToolCompleted,
    ToolFailed,
)
from holdfast.events.payloads.session import ContextInjected, TurnCancelled, TurnCompleted, TurnStarted
from holdfast.providers.registry import get_adapter
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.blocks import Base64Source, Image, Text, Thinking, ToolResult, ToolUse
from holdfast.types.prompt import LayerText
from holdfast.types.reply import Reply, TextDelta
from holdfast.types.transcript import merge_into_messages, validate_transcript
from holdfast.types.usage import Usage


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


CALL = ToolUse("t1", "add", '{"a": 1, "b": 2}')


def event_types(events: list[Event]) -> list[str]:
    return [event_type_of(event.payload) for event in events]


def texts(body: dict[str, object]) -> list[str]:
    """Every text of a request's messages, in order."""
    messages = body["messages"]
    assert isinstance(messages, list)
    return [block.get("text", block["type"]) for message in messages for block in message["content"]]


async def test_a_message_is_answered(agent: MakeAgent) -> None:
    harness = agent(says("Good day."), system_prompt="Be kind.")
    async with harness.session as session:
        answer = await session.send("hello")
    assert (answer.text, answer.stop_reason, answer.llm_calls, answer.tool_calls) == ("Good day.", "end_turn", 1, 0)
    assert answer.usage == Usage(input=10, output=5)
    assert harness.bodies[0]["system"][0]["text"] == "Be kind."


async def test_every_event_is_recorded_in_order(agent: MakeAgent) -> None:
    harness = agent(says("I add.", CALL), says("3"), tools=[add])
    async with harness.session as session:
        await session.send("1 + 2?")
    assert event_types(harness.events) == [
        "session.started",
        "epoch.opened",
        "turn.started",
        "message.appended",
        "request.prepared",
        "llm.call_started",
        "llm.call_completed",
        "message.appended",
        "tool.called",
        "tool.completed",
        "message.appended",
        "request.prepared",
        "llm.call_started",
        "llm.call_completed",
        "message.appended",
        "turn.completed",
        "cache.learned",
    ]
    ids = [event.id for event in harness.events]
    assert [event.parent_event_id for event in harness.events] == [None, *ids[:-1]]
    turn = harness.events[2].id
    assert {event.turn_id for event in harness.events[2:-1]} == {turn}
    assert harness.events[0].turn_id is None


async def test_the_call_is_recorded_before_the_request_is_sent(agent: MakeAgent) -> None:
    seen: list[list[str]] = []

    class Watching(ReplayTransport):
        def send(self, *args, **options):  # type: ignore[no-untyped-def]
            seen.append(event_types(harness.events))
            return super().send(*args, **options)

    transport = Watching([says("ok")])
    harness = agent(transport=transport)
    async with harness.session as session:
        await session.send("hello")
    assert seen[0][-2:] == ["request.prepared", "llm.call_started"]


async def test_a_tool_is_called_and_its_result_is_sent_back(agent: MakeAgent) -> None:
    harness = agent(says(CALL), says("three"), tools=[add])
    async with harness.session as session:
        answer = await session.send("1 + 2?")
        assert session.history[2].content == (ToolResult("t1", (Text("3"),), name="add"),)
    assert (answer.text, answer.llm_calls, answer.tool_calls) == ("three", 2, 1)
    assert answer.usage == Usage(input=20, output=10)


async def test_the_cost_is_that_of_the_catalog(agent: MakeAgent) -> None:
    harness = agent(says("x", usage=Usage(input=1_000_000, cache_read=1_000_000, output=100_000)))
    async with harness.session as session:
        answer = await session.send("hello")
        assert session.cost == answer.cost_usd == Decimal("2") + Decimal("0.10") + Decimal("1")
        assert session.usage.tokens_sent == 2_000_000
    completed = next(event for event in harness.payloads if isinstance(event, TurnCompleted))
    assert (completed.total_cost_usd, completed.llm_call_count) == (Decimal("3.10"), 1)


async def test_the_second_call_shares_every_block_of_the_first(agent: MakeAgent) -> None:
    harness = agent(says(CALL), says("3"), tools=[add], system_prompt="Be kind.")
    async with harness.session as session:
        await session.send("1 + 2?")
    first, second = [event for event in harness.payloads if isinstance(event, RequestPrepared)]
    assert (first.shared_blocks, len(first.digests)) == (0, 4)
    assert (second.shared_blocks, [link.layer for link in second.digests]) == (4, ["history", "history"])
    assert second.body_bytes == len(harness.transport.bodies[1])


async def test_breakpoints_are_on_the_wire_and_not_in_the_digest_chain(agent: MakeAgent) -> None:
    cached = Usage(cache_write_5m=5_000, output=5)
    harness = agent(says(CALL, usage=cached), says("3"), tools=[add], system_prompt="Be kind.")
    async with harness.session as session:
        await session.send("1 + 2?")
    assert harness.transport.bodies[0].count(b'"cache_control":{"type":"ephemeral"}') == 3
    with_breakpoint = [
        block for message in harness.bodies[1]["messages"] for block in message["content"] if "cache_control" in block
    ]
    assert [block["type"] for block in with_breakpoint] == ["tool_result"]


async def test_a_prompt_that_proved_too_short_to_cache_gets_no_more_breakpoints(agent: MakeAgent) -> None:
    harness = agent(says(CALL), says("3"), tools=[add], system_prompt="Be kind.")
    async with harness.session as session:
        await session.send("1 + 2?")
    assert b"cache_control" not in harness.transport.bodies[1]
    first, second = [event.plan for event in harness.payloads if isinstance(event, RequestPrepared)]
    assert (len(first.breakpoints), second.breakpoints) == (3, ())
    assert "below the cache floor of 512 tokens" in second.notes[0]


async def test_volatile_text_is_sent_once_and_stays_where_it_was_sent(agent: MakeAgent) -> None:
    state = {"memory": "milk"}
    harness = agent(
        says(CALL), says("3"), says("bread too"), tools=[add], system_prompt_volatile=lambda: state["memory"]
    )
    async with harness.session as session:
        await session.send("1 + 2?")
        state["memory"] = "bread"
        await session.send("and now?")
    milk, bread = ("<context layer='volatile'>\nmilk\n</context>", "<context layer='volatile'>\nbread\n</context>")
    assert texts(harness.bodies[0]) == [milk, "1 + 2?"]
    assert texts(harness.bodies[1]) == [milk, "1 + 2?", "tool_use", "tool_result"]
    assert texts(harness.bodies[2]) == [milk, "1 + 2?", "tool_use", "tool_result", "3", bread, "and now?"]
    assert sum(isinstance(event, ContextInjected) for event in harness.payloads) == 2


async def test_volatile_text_that_changes_inside_a_tool_loop_follows_the_results(agent: MakeAgent) -> None:
    ticks = iter(["one", "two"])
    harness = agent(says(CALL), says("3"), tools=[add], system_prompt_volatile=lambda: next(ticks))
    async with harness.session as session:
        await session.send("1 + 2?")
    assert texts(harness.bodies[1])[-2:] == ["tool_result", "<context layer='volatile'>\ntwo\n</context>"]


async def test_a_prompt_with_the_dynamic_boundary_is_split_there(agent: MakeAgent) -> None:
    harness = agent(says("ok"), system_prompt="Stable.\n\n__SYSTEM_PROMPT_DYNAMIC_BOUNDARY__\n\nIt is Monday.")
    async with harness.session as session:
        await session.send("hello")
    assert harness.bodies[0]["system"][0]["text"] == "Stable."
    assert texts(harness.bodies[0]) == ["<context layer='volatile'>\nIt is Monday.\n</context>", "hello"]
    assert b"BOUNDARY" not in harness.transport.bodies[0]


@pytest.mark.changes_prefix(reason="ephemeral text leaves with its turn")
async def test_ephemeral_text_leaves_after_its_turn_and_is_sent_again(agent: MakeAgent) -> None:
    harness = agent(
        says(CALL), says("3"), says("ok"), tools=[add], volatile=[LayerText("rag-context", "found", ephemeral=True)]
    )
    async with harness.session as session:
        await session.send("1 + 2?")
        await session.send("more")
    found = "<context layer='rag-context'>\nfound\n</context>"
    assert texts(harness.bodies[1]) == ["1 + 2?", found, "tool_use", "tool_result"]
    assert texts(harness.bodies[2]) == ["1 + 2?", "tool_use", "tool_result", "3", "more", found]


@pytest.mark.changes_prefix(reason="the seed layout puts volatile text before the history")
async def test_the_seed_layout_sends_volatile_text_in_the_system_prompt_and_drops_thinking_when_it_changes(
    agent: MakeAgent,
) -> None:
    state = {"memory": "milk"}
    thought = Thinking("hm", "signed")
    harness = agent(
        says(thought, CALL),
        says("3"),
        says("ok"),
        tools=[add],
        layout="seed",
        system_prompt="Be kind.",
        system_prompt_volatile=lambda: state["memory"],
    )
    async with harness.session as session:
        await session.send("1 + 2?")
        state["memory"] = "bread"
        await session.send("and now?")
    systems = [[block["text"] for block in body["system"]] for body in harness.bodies]
    assert systems == [["Be kind.", "milk"], ["Be kind.", "milk"], ["Be kind.", "bread"]]
    assert texts(harness.bodies[1]) == ["1 + 2?", "thinking", "tool_use", "tool_result"]
    assert texts(harness.bodies[2]) == ["1 + 2?", "tool_use", "tool_result", "3", "and now?"]


async def test_the_seed_profile_sets_breakpoints_on_tools_and_system_only(agent: MakeAgent) -> None:
    harness = agent(says("ok"), tools=[add], profile="seed", system_prompt="Be kind.", system_prompt_volatile="Monday")
    async with harness.session as session:
        await session.send("hello")
    body = harness.bodies[0]
    assert "cache_control" in body["tools"][-1]
    # The system prompt, its padding, and the volatile text.
    assert ["cache_control" in block for block in body["system"]] == [False, True, False]
    assert "cache_control" not in body["messages"][0]["content"][0]


async def test_parallel_calls_are_answered_in_the_order_of_the_calls(agent: MakeAgent) -> None:
    first_is_waiting = threading.Event()

    def slow() -> str:
        """Wait for the other."""
        first_is_waiting.wait(5)
        return "slow"

    def fast() -> str:
        """Release the other."""
        first_is_waiting.set()
        return "fast"

    harness = agent(says(ToolUse("a", "slow", "{}"), ToolUse("b", "fast", "{}")), says("done"), tools=[slow, fast])
    async with harness.session as session:
        await session.send("go")
        results = session.history[2].content
    assert [(block.tool_use_id, block.content[0].text) for block in results] == [("a", "slow"), ("b", "fast")]  # type: ignore[union-attr]


async def test_at_most_four_tools_run_at_once(agent: MakeAgent) -> None:
    running, running_max = 0, 0

    async def work() -> str:
        """Work a little."""
        nonlocal running, running_max
        running += 1
        running_max = max(running_max, running)
        await asyncio.sleep(0.01)
        running -= 1
        return "ok"

    calls = [ToolUse(f"t{number}", "work", "{}") for number in range(10)]
    harness = agent(says(*calls), says("done"), tools=[work])
    async with harness.session as session:
        answer = await session.send("go")
    assert running_max == 4
    assert answer.tool_calls == 10


@pytest.mark.parametrize(
    ("call", "error_class", "message"),
    [
        (
            ToolUse("t", "subtract", "{}"),
            "not_found",
            "There is no tool 'subtract'. Known tools: add, burst, late, recall_history, tell.",
        ),
        (ToolUse("t", "add", '{"a": 1}'), "validation_error", "The arguments do not fit the schema: "),
        (ToolUse("t", "burst", "{}"), "execution_error", "ZeroDivisionError: division by zero"),
        (ToolUse("t", "tell", "{}"), "execution_error", "the harbour is closed"),
        (ToolUse("t", "late", "{}"), "timeout", "The tool did not answer within 0.01 s."),
    ],
)
async def test_the_model_gets_the_reason_why_a_call_failed(
    agent: MakeAgent, call: ToolUse, error_class: str, message: str
) -> None:
    def burst() -> float:
        """Fail."""
        return 1 / 0

    def tell() -> str:
        """Fail in words."""
        raise ToolError("the harbour is closed")

    async def late() -> None:
        """Never come back."""
        await asyncio.sleep(5)

    harness = agent(says(call), says("oh"), tools=[add, burst, tell, tool(late, timeout_seconds=0.01)])
    async with harness.session as session:
        await session.send("go")
        (result,) = session.history[2].content
    assert isinstance(result, ToolResult)
    assert result.is_error
    assert isinstance(result.content[0], Text)
    assert result.content[0].text.startswith(message)
    failed = next(event for event in harness.payloads if isinstance(event, ToolFailed))
    assert failed.error_class == error_class
    assert failed.error_message.startswith(message)


async def test_a_call_with_invalid_arguments_is_never_run(agent: MakeAgent) -> None:
    harness = agent(says(ToolUse("t", "add", '{"a": "x", "b": 1}')), says("oh"), tools=[add])
    async with harness.session as session:
        answer = await session.send("go")
    assert answer.tool_calls == 0
    assert "tool.input_invalid" in event_types(harness.events)
    assert not any(isinstance(event, ToolCalled) for event in harness.payloads)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("plain", "plain"),
        ("", "(no output)"),
        (None, "(no output)"),
        ({"b": 1, "a": [True, None]}, '{"a":[true,null],"b":1}'),
        (7, "7"),
        (Text("block"), "block"),
        ([Text("one"), Text("two")], "one"),
        ([], "[]"),
        ("lone \ud800 surrogate", "lone � surrogate"),
    ],
)
async def test_any_return_value_of_a_tool_becomes_text(agent: MakeAgent, output: object, expected: str) -> None:
    def give() -> object:
        """Give something."""
        return output

    harness = agent(says(ToolUse("t", "give", "{}")), says("ok"), tools=[tool(give, input_schema={"type": "object"})])  # type: ignore[arg-type]
    async with harness.session as session:
        await session.send("go")
        (result,) = session.history[2].content
    assert isinstance(result, ToolResult)
    assert isinstance(result.content[0], Text)
    assert result.content[0].text == expected


async def test_a_tool_may_return_an_image(agent: MakeAgent) -> None:
    picture = Image(Base64Source("image/png", "aGk="))
    harness = agent(
        says(ToolUse("t", "snap", "{}")),
        says("nice"),
        tools=[tool(lambda: picture, name="snap", description="Snap.", input_schema={"type": "object"})],
    )
    async with harness.session as session:
        await session.send("go")
        (result,) = session.history[2].content
    assert result == ToolResult("t", (picture,), name="snap")


async def test_a_long_output_keeps_its_head_and_tail(agent: MakeAgent) -> None:
    def flood() -> str:
        """Flood."""
        return "a" * 75_000 + "b" * 50_000 + "c" * 25_000

    harness = agent(says(ToolUse("t", "flood", "{}")), says("ok"), tools=[flood])
    async with harness.session as session:
        await session.send("go")
        (result,) = session.history[2].content
    assert isinstance(result, ToolResult)
    assert isinstance(result.content[0], Text)
    text = result.content[0].text
    assert text == "a" * 74_971 + "\n[... 50038 characters left out ...]\n" + "c" * 24_991
    completed = next(event for event in harness.payloads if isinstance(event, ToolCompleted))
    assert completed.output_size_bytes == len(text)


async def test_two_tools_with_the_same_name_are_refused(agent: MakeAgent) -> None:
    harness = agent(tools=[add, tool(add, description="Another.")])
    with pytest.raises(UserError, match="two tools are named 'add'"):
        async with harness.session:
            pass


async def test_a_turn_ends_at_its_limit_of_model_calls(agent: MakeAgent) -> None:
    harness = agent(says(CALL), says(ToolUse("t2", "add", CALL.arguments_json)), tools=[add], steps_max=2)
    async with harness.session as session:
        answer = await session.send("go")
        last = session.history[-1].content[0]
        assert validate_transcript(session.history) == ()
    assert (answer.stop_reason, answer.llm_calls, answer.tool_calls) == ("step_limit", 2, 1)
    assert harness.payloads[-2] == TurnCancelled("step_limit", 2, 1)
    assert isinstance(last, ToolResult)
    assert last.is_error
    assert "limit of model calls" in last.content[0].text  # type: ignore[union-attr]


async def test_an_empty_reply_ends_the_turn_and_leaves_a_valid_transcript(agent: MakeAgent) -> None:
    harness = agent(Reply((), "end_turn", Usage(input=1)), says("here"))
    async with harness.session as session:
        answer = await session.send("hello?")
        assert (answer.text, answer.llm_calls) == ("", 1)
        await session.send("anyone?")
        assert validate_transcript(session.history) == ()
    assert texts(harness.bodies[1]) == ["hello?", "anyone?"]


async def test_a_session_stops_before_a_call_that_could_exceed_its_budget(agent: MakeAgent) -> None:
    harness = agent(says("x", usage=Usage(output=900)), says("never"), spend_max_usd="0.02", output_tokens_max=1000)
    async with harness.session as session:
        await session.send("hello")
        with pytest.raises(
            BudgetError, match=r"spent \$0\.0090 of its \$0\.02; the next call could cost up to \$0\.01"
        ):
            await session.send("again " * 300)
        assert session.cost == Decimal("0.009")
    assert len(harness.transport.bodies) == 1
    assert harness.payloads[-2] == TurnCancelled("budget", 0, 0)


async def test_a_call_that_just_fits_the_budget_is_made(agent: MakeAgent) -> None:
    harness = agent(says("x"), spend_max_usd="0.0110", output_tokens_max=1000)
    async with harness.session as session:
        await session.send("hello")
    assert len(harness.transport.bodies) == 1


async def test_a_failed_call_is_recorded_and_the_session_continues(agent: MakeAgent) -> None:
    harness = agent(ProviderError("rate_limit", "slow down", status=429, retry_after_seconds=1.0), says("ok"))
    async with harness.session as session:
        with pytest.raises(ProviderError, match="slow down"):
            await session.send("hello")
        failed = next(event for event in harness.payloads if isinstance(event, LlmCallFailed))
        assert (failed.error_class, failed.error_message_redacted, failed.retry_count) == ("rate_limit", "slow down", 2)
        assert harness.payloads[-1] == TurnCancelled("error", 0, 0)
        await session.send("again")
        assert validate_transcript(session.history) == ()
    assert texts(harness.bodies[1]) == ["hello", "again"]
    started = next(event for event in harness.payloads if isinstance(event, LlmCallStarted))
    assert failed.request_id == started.request_id


async def test_a_truncated_reply_is_a_network_error(agent: MakeAgent) -> None:
    class Cut(ReplayTransport):
        async def send(self, *args, **options):  # type: ignore[no-untyped-def]
            yield b"event: ping\ndata: {}\n\n"

    harness = agent(transport=Cut([]))
    async with harness.session as session:
        with pytest.raises(ProviderError) as caught:
            await session.send("hello")
    assert caught.value.kind == "network"


async def test_a_complete_reply_counts_whatever_the_connection_does_afterwards(agent: MakeAgent) -> None:
    class Failing(ReplayTransport):
        async def send(self, *args, **options):  # type: ignore[no-untyped-def]
            async for chunk in super().send(*args, **options):
                yield chunk
            raise ProviderError("network", "reset")

    async with agent(transport=Failing([says("whole")])).session as session:
        assert (await session.send("hello")).text == "whole"


async def test_a_connection_that_stays_open_after_the_reply_is_not_waited_for(agent: MakeAgent) -> None:
    class Lingering(ReplayTransport):
        async def send(self, *args, **options):  # type: ignore[no-untyped-def]
            try:
                async for chunk in super().send(*args, **options):
                    yield chunk
                await asyncio.sleep(30)
            finally:
                closed.set()

    closed = asyncio.Event()
    async with agent(transport=Lingering([says("whole")])).session as session:
        assert (await session.send("hello")).text == "whole"
    assert closed.is_set()


async def test_the_stream_is_read_to_its_end_so_that_the_connection_can_be_reused(agent: MakeAgent) -> None:
    class Counting(ReplayTransport):
        async def send(self, *args, **options):  # type: ignore[no-untyped-def]
            async for chunk in super().send(*args, **options):
                yield chunk
            yield b": bye"
            ends.append("read to its end")

    ends: list[str] = []
    async with agent(transport=Counting([says("whole")])).session as session:
        await session.send("hello")
    assert ends == ["read to its end"]


async def test_cancelling_a_call_keeps_the_text_received_and_leaves_a_valid_transcript(agent: MakeAgent) -> None:
    harness = agent(Pause(says("The answer is long."), events=4), says("ok"))
    async with harness.session as session:
        turn = asyncio.ensure_future(session.send("hello"))
        await harness.transport.paused.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert event_types(harness.events)[-3:] == ["llm.call_failed", "message.appended", "turn.cancelled"]
        assert harness.payloads[-1] == TurnCancelled("user_cancel", 0, 0)
        await session.send("go on")
        assert validate_transcript(session.history) == ()
        assert session.history[1].content == (Text("The answer is long."),)


@pytest.mark.parametrize("thinks", [False, True])
async def test_the_output_of_an_interrupted_call_is_estimated_from_what_arrived(agent: MakeAgent, thinks: bool) -> None:
    words = "The harbour has seven cranes and a light. " * 40  # It arrives in many parts.
    content = Thinking(words, "sealed") if thinks else Text(words)
    reply = says(content, "and on", usage=Usage(input=100, output=2_000))
    harness = agent(Pause(reply, events=3), Pause(says("whole", usage=Usage(input=100, output=7)), events=5))
    async with harness.session as session:
        for _ in range(2):
            turn = asyncio.ensure_future(session.send("hello"))
            await harness.transport.paused.wait()
            harness.transport.paused.clear()
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
        cut, whole = (payload for payload in harness.payloads if isinstance(payload, LlmCallFailed))
        assert (cut.usage.input, cut.is_output_estimated) == (100, True)
        assert 10 < cut.usage.output < 40
        price = find_model(session.model, shipped_models()).prices[0]
        assert cut.cost_usd == (100 * price.input + cut.usage.output * price.output) / 1_000_000
        # A reply that lacks only its last event has reported its whole usage.
        assert (whole.usage.output, whole.is_output_estimated) == (7, False)
        assert session.cost == cut.cost_usd + whole.cost_usd


@pytest.mark.parametrize("is_cut", [False, True], ids=["cancelled", "cut"])
async def test_a_reply_that_ends_before_its_usage_is_estimated_as_the_gateway_estimates_it(
    agent: MakeAgent, is_cut: bool
) -> None:
    """OpenAI reports the usage last, and charges for a reply that is not read to its end."""

    class Cutting(ReplayTransport):
        async def send(self, *args, **options):  # type: ignore[no-untyped-def]
            async for chunk in super().send(*args, **options):
                yield chunk
                return

    make = Cutting if is_cut else ReplayTransport
    transport = make([Pause(says("The answer is long, and goes on."), events=2)], get_adapter("openai-chat"))
    harness = agent(model="openai-chat:gpt-5.6", transport=transport)
    async with harness.session as session:
        turn = asyncio.ensure_future(session.send("hello " * 1_000))
        if not is_cut:
            await transport.paused.wait()
            turn.cancel()
        with pytest.raises(ProviderError if is_cut else asyncio.CancelledError):
            await turn
        (failed,) = (payload for payload in harness.payloads if isinstance(payload, LlmCallFailed))
        assert failed.is_output_estimated
        assert 1_000 < failed.usage.input < 1_200
        assert (failed.usage.cache_read, failed.usage.output > 0) == (0, not is_cut)
        assert session.cost == failed.cost_usd > 0


async def test_nothing_is_estimated_for_a_call_that_failed_before_its_reply(agent: MakeAgent) -> None:
    harness = agent(ProviderError("network", "gone"))
    async with harness.session as session:
        with pytest.raises(ProviderError):
            await session.send("hello")
    (failed,) = (payload for payload in harness.payloads if isinstance(payload, LlmCallFailed))
    assert (failed.usage, failed.is_output_estimated) == (Usage(), False)


async def test_after_a_cancellation_without_output_the_next_question_is_appended(agent: MakeAgent) -> None:
    harness = agent(Pause(says("never"), events=0), says("ok"))
    async with harness.session as session:
        turn = asyncio.ensure_future(session.send("hello"))
        await harness.transport.paused.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        await session.send("hello again")
        assert validate_transcript(session.history) == ()
    assert texts(harness.bodies[1]) == ["hello", "hello again"]


async def test_cancelling_tools_gives_every_call_a_result(agent: MakeAgent) -> None:
    started = asyncio.Event()

    async def hang() -> None:
        """Hang."""
        started.set()
        await asyncio.sleep(60)

    harness = agent(says(CALL, ToolUse("t2", "hang", "{}")), says("ok"), tools=[add, hang])
    async with harness.session as session:
        added = asyncio.Event()
        session.subscribe(lambda event: added.set() if isinstance(event.payload, ToolCompleted) else None)
        turn = asyncio.ensure_future(session.send("go"))
        await asyncio.gather(started.wait(), added.wait())
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        results = session.history[2].content
        await session.send("go on")
        assert validate_transcript(session.history) == ()
    assert results[0] == ToolResult("t1", (Text("3"),), name="add")
    assert results[1] == ToolResult("t2", (Text("The call was cancelled."),), is_error=True, name="hang")


async def test_two_turns_at_once_are_refused(agent: MakeAgent) -> None:
    harness = agent(Pause(says("x"), events=0))
    async with harness.session as session:
        turn = asyncio.ensure_future(session.send("hello"))
        await harness.transport.paused.wait()
        with pytest.raises(UserError, match="a turn is in progress"):
            await session.send("me too")
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)


@pytest.mark.parametrize("message", ["", "  \n", []])
async def test_an_empty_message_is_refused_and_nothing_is_recorded(agent: MakeAgent, message: str) -> None:
    harness = agent(says("x"))
    async with harness.session as session:
        with pytest.raises(UserError, match="the message is empty"):
            await session.send(message)
    assert event_types(harness.events) == ["session.started", "epoch.opened"]


async def test_a_message_can_hold_only_text_and_images(agent: MakeAgent) -> None:
    harness = agent(says("x"))
    async with harness.session as session:
        with pytest.raises(UserError, match="can hold text and images, not ToolUse"):
            await session.send([CALL])


async def test_a_lone_surrogate_in_a_message_is_replaced(agent: MakeAgent) -> None:
    harness = agent(says("x"))
    async with harness.session as session:
        await session.send("a \ud800 b")
    assert texts(harness.bodies[0]) == ["a � b"]


async def test_an_image_can_be_sent(agent: MakeAgent) -> None:
    harness = agent(says("x"))
    async with harness.session as session:
        await session.send([Image(Base64Source("image/png", "aGk=")), Text("what is it?")])
    started = next(event for event in harness.payloads if isinstance(event, TurnStarted))
    assert started.has_images
    assert not started.has_tool_calls_in_history
    assert texts(harness.bodies[0]) == ["image", "what is it?"]


async def test_a_stream_yields_deltas_and_events_as_they_happen(agent: MakeAgent) -> None:
    harness = agent(says(CALL), says("three"), tools=[add])
    items: list[object] = []
    async with harness.session as session:
        async for item in session.stream("1 + 2?"):
            items.append(item)
    text = "".join(item.text for item in items if isinstance(item, TextDelta))
    assert text == "three"
    events = [item for item in items if isinstance(item, Event)]
    assert events == harness.events[2:-1]
    assert isinstance(harness.payloads[-1], CacheLearned)


async def test_leaving_a_stream_early_cancels_the_turn(agent: MakeAgent) -> None:
    harness = agent(Pause(says("The answer is long."), events=3), says("ok"))
    async with harness.session as session, aclosing(session.stream("hello")) as items:
        async for item in items:
            if isinstance(item, TextDelta):
                break
    assert isinstance(harness.payloads[-1], TurnCancelled)
    assert (
        validate_transcript(merge_into_messages(fold_events(harness.events, harness.events[0].session_id).entries))
        == ()
    )


async def test_a_failing_listener_is_isolated_and_logged(agent: MakeAgent, caplog: pytest.LogCaptureFixture) -> None:
    harness = agent(says("ok"))
    received: list[str] = []

    def broken(event: Event) -> None:
        raise RuntimeError("secret prompt")

    async with harness.session as session:
        session.subscribe(broken)
        stop = session.subscribe(lambda event: received.append(event_type_of(event.payload)))
        await session.send("hello")
        stop()
        await session.end()
    assert received[0] == "turn.started"
    assert received[-1] == "turn.completed"
    assert "a listener failed on turn.started: RuntimeError" in caplog.text
    assert "secret prompt" not in caplog.text


async def test_a_session_that_is_not_open_is_refused_and_cannot_be_opened_twice(agent: MakeAgent) -> None:
    harness = agent(says("x"))
    with pytest.raises(UserError, match="async with"):
        await harness.session.send("hello")
    async with harness.session as session:
        with pytest.raises(UserError, match="open already"):
            await session.__aenter__()


async def test_closing_a_session_cancels_its_turn_and_leaves_the_callers_transport_open(agent: MakeAgent) -> None:
    harness = agent(Pause(says("x"), events=0))
    async with harness.session as session:
        turn = asyncio.ensure_future(session.send("hello"))
        await harness.transport.paused.wait()
    assert turn.cancelled() or turn.done()
    await asyncio.gather(turn, return_exceptions=True)
    assert not harness.transport.closed
    assert isinstance(harness.payloads[-1], TurnCancelled)


async def test_a_session_can_be_ended(agent: MakeAgent) -> None:
    harness = agent(says("x"))
    async with harness.session as session:
        await session.send("hello")
        harness.clock.advance(90)
        await session.end()
    ended = harness.payloads[-1]
    assert ended.disposition == "completed"  # type: ignore[union-attr]
    assert (ended.turn_count, ended.duration_seconds) == (1, 90.0)  # type: ignore[union-attr]


async def test_estimates_learn_from_what_the_provider_reports(agent: MakeAgent) -> None:
    harness = agent(*(says("x", usage=Usage(input=40_000)) for _ in range(3)), system_prompt="word " * 20_000)
    async with harness.session as session:
        for _ in range(3):
            await session.send("hello")
    estimates = [event.estimated_input_tokens for event in harness.payloads if isinstance(event, LlmCallStarted)]
    assert estimates[0] < estimates[1] < estimates[2] <= 40_100


async def test_latency_is_measured_by_the_sessions_clock(agent: MakeAgent) -> None:
    def wait() -> str:
        """Wait."""
        harness.clock.advance(2.5)
        return "ok"

    harness = agent(says(ToolUse("t", "wait", "{}")), says("ok"), tools=[wait])
    async with harness.session as session:
        await session.send("go")
    completed = next(event for event in harness.payloads if isinstance(event, ToolCompleted))
    assert completed.latency_ms == 2500
    turn = next(event for event in harness.payloads if isinstance(event, TurnCompleted))
    assert turn.wall_time_seconds == 2.5
    calls = [event for event in harness.payloads if isinstance(event, LlmCallCompleted)]
    assert calls[0].latency_ms == 0


async def test_a_resumed_session_extends_the_bytes_sent_before(agent: MakeAgent, tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    first = agent(
        says(CALL), says("3"), tools=[add], system_prompt="Be kind.", system_prompt_volatile="Monday", store=path
    )
    async with first.session as session:
        await session.send("1 + 2?")
        id, history, cost = session.id, session.history, session.cost
    transport = ReplayTransport([says("again 3")])
    other = Session.resume(id, store=path, transport=transport, tools=[add], system_prompt_volatile="Monday")
    async with other as session:
        assert (session.history, session.cost, session.model) == (history, cost, "anthropic:claude-sonnet-5-5")
        await session.send("sure?")
    store = SqliteStore(path)
    prepared = [event.payload for event in store.read(id) if isinstance(event.payload, RequestPrepared)]
    store.close()
    blocks_before = prepared[1].shared_blocks + len(prepared[1].digests)
    assert prepared[2].shared_blocks == blocks_before


async def test_an_unknown_session_error_lists_the_newest_sessions(agent: MakeAgent) -> None:
    harness = agent(says("x"))
    async with harness.session as session:
        id = session.id
    with pytest.raises(UserError, match=f"there is no session 'nope'; the newest are {id}"):
        async with Session.resume("nope", **harness.options):
            pass


async def test_an_unknown_session_in_an_empty_store_says_that_it_is_empty(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the store holds no session yet"):
        async with Session.resume("nope", store=tmp_path / "x.db"):
            pass


async def test_a_turn_that_a_crash_interrupted_is_closed_before_the_next_turn(agent: MakeAgent) -> None:
    harness = agent(says(CALL), says("3"), tools=[add])
    async with harness.session as session:
        await session.send("1 + 2?")
        id = session.id
    events = harness.events
    for last_event_type, closing in (
        ("llm.call_started", ["llm.call_failed", "turn.cancelled"]),
        ("tool.called", ["message.appended", "turn.cancelled"]),
    ):
        crashed = agent(says("ok"), tools=[add], new_id=CountingIds("later"))
        crashed.store.append(events[: event_types(events).index(last_event_type) + 1])
        before = len(crashed.events)
        async with Session.resume(id, **crashed.options) as session:
            await session.send("go on")
            assert validate_transcript(session.history) == ()
        assert event_types(crashed.events)[before : before + 2] == closing


def test_run_sync_sends_every_message_and_returns_the_last_answer(agent: MakeAgent) -> None:
    harness = agent()
    options = {**harness.options, "transport": ReplayTransport([says("one"), says("two")])}
    assert holdfast.run_sync("a", "b", **options).text == "two"  # type: ignore[arg-type]
    with pytest.raises(UserError, match="at least one message"):
        holdfast.run_sync()
