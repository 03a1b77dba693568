"""A host that reports failures of its session, and `holdfast recovery`, with which a user inspects and repairs it."""

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
    recovering_agent = agent(recovery_steps=STEPS)
    async with recovering_agent.session as session:
        outcome = await session.recovery.report("partial_plugin_startup", incident="plugin x", detail="slow")
        assert outcome.outcome == Recovered(2)
    (incident,) = session.recovery.incidents
    assert [result.detail for result in incident.results] == ["restarted stalled", "shook hands"]
    assert fold_events(recovering_agent.events, session.id).incidents == {"plugin x": incident}


async def test_a_recovery_that_waits_for_a_user_can_be_planned_and_run_later(agent: MakeAgent) -> None:
    recovering_agent = agent(recovery_steps={"restart_worker": restarted})
    async with recovering_agent.session as session:
        assert (await session.recovery.report("provider_failure")).follow_up == "surface"
        assert [incident.state for incident in session.recovery.incidents] == ["enqueued"]
        plan = session.recovery.plan("provider_failure")
        assert ([step.name.value for step in plan.steps], plan.missing) == (["restart_worker"], ())
        assert await session.recovery.run("provider_failure", trigger="manual") == Recovered(1)
        assert [incident.state for incident in session.recovery.incidents] == ["succeeded"]


async def test_a_failure_that_ends_the_work_stops_the_turn(agent: MakeAgent) -> None:
    recovering_agent = agent(Pause(says("Half of", "it."), 4))
    async with recovering_agent.session as session:
        turn = asyncio.ensure_future(session.send("hi"))
        await recovering_agent.transport.paused.wait()
        with pytest.raises(AbortedError, match="mcp_handshake_failure: the work ends here"):
            await session.recovery.report("mcp_handshake_failure")
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert validate_transcript(session.history) == ()
    assert any(isinstance(payload, TurnCancelled) for payload in recovering_agent.payloads)
    assert session.recovery.incidents[0].follow_up == "end"


async def test_the_seed_profile_counts_successes_too(agent: MakeAgent) -> None:
    recovering_agent = agent(profile="seed", recovery_steps={"restart_worker": restarted})
    async with recovering_agent.session as session:
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
async def test_steps_are_validated_before_anything_runs(agent: MakeAgent, steps: object, words: str) -> None:
    with pytest.raises(UserError) as refused:
        async with agent(recovery_steps=steps).session:
            pass
    assert str(refused.value).startswith(words)


async def test_an_unknown_scenario_is_refused_with_a_suggestion(agent: MakeAgent) -> None:
    async with agent().session as session:
        with pytest.raises(UserError, match="there is no scenario 'stale_brunch'; did you mean 'stale_branch'"):
            await session.recovery.report("stale_brunch")
    with pytest.raises(UserError, match="the session is not open"):
        await session.recovery.run("stale_branch")


def run_recovery(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["recovery", *arguments])


def stored(path: Path, *payloads: object) -> str:
    """A store with one session with these events."""
    happened = (SessionStarted("anthropic:claude-sonnet-5-5"), *payloads)
    with SqliteStore(path) as store:
        events = [Event(f"e{n:02d}", float(n), "s1", "system", payload) for n, payload in enumerate(happened)]  # type: ignore[arg-type]  # payloads
        store.append(events).result(10)
    return str(path)


STALE = RecoveryEnqueued("branch a", "stale_branch", "surface", "main has moved")


def test_no_pending_recovery_is_reported_as_such(tmp_path: Path) -> None:
    assert run_recovery("list", "--db", stored(tmp_path / "log.db")).output == "No open incidents.\n"


def test_pending_recoveries_are_listed_with_their_next_step(tmp_path: Path) -> None:
    listed = run_recovery("list", "--db", stored(tmp_path / "log.db", STALE)).output.splitlines()
    assert listed[1].split() == ["s1", "branch", "a", "enqueued", "0", "rebase_branch", "main", "has", "moved"]
    pending = json.loads(run_recovery("list", "--db", str(tmp_path / "log.db"), "--json").output)
    assert [(recovery["session_id"], recovery["key"], recovery["follow_up"]) for recovery in pending] == [
        ("s1", "branch a", "surface")
    ]


def test_a_recipe_runs_by_commands_and_continues_where_it_stopped(tmp_path: Path) -> None:
    db = stored(tmp_path / "log.db", STALE)
    rebased = tmp_path / "rebased"
    rebase = ("--step", f"rebase_branch=echo once >> {rebased}; echo rebased")
    failed = run_recovery(
        "run", "s1", "stale_branch", "--db", db, *rebase, "--step", "clean_build=echo red >&2; exit 3"
    )
    assert failed.exit_code == 1
    assert failed.output.splitlines() == [
        "  rebase_branch: done: rebased",
        "  clean_build: failed: the command exited with 3: red",
        "branch a: not recovered; the next run starts with clean_build",
    ]
    again = run_recovery("run", "s1", "stale_branch", "--db", db, *rebase, "--step", "clean_build=true")
    assert (again.exit_code, again.output) == (0, "  clean_build: done\nbranch a: recovered\n")
    assert rebased.read_text() == "once\n"
    assert "(1 recovered; --all shows them)" in run_recovery("list", "--db", db).output
    assert "succeeded" in run_recovery("list", "--db", db, "--all").output
    assert "succeeded" in run_recovery("list", "s1", "--db", db).output


