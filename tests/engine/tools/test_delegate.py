"""Tasks that a model delegates to child sessions: same stable prefix, same cache, cost charged to the parent."""

import asyncio
import os
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner
from tests.support.agents import MakeAgent, Pause, ReplayTransport, says
from tests.support.settling import use_one_thread, wait_until_settled

from holdfast import Session, tool
from holdfast.cli.main import command
from holdfast.clock import CountingIds, ManualClock, new_ulid
from holdfast.engine.reducer import fold_events
from holdfast.engine.state import SessionState
from holdfast.engine.tools.permissions import ConfirmationRequest
from holdfast.errors import BudgetError, ProviderError, UserError
from holdfast.events.log import EventLog
from holdfast.events.payloads.calls import LlmCallCompleted
from holdfast.events.payloads.session import (
    DelegationCompleted,
    DelegationStarted,
    EpochOpened,
    SessionEnded,
    TurnCancelled,
)
from holdfast.ledger.calls import is_simulated, iter_calls
from holdfast.runtime.options import Options
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import parse_script
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.blocks import ToolResult, ToolUse, join_text_blocks
from holdfast.types.json_encoding import encode_json
from holdfast.types.transcript import merge_into_messages, validate_transcript
from holdfast.types.usage import Usage

SYSTEM_PROMPT = "You look after the harbour, its cranes and its lights. " * 400
ROUTED = "openrouter:anthropic/claude-sonnet-5.5"
SCRIPT = """
{"content": [{"type": "tool_use", "name": "delegate", "input": {"task": "Count."}}]}
{"content": "There are seven."}
"""
COSTLY = Usage(input=1_000_000)
"""Two dollars."""


def delegate_call(task: str = "Count the cranes.", id: str = "t1") -> ToolUse:
    return ToolUse(id, "delegate", encode_json({"task": task}).decode())


def lower() -> str:
    """Lower a crane."""
    return "lowered"


def states(log: EventLog) -> tuple[SessionState, list[SessionState]]:
    """The parent session, and the delegated sessions in the order they were started."""
    rows = sorted(log.sessions(), key=lambda row: row.id)
    states_found = [fold_events(log.read(row.id), row.id) for row in rows]
    (parent,) = (item for item in states_found if item.parent is None)
    return parent, [item for item in states_found if item.parent is not None]


def tool_results(state: SessionState) -> list[tuple[str, bool]]:
    """The text of each tool result, and whether it is an error."""
    blocks = (block for entry in state.entries for block in entry.content)
    return [(join_text_blocks(block.content), block.is_error) for block in blocks if isinstance(block, ToolResult)]


def check_valid(*states_to_check: SessionState) -> None:
    for state in states_to_check:
        validate_transcript(merge_into_messages(state.entries))
        assert state.turn is None
        assert state.open_call is None
        assert not state.delegated_sessions


