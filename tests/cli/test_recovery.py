"""A host that reports what went wrong in its session, and `holdfast recovery`, by which a person sees and mends it."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.agents import MakeAgent, Pause, says

from holdfast.cli.main import command
from holdfast.clock import CountingIds, ManualClock
from holdfast.engine.recovery.runner import Recovered, StepContext
from holdfast.engine.reducer import fold_events
from holdfast.errors import AbortedError, UserError
from holdfast.events.log import Event
from holdfast.events.payloads.recovery import RecoveryEnqueued
from holdfast.events.payloads.session import MessageAppended, SessionStarted, TurnCancelled
from holdfast.recovery.scenarios import FailureScenario
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.blocks import Text, ToolUse, make_assistant_message, make_user_message
from holdfast.types.transcript import validate_transcript


async def restarted(context: StepContext) -> str:
    return f"restarted {context.step.subject or 'all'}"


STEPS = {"restart_plugin": restarted, "retry_mcp_handshake": lambda context: "shook hands"}


async def test_a_session_runs_the_recipe_of_a_reported_failure(agent: MakeAgent) -> None:
    one = agent(recovery_steps=STEPS)
    async with one.session as session:
        told = await session.recovery.report("partial_plugin_startup", incident="plugin x", detail="slow")
        assert told.outcome == Recovered(2)
    (incident,) = session.recovery.incidents
    assert [result.detail for result in incident.results] == ["restarted stalled", "shook hands"]
    assert fold_events(one.events, session.id).incidents.incidents == {"plugin x": incident}


async def test_what_waits_for_a_person_can_be_planned_and_run_later(agent: MakeAgent) -> None:
    one = agent(recovery_steps={"restart_worker": restarted})
    async with one.session as session:
        assert (await session.recovery.report("provider_failure")).follow_up == "surface"
        assert [incident.state for incident in session.recovery.incidents] == ["enqueued"]
        plan = session.recovery.plan("provider_failure")
        assert ([step.name.value for step in plan.steps], plan.missing) == (["restart_worker"], ())
        assert await session.recovery.run("provider_failure", trigger="manual") == Recovered(1)
        assert [incident.state for incident in session.recovery.incidents] == ["succeeded"]


async def test_what_ends_the_work_stops_the_turn(agent: MakeAgent) -> None:
    one = agent(Pause(says("Half of", "it."), 4))
    async with one.session as session:
        turn = asyncio.ensure_future(session.send("hi"))
        await one.transport.paused.wait()
        with pytest.raises(AbortedError, match="mcp_handshake_failure: the work ends here"):
            await session.recovery.report("mcp_handshake_failure")
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert validate_transcript(session.history) == ()
    assert any(isinstance(it, TurnCancelled) for it in one.payloads)
    assert session.recovery.incidents[0].follow_up == "end"


async def test_the_seed_profile_counts_successes_too(agent: MakeAgent) -> None:
    one = agent(profile="seed", recovery_steps={"restart_worker": restarted})
    async with one.session as session:
        assert await session.recovery.run("provider_failure") == Recovered(1)
        assert await session.recovery.run("provider_failure") != Recovered(1)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ({"restart_workers": restarted}, "there is no step 'restart_workers'; did you mean 'restart_worker'?"),
        ({"x": restarted}, "there is no step 'x'; there are accept_trust_prompt, "),
        ({"restart_worker": "now"}, "recovery_steps must be a mapping from names of steps to functions, not dict"),
    ],
)
async def test_steps_are_checked_before_anything_happens(agent: MakeAgent, steps: object, words: str) -> None:
    with pytest.raises(UserError) as refused:
        async with agent(recovery_steps=steps).session:
            pass
    assert str(refused.value).startswith(words)


async def test_an_unknown_scenario_is_refused_with_the_nearest(agent: MakeAgent) -> None:
    async with agent().session as session:
        with pytest.raises(UserError, match="there is no scenario 'stale_brunch'; did you mean 'stale_branch'"):
            await session.recovery.report("stale_brunch")
    with pytest.raises(UserError, match="the session is not open"):
        await session.recovery.run("stale_branch")


def invoked(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["recovery", *arguments])


def stored(path: Path, *payloads: object) -> str:
    """A store with one session, in which this happened."""
    happened = (SessionStarted("anthropic:claude-sonnet-5-5"), *payloads)
    with SqliteStore(path) as store:
        events = [Event(f"e{n:02d}", float(n), "s1", "system", it) for n, it in enumerate(happened)]  # type: ignore[arg-type]  # payloads
        store.append(events).result(10)
    return str(path)


STALE = RecoveryEnqueued("branch a", "stale_branch", "surface", "main has moved")


def test_nothing_that_waits_is_said_to_be_nothing(tmp_path: Path) -> None:
    assert invoked("list", "--db", stored(tmp_path / "log.db")).output == "No open incidents.\n"


def test_what_waits_is_listed_with_its_next_step(tmp_path: Path) -> None:
    listed = invoked("list", "--db", stored(tmp_path / "log.db", STALE)).output.splitlines()
    assert listed[1].split() == ["s1", "branch", "a", "enqueued", "0", "rebase_branch", "main", "has", "moved"]
    told = json.loads(invoked("list", "--db", str(tmp_path / "log.db"), "--json").output)
    assert [(one["session_id"], one["key"], one["follow_up"]) for one in told] == [("s1", "branch a", "surface")]


def test_a_person_runs_a_recipe_by_commands_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    db = stored(tmp_path / "log.db", STALE)
    mark = tmp_path / "rebased"
    rebase = ("--step", f"rebase_branch=echo once >> {mark}; echo rebased")
    failed = invoked("run", "s1", "stale_branch", "--db", db, *rebase, "--step", "clean_build=echo red >&2; exit 3")
    assert failed.exit_code == 1
    assert failed.output.splitlines() == [
        "  rebase_branch: done: rebased",
        "  clean_build: failed: the command exited with 3: red",
        "branch a: not recovered; the next run starts with clean_build",
    ]
    again = invoked("run", "s1", "stale_branch", "--db", db, *rebase, "--step", "clean_build=true")
    assert (again.exit_code, again.output) == (0, "  clean_build: done\nbranch a: recovered\n")
    assert mark.read_text() == "once\n"
    assert "(1 recovered; --all shows them)" in invoked("list", "--db", db).output
    assert "succeeded" in invoked("list", "--db", db, "--all").output
    assert "succeeded" in invoked("list", "s1", "--db", db).output


def test_a_dry_run_does_nothing(tmp_path: Path) -> None:
    db = stored(tmp_path / "log.db", STALE)
    shown = invoked("run", "s1", "stale_branch", "--db", db, "--dry-run", "--step", f"rebase_branch=touch {tmp_path}/x")
    assert shown.output.splitlines() == [
        "branch a: would run",
        "  rebase_branch",
        "  clean_build  (needs a command: give --step)",
    ]
    assert not (tmp_path / "x").exists()
    told = json.loads(invoked("run", "s1", "stale_branch", "--db", db, "--dry-run", "--json").output)
    assert told["missing"] == ["rebase_branch", "clean_build"]
    with SqliteStore(db) as store:
        assert len(list(store.read("s1"))) == 2


def test_a_lost_result_is_made_up_for_by_hand(tmp_path: Path) -> None:
    call = MessageAppended(make_assistant_message(Text("I look."), ToolUse("t1", "look", "{}")))
    db = stored(
        tmp_path / "log.db",
        MessageAppended(make_user_message("look")),
        call,
        MessageAppended(make_user_message("and?")),
    )
    done = invoked("run", "s1", "orphan_tool_pair", "--db", db, "--json")
    assert (done.exit_code, json.loads(done.output)["state"]) == (0, "succeeded")
    with SqliteStore(db) as store:
        state = fold_events(store.read("s1"), "s1")
    assert [passage.role for passage in state.entries] == ["user", "assistant", "user", "user"]
    again = invoked("run", "s1", "orphan_tool_pair", "--db", db)
    assert again.exit_code == 1
    assert "every call has its result" in again.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "s2", "stale_branch"), "there is no session 's2'"),
        (("list", "s2"), "there is no session 's2'"),
        (("run", "s1", "stalebranch"), "there is no scenario 'stalebranch'; did you mean 'stale_branch'?"),
        (("run", "s1", "stale_branch", "--step", "x"), "--step takes NAME=COMMAND, not 'x'"),
        (("run", "s1", "stale_branch", "--step", "clean_build="), "--step takes NAME=COMMAND"),
        (("run", "s1", "stale_branch", "--step", "clean=true"), "there is no step 'clean'"),
        (
            ("run", "s1", "stale_branch"),
            "these steps need a command: give --step rebase_branch=COMMAND --step clean_build=COMMAND",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_line(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    refused = invoked(*arguments, "--db", stored(tmp_path / "log.db"))
    assert refused.exit_code != 0
    assert words in (refused.output + str(refused.exception))


def test_all_recipes_can_be_shown() -> None:
    rows = invoked("list", "--recipes").output.splitlines()[1:]
    assert [row.split()[0] for row in rows] == [one.value for one in FailureScenario]
    assert len(json.loads(invoked("list", "--recipes", "--json").output)) == len(FailureScenario)


async def test_what_was_mended_by_hand_is_what_the_next_message_is_sent_with(tmp_path: Path) -> None:
    db = str(tmp_path / "log.db")
    script = (
        '{"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "One."}]}\n{"content": "Two."}'
    )
    provider = SimulatedProvider(clock=ManualClock(), script=script)
    async with Session.create(
        model="anthropic:claude-sonnet-5-5", store=db, transport=provider, clock=ManualClock(), new_id=CountingIds("0")
    ) as session:
        await session.send("a")
    done = await asyncio.to_thread(invoked, "run", session.id, "thinking_prefix_mismatch", "--db", db)
    assert done.output.splitlines()[0] == "  drop_all_thinking: done: dropped thinking blocks: 1"
    async with Session.resume(session.id, store=db, transport=provider) as session:
        assert (await session.send("b")).text == "Two."
    assert b'"thinking"' not in provider.requests[-1].body