def test_a_dry_run_does_nothing(tmp_path: Path) -> None:
    db = stored(tmp_path / "log.db", STALE)
    output = run_recovery(
        "run", "s1", "stale_branch", "--db", db, "--dry-run", "--step", f"rebase_branch=touch {tmp_path}/x"
    )
    assert output.output.splitlines() == [
        "branch a: would run",
        "  rebase_branch: run your command",
        "  clean_build: belongs to the program that runs the session, or give --step",
    ]
    assert not (tmp_path / "x").exists()
    plan = json.loads(run_recovery("run", "s1", "stale_branch", "--db", db, "--dry-run", "--json").output)
    assert plan["missing"] == ["rebase_branch", "clean_build"]
    with SqliteStore(db) as store:
        assert len(list(store.read("s1"))) == 2


def test_a_lost_result_is_entered_by_hand(tmp_path: Path) -> None:
    call = MessageAppended(make_assistant_message(Text("I look."), ToolUse("t1", "look", "{}")))
    db = stored(
        tmp_path / "log.db",
        MessageAppended(make_user_message("look")),
        call,
        MessageAppended(make_user_message("and?")),
    )
    done = run_recovery("run", "s1", "orphan_tool_pair", "--db", db, "--json", "--yes")
    assert (done.exit_code, json.loads(done.output)["state"]) == (0, "succeeded")
    with SqliteStore(db) as store:
        state = fold_events(store.read("s1"), "s1")
    assert [entry.role for entry in state.entries] == ["user", "assistant", "user", "user"]
    again = run_recovery("run", "s1", "orphan_tool_pair", "--db", db, "--yes")
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
            "stale_branch: holdfast can do nothing here itself; rebase_branch, clean_build belongs to the program that "
            "runs the session: run it there with session.recovery.run('stale_branch'), or give "
            "--step rebase_branch=COMMAND --step clean_build=COMMAND",
        ),
    ],
)
def test_an_impossible_recovery_is_refused_in_one_line(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    refused = run_recovery(*arguments, "--db", stored(tmp_path / "log.db"))
    assert refused.exit_code != 0
    assert words in (refused.output + str(refused.exception))


def test_a_recipe_on_a_healthy_session_says_what_it_changes_and_asks_first(tmp_path: Path) -> None:
    db = stored(tmp_path / "log.db", MessageAppended(make_user_message("hello")))

    def run_by_hand(answer: str | None, *more: str) -> Result:
        words = ["recovery", "run", "s1", "provider_rejects_marker", "--db", db, *more]
        return CliRunner().invoke(command, words, input=answer)

    with SqliteStore(db) as store:
        before = list(store.read("s1"))
    for answer in ("n\n", None):
        refused = run_by_hand(answer)
        assert (refused.exit_code, str(refused.exception).startswith("nothing was changed; pass --yes")) == (1, True)
        assert refused.stderr.splitlines()[:2] == [
            "session s1 has no open incident of provider_rejects_marker; this would:",
            "  drop_all_markers: set no cache breakpoints until the model is switched, which turns caching off",
        ]
    with SqliteStore(db) as store:
        assert list(store.read("s1")) == before
    assert run_by_hand("y\n").exit_code == 0
    done = run_by_hand(None, "--yes")
    assert (done.exit_code, done.stderr) == (0, "")


def test_a_recipe_for_an_open_incident_runs_without_a_question(tmp_path: Path) -> None:
    reported = RecoveryEnqueued("provider_rejects_marker", "provider_rejects_marker", "run")
    done = run_recovery("run", "s1", "provider_rejects_marker", "--db", stored(tmp_path / "log.db", reported))
    assert (done.exit_code, done.stderr) == (0, "")


def test_every_recipe_is_done_here_or_says_what_belongs_to_the_host(tmp_path: Path) -> None:
    db = stored(tmp_path / "log.db")
    own = []
    for scenario in FailureScenario:
        plan = json.loads(run_recovery("run", "s1", scenario.value, "--db", db, "--dry-run", "--json").output)
        if not plan["missing"]:
            own.append(scenario.value)
            continue
        refused = run_recovery("run", "s1", scenario.value, "--db", db, "--yes")
        assert f"{scenario.value}: holdfast can do " in str(refused.exception)
        assert all(f"--step {name}=COMMAND" in str(refused.exception) for name in plan["missing"])
    assert own == [
        *("context_overflow", "compaction_ineffective", "orphan_tool_pair", "thinking_prefix_mismatch"),
        *("cache_cold_large", "provider_rejects_marker"),
    ]
    with SqliteStore(db) as store:
        assert len(list(store.read("s1"))) == 1


def test_all_recipes_can_be_shown() -> None:
    rows = run_recovery("list", "--recipes").output.splitlines()[1:]
    assert [row.split()[0] for row in rows] == [scenario.value for scenario in FailureScenario]
    assert len(json.loads(run_recovery("list", "--recipes", "--json").output)) == len(FailureScenario)


async def test_the_next_message_is_sent_with_the_history_that_was_repaired_by_hand(tmp_path: Path) -> None:
    db = str(tmp_path / "log.db")
    script = (
        '{"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "One."}]}\n{"content": "Two."}'
    )
    provider = SimulatedProvider(clock=ManualClock(), script=script)
    async with Session.create(
        model="anthropic:claude-sonnet-5-5", store=db, transport=provider, clock=ManualClock(), new_id=CountingIds("0")
    ) as session:
        await session.send("a")
    done = await asyncio.to_thread(run_recovery, "run", session.id, "thinking_prefix_mismatch", "--db", db, "--yes")
    assert done.output.splitlines()[0] == "  drop_all_thinking: done: dropped thinking blocks: 1"
    async with Session.resume(session.id, store=db, transport=provider) as session:
        assert (await session.send("b")).text == "Two."
    assert b'"thinking"' not in provider.requests[-1].body