@pytest.mark.parametrize(
    "model",
    [
        "anthropic:claude-sonnet-5-5",
        "openai:gpt-6.1-sol",
        "openai:gpt-5.4",
        "openai-chat:gpt-5.4",
        ROUTED,
        "gemini:gemini-4-argon",
    ],
)
async def test_a_child_reads_its_parents_stable_prefix_from_the_cache(model: str) -> None:
    home = Path(os.environ["HOLDFAST_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(f'[models."{ROUTED}"]\nsupports_prompt_caching = true\n')
    store = MemoryStore()
    async with Session.create(
        model=model,
        system_prompt=SYSTEM_PROMPT,
        delegate=True,
        store=store,
        transport=SimulatedProvider(clock=ManualClock(), script=parse_script(SCRIPT)),
        clock=ManualClock(),
        new_id=CountingIds(),
    ) as session:
        answer = await session.send("How many cranes are there?")
    parent, (child,) = states(store)
    first, *_ = (e.payload.usage for e in store.read(child.session_id) if isinstance(e.payload, LlmCallCompleted))
    assert first.cache_read > 3_000
    assert first.cache_read > 0.9 * first.tokens_sent
    assert answer.text == "There are seven."
    check_valid(parent, child)


async def test_a_child_has_the_prefix_and_the_parameters_of_its_parent_byte_for_byte(agent: MakeAgent) -> None:
    harness = agent(
        says(delegate_call()),
        says("Seven."),
        says("There are seven."),
        system_prompt=SYSTEM_PROMPT,
        delegate=True,
        thinking={"type": "adaptive"},
    )
    async with harness.session as session:
        await session.send("How many?")
    first, child, _ = harness.bodies
    assert {**child, "messages": []} == {**first, "messages": []}
    assert [block["text"] for block in child["messages"][0]["content"]] == ["Count the cranes."]
    parent, (started,) = states(harness.store)
    opened = [
        event.payload
        for state in (parent, started)
        for event in harness.store.read(state.session_id)
        if isinstance(event.payload, EpochOpened)
    ]
    assert opened[0] == opened[1]
    assert tool_results(parent) == [("Seven.", False)]


async def test_a_child_records_its_parent_and_the_call_that_started_it(agent: MakeAgent) -> None:
    harness = agent(says(delegate_call(id="call-7")), says("Seven."), says("Done."), delegate=True)
    async with harness.session as session:
        await session.send("How many?")
        rows = {row.id: row.parent_session_id for row in harness.store.sessions()}
        _, (child,) = states(harness.store)
        assert rows == {session.id: None, child.session_id: session.id}
    assert child.parent is not None
    assert (child.parent.session_id, child.parent.tool_use_id, child.parent.depth) == (session.id, "call-7", 1)
    assert child.is_ended
    started = [e.payload for e in harness.store.read(session.id) if isinstance(e.payload, DelegationStarted)]
    assert started == [DelegationStarted("call-7", child.session_id)]


async def test_the_cost_of_a_child_is_part_of_its_parents_and_counted_once(agent: MakeAgent) -> None:
    harness = agent(
        says(delegate_call(), usage=COSTLY), says("Seven.", usage=COSTLY), says("Done.", usage=COSTLY), delegate=True
    )
    async with harness.session as session:
        answer = await session.send("How many?")
        assert session.cost == answer.cost_usd == Decimal(6)
        assert session.usage.input == answer.usage.input == 3_000_000
    own = [call.cost_usd for row in harness.store.sessions() for call in iter_calls(harness.store.read(row.id))]
    assert sum(own) == Decimal(6)
    assert len(own) == 3


async def test_a_child_spends_at_most_its_parents_remaining_budget(agent: MakeAgent) -> None:
    harness = agent(says(delegate_call(), usage=COSTLY), delegate=True, spend_max_usd="2.01", output_tokens_max=1000)
    async with harness.session as session:
        with pytest.raises(BudgetError):
            await session.send("How many?")
    parent, (child,) = states(harness.store)
    ((text, is_error),) = tool_results(parent)
    assert is_error
    assert text.startswith("The delegated task failed: the session has spent $2.0000 of its $2.01;")
    assert child.spend_max_usd == Decimal("0.01")
    assert child.cost_usd == 0
    check_valid(parent, child)


async def test_parallel_children_do_not_get_the_same_budget_twice() -> None:
    use_one_thread()
    transport = DelegatingTransport({"a": "A.", "b": "B."}, last=True)
    store = MemoryStore()
    # Enough for one call at its maximum cost, beside what the parent has spent.
    async with Session.create(
        delegate=True,
        store=store,
        transport=transport,
        output_tokens_max=1000,
        spend_max_usd="0.018",
        single_flight=False,
    ) as session:
        await session.send("a, b")
    parent, children = states(store)
    assert sorted(is_error for _, is_error in tool_results(parent)) == [False, True]
    assert session.cost == sum(child.cost_usd for child in children) + sum(
        call.cost_usd for call in iter_calls(store.read(session.id))
    )
    check_valid(parent, *children)


async def test_a_delegated_task_is_not_delegated_further_by_default(agent: MakeAgent) -> None:
    harness = agent(says(delegate_call()), says(delegate_call(id="t2")), says("Seven."), says("Done."), delegate=True)
    async with harness.session as session:
        await session.send("How many?")
    parent, (child,) = states(harness.store)
    assert tool_results(child) == [
        ("This task was itself delegated, and may not be delegated further: do it here.", True)
    ]
    assert tool_results(parent) == [("Seven.", False)]


async def test_a_higher_depth_limit_allows_nested_delegation_and_all_cost_reaches_the_top(agent: MakeAgent) -> None:
    harness = agent(
        says(delegate_call(), usage=COSTLY),
        says(delegate_call(id="t2"), usage=COSTLY),
        says(delegate_call(id="t3"), usage=COSTLY),
        says("Two.", usage=COSTLY),
        says("One.", usage=COSTLY),
        says("Done.", usage=COSTLY),
        delegate=True,
        delegation_depth_max=2,
    )
    async with harness.session as session:
        await session.send("How many?")
        assert session.cost == Decimal(12)
    parent, (child, grandchild) = states(harness.store)
    assert grandchild.parent is not None
    assert (grandchild.parent.session_id, grandchild.parent.depth) == (child.session_id, 2)
    assert grandchild.parent.prefix_session_id == parent.session_id
    assert (grandchild.cost_usd, child.cost_usd) == (Decimal(4), Decimal(8))
    assert tool_results(grandchild)[0][1]


async def test_a_childs_failure_is_a_one_line_tool_error(agent: MakeAgent) -> None:
    refused = ProviderError("server_error", "the provider is\noverloaded")
    harness = agent(says(delegate_call()), refused, says("Then not."), delegate=True)
    async with harness.session as session:
        answer = await session.send("How many?")
    assert answer.text == "Then not."
    parent, (child,) = states(harness.store)
    assert tool_results(parent) == [("The delegated task failed: the provider is\ufffdoverloaded", True)]
    assert outcomes(harness.store, session.id) == ["failed"]
    ended = [e.payload for e in harness.store.read(child.session_id) if isinstance(e.payload, SessionEnded)]
    assert [end.disposition for end in ended] == ["error"]
    check_valid(parent, child)


async def test_an_empty_task_starts_no_session(agent: MakeAgent) -> None:
    harness = agent(says(delegate_call(" \n")), says("Done."), delegate=True)
    async with harness.session as session:
        await session.send("How many?")
    parent, children = states(harness.store)
    assert tool_results(parent) == [("The task is empty: say what is to be done.", True)]
    assert not children


async def test_a_truncated_answer_of_a_child_is_marked_as_incomplete(agent: MakeAgent) -> None:
    cut = says("Sev")
    harness = agent(
        says(delegate_call()), type(cut)(cut.content, "max_tokens", cut.usage), says("Done."), delegate=True
    )
    async with harness.session as session:
        await session.send("How many?")
    assert tool_results(states(harness.store)[0]) == [("Sev\n\n[The answer is not complete: max_tokens]", False)]


async def test_a_child_without_an_answer_is_an_error(agent: MakeAgent) -> None:
    harness = agent(says(delegate_call()), says(" "), says("Done."), delegate=True)
    async with harness.session as session:
        await session.send("How many?")
    assert tool_results(states(harness.store)[0]) == [("The delegated task ended without an answer (end_turn).", True)]


async def test_cancelling_the_parent_cancels_the_child_and_leaves_both_transcripts_valid(agent: MakeAgent) -> None:
    half = Pause(says("One, two, three.", usage=COSTLY), events=3)
    harness = agent(says(delegate_call()), half, says("Again."), delegate=True)
    async with harness.session as session:
        turn = asyncio.ensure_future(session.send("How many?"))
        await harness.transport.paused.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        parent, (child,) = states(harness.store)
        check_valid(parent, child)
        assert tool_results(parent) == [("The call was cancelled.", True)]
        assert outcomes(harness.store, session.id) == ["cancelled"]
        assert child.cost_usd >= Decimal(2)
        assert session.cost == child.cost_usd + sum(
            call.cost_usd for call in iter_calls(harness.store.read(session.id))
        )
        assert any(isinstance(e.payload, TurnCancelled) for e in harness.store.read(child.session_id))
        assert (await session.send("And now?")).text == "Again."


async def test_a_childs_confirmations_are_asked_of_the_parents_user(agent: MakeAgent) -> None:
    confirmed_tools: list[str] = []

    async def confirm(request: ConfirmationRequest) -> bool:
        confirmed_tools.append(request.tool_name)
        return False

    harness = agent(
        says(delegate_call()),
        says(ToolUse("c1", "lower", "{}")),
        says("It was not allowed."),
        says("Well."),
        delegate=True,
        tools=[tool(lower, side_effects="execute")],
        confirm=confirm,
    )
    async with harness.session as session:
        await session.send("Lower it.")
    _, (child,) = states(harness.store)
    assert confirmed_tools == ["lower"]
    assert tool_results(child) == [("The user did not allow this call.", True)]


async def test_a_confirmation_for_the_session_also_covers_its_children(agent: MakeAgent) -> None:
    confirmed_calls: list[str] = []

    async def confirm(request: ConfirmationRequest) -> Literal["session"]:
        confirmed_calls.append(request.tool_use_id)
        return "session"

    harness = agent(
        says(ToolUse("p1", "lower", "{}")),
        says(delegate_call()),
        says(ToolUse("c1", "lower", "{}")),
        says("Lowered."),
        says("Well."),
        delegate=True,
        tools=[tool(lower, side_effects="execute")],
        confirm=confirm,
    )
    async with harness.session as session:
        await session.send("Lower it.")
    _, (child,) = states(harness.store)
    assert confirmed_calls == ["p1"]
    assert tool_results(child) == [("lowered", False)]


class DelegatingTransport:
    """A model that delegates every word of a question and answers each task. It can hold the tasks until `wait_for` of
    them run, or, with `last`, until nothing else runs.
    """

    def __init__(self, answers: dict[str, str], *, wait_for: int = 0, last: bool = False) -> None:
        self._answers = answers
        self._wait_for = wait_for
        self._last = last
        self._open = asyncio.Event()
        self.working = self.working_max = 0

    async def send(self, endpoint, body, *, on_retry=None):  # type: ignore[no-untyped-def]
        sent = str(body)
        question = body.rpartition(b'"text":"')[2].partition(b'"')[0].decode()
        if "tool_result" in sent:
            reply = says("Done.")
        elif ", " in question:
            reply = says(*(delegate_call(word, id=word) for word in question.split(", ")))
        else:
            self.working += 1
            self.working_max = max(self.working_max, self.working)
            if self.working >= self._wait_for:
                self._open.set()
            await self._open.wait()
            if self._last:
                await wait_until_settled()
            self.working -= 1
            reply = says(self._answers[question])
        async for chunk in ReplayTransport([reply]).send(endpoint, body):
            yield chunk

    async def aclose(self) -> None: ...


async def test_several_tasks_run_in_parallel() -> None:
    transport = DelegatingTransport({"a": "A.", "b": "B.", "c": "C."}, wait_for=3)
    store = MemoryStore()
    async with Session.create(delegate=True, store=store, transport=transport) as session:
        await session.send("a, b, c")
    parent, children = states(store)
    assert [text for text, _ in tool_results(parent)] == ["A.", "B.", "C."]
    assert transport.working_max == 3
    assert len(children) == 3
    check_valid(parent, *children)


async def test_at_most_the_allowed_number_of_children_runs_at_once() -> None:
    transport = DelegatingTransport({"a": "A.", "b": "B.", "c": "C.", "d": "D."}, wait_for=2)
    async with Session.create(delegate=2, store=MemoryStore(), transport=transport) as session:
        await session.send("a, b, c, d")
    assert transport.working_max == 2


def outcomes(log: EventLog, session_id: str) -> Sequence[str]:
    return [e.payload.outcome for e in log.read(session_id) if isinstance(e.payload, DelegationCompleted)]


async def test_the_cost_of_a_child_interrupted_with_its_process_is_counted_on_resume(agent: MakeAgent) -> None:
    harness = agent(
        says(delegate_call(), usage=COSTLY), says("Seven.", usage=COSTLY), says("Done.", usage=COSTLY), delegate=True
    )
    async with harness.session as session:
        await session.send("How many?")
    # The log as it was after the child's answer and before the parent recorded it.
    cut = MemoryStore()
    for row in harness.store.sessions():
        events = list(harness.store.read(row.id))
        last = next((at for at, e in enumerate(events) if isinstance(e.payload, DelegationCompleted)), len(events))
        cut.append(events[:last]).result()
    assert fold_events(cut.read(session.id), session.id).cost_usd == Decimal(2)
    transport = ReplayTransport([says("Go on.")])
    resume_options = harness.options | Options(store=cut, transport=transport, new_id=new_ulid)
    async with Session.resume(session.id, **resume_options) as again:
        await again.send("Where were we?")
        assert Decimal(4) < again.cost < Decimal("4.01")
    assert outcomes(cut, session.id) == ["interrupted"]
    check_valid(*(states(cut)[:1]))


async def test_a_resumed_child_still_reads_its_parents_cache() -> None:
    store, provider = MemoryStore(), SimulatedProvider(script=SCRIPT)
    options: Options = {"model": "openai:gpt-6.1-sol", "store": store, "transport": provider, "delegate": True}
    async with Session.create(**(options | Options(system_prompt=SYSTEM_PROMPT))) as session:
        await session.send("How many?")
    _, (child,) = states(store)
    async with Session.resume(child.session_id, **options) as again:
        answer = await again.send("Sure?")
    assert answer.usage.cache_read > 3_000


async def test_without_delegate_there_is_no_such_tool_and_resuming_says_how_to_enable_it(
    agent: MakeAgent,
) -> None:
    harness = agent(says(delegate_call()), says("Seven."), says("Done."), delegate=True)
    async with harness.session as session:
        await session.send("How many?")
    resumed = Session.resume(session.id, store=harness.store, transport=harness.transport)
    with pytest.raises(UserError, match="delegate; pass them as delegate=True"):
        await resumed.__aenter__()
    plain = agent(says("No."), delegate=False)
    async with plain.session:
        await plain.session.send("Hello.")
    assert "tools" not in plain.bodies[0]


@pytest.mark.parametrize("value", [0, -1, "yes", 1.5])
def test_an_invalid_number_of_children_is_refused(value: object) -> None:
    with pytest.raises(UserError, match="delegate must be True, False or a whole number of at least 1"):
        Session.create(delegate=value)  # type: ignore[arg-type]


async def test_the_commands_show_which_sessions_were_delegated_by_which(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteStore(path) as store:
        transport = DelegatingTransport({"a": "A.", "b": "B."})
        async with Session.create(
            delegate=True, store=store, transport=transport, system_prompt="Be brief."
        ) as session:
            await session.send("a, b")
        _, children = states(store)
        cost = session.cost
    shown = CliRunner().invoke(command, ["sessions", "list", "--db", str(path)]).output
    assert all(
        any(child.session_id in line and session.id in line for line in shown.splitlines()) for child in children
    )
    parent = CliRunner().invoke(command, ["sessions", "show", session.id, "--db", str(path)]).output
    assert all(f"delegated to session {child.session_id}: completed, $" in parent for child in children)
    assert f"2 calls, ${cost:.6f}, ${sum(child.cost_usd for child in children):.6f} of it for delegated tasks" in parent
    assert "not padded: " in parent
    child = CliRunner().invoke(command, ["sessions", "show", children[0].session_id, "--db", str(path)]).output
    assert f"subagent of session {session.id}, call a" in child


async def test_a_delegated_session_is_simulated_if_its_parent_is_even_after_a_resume() -> None:
    log = MemoryStore()
    script = [
        says(delegate_call()),
        says("Seven."),
        says("ok"),
        says(delegate_call(id="t2")),
        says("Eight."),
        says("ok"),
    ]
    options: Options = {"store": log, "transport": ReplayTransport(script), "delegate": True}
    new: Options = {**options, "simulated": True}
    async with Session.create(**new) as session:
        await session.send("Count.")
    async with Session.resume(session.id, **options) as again:
        await again.send("Count again.")
    assert [is_simulated(log, row.id) for row in log.sessions()] == [True] * 3
    async with Session.create(store=log, transport=ReplayTransport([])) as other:
        pass
    assert not is_simulated(log, other.id)
