"""Recovery recipes: the steps of each scenario, how they run, and what the ledger records."""

import asyncio
import threading

import msgspec
import pytest
from tests.support.recovery_attempts import AttemptsInMemory

from holdfast.clock import ManualClock
from holdfast.engine.recovery.runner import (
    EscalationRequired,
    FixedByStep,
    PartialRecovery,
    Recovered,
    RecoveryRunner,
    StepContext,
    StepFunction,
    StepOutcome,
)
from holdfast.errors import AbortedError, UserError
from holdfast.events.log import event_type_of
from holdfast.recovery.attempts import Incident
from holdfast.recovery.recipes import (
    DEFAULT_RULES,
    RECIPES,
    SEED_RULES,
    Recipes,
    RecoveryRecipe,
    RecoveryRules,
    RecoveryStep,
    backoff_seconds,
    keep_runnable_steps,
)
from holdfast.recovery.scenarios import (
    WORKER_SCENARIOS,
    EscalationPolicy,
    FailureScenario,
    StepName,
    classify_completion,
    classify_worker_failure,
)

S, N, P = FailureScenario, StepName, EscalationPolicy


class Host:
    """A host whose steps succeed, except those in `failing`; `done` has the completed steps in order."""

    def __init__(
        self, *failing: StepName, rules: RecoveryRules = SEED_RULES, recipes: Recipes = RECIPES, **steps: StepFunction
    ) -> None:
        self.failing = set(failing)
        self.done: list[StepName] = []
        self.pauses: list[float] = []
        self.clock = ManualClock()
        self.attempts = AttemptsInMemory(self.clock)
        step_functions: dict[StepName, StepFunction] = dict.fromkeys(StepName, self._do)
        step_functions |= {StepName(name): step for name, step in steps.items()}
        self.runner = RecoveryRunner(
            self.attempts, step_functions, clock=self.clock, sleep=self._sleep, recipes=recipes, rules=rules
        )

    async def _do(self, context: StepContext) -> str:
        if context.step.name in self.failing:
            raise RuntimeError("it did not work")
        self.done.append(context.step.name)
        return f"did {context.step.name.value}"

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    @property
    def types(self) -> list[str]:
        return [event_type_of(payload) for payload in self.attempts.payloads]

    def incident(self, key: str) -> Incident:
        return self.attempts.state.incidents[key]


def test_every_scenario_has_a_recipe_with_a_step_and_an_attempt() -> None:
    assert set(RECIPES) == set(FailureScenario)
    assert all(recipe.steps and recipe.attempts_max >= 1 for recipe in RECIPES.values())
    assert all(recipe.scenario is scenario for scenario, recipe in RECIPES.items())


def test_the_names_are_the_agreed_ones() -> None:
    assert [scenario.name for scenario in WORKER_SCENARIOS] == [
        "TrustPromptUnresolved",
        "PromptMisdelivery",
        "StaleBranch",
        "CompileRedCrossCrate",
        "McpHandshakeFailure",
        "PartialPluginStartup",
        "ProviderFailure",
    ]
    assert [step.name for step in StepName][:8] == [
        "AcceptTrustPrompt",
        "RedirectPromptToAgent",
        "RebaseBranch",
        "CleanBuild",
        "RetryMcpHandshake",
        "RestartPlugin",
        "RestartWorker",
        "EscalateToHuman",
    ]
    assert [policy.name for policy in EscalationPolicy] == ["AlertHuman", "LogAndContinue", "Abort"]
    assert [str(scenario) for scenario in WORKER_SCENARIOS][:3] == [
        "trust_prompt_unresolved",
        "prompt_misdelivery",
        "stale_branch",
    ]


@pytest.mark.parametrize(
    ("scenario", "steps", "policy"),
    [
        (S.TrustPromptUnresolved, [N.AcceptTrustPrompt], P.AlertHuman),
        (S.PromptMisdelivery, [N.RedirectPromptToAgent], P.AlertHuman),
        (S.StaleBranch, [N.RebaseBranch, N.CleanBuild], P.AlertHuman),
        (S.CompileRedCrossCrate, [N.CleanBuild], P.AlertHuman),
        (S.McpHandshakeFailure, [N.RetryMcpHandshake], P.Abort),
        (S.PartialPluginStartup, [N.RestartPlugin, N.RetryMcpHandshake], P.LogAndContinue),
        (S.ProviderFailure, [N.RestartWorker], P.AlertHuman),
        (S.OrphanToolPair, [N.RepairView, N.RevalidateView, N.RetryRequest], P.Abort),
        (S.SummaryInvalid, [N.RemindSummariser, N.DeterministicRecord], P.LogAndContinue),
    ],
)
def test_the_recipes_are_the_agreed_ones(
    scenario: FailureScenario, steps: list[StepName], policy: EscalationPolicy
) -> None:
    recipe = RECIPES[scenario]
    assert ([step.name for step in recipe.steps], recipe.escalation, recipe.attempts_max) == (steps, policy, 1)


def test_timeouts_and_subjects_of_the_plugin_steps_are_the_agreed_ones() -> None:
    plugin, handshake = RECIPES[S.PartialPluginStartup].steps
    assert (plugin.subject, handshake.seconds_max) == ("stalled", 3.0)
    assert RECIPES[S.McpHandshakeFailure].steps[0].seconds_max == 5.0


@pytest.mark.parametrize("rules", [SEED_RULES, DEFAULT_RULES])
async def test_steps_that_all_succeed_recover(rules: RecoveryRules) -> None:
    host = Host(rules=rules)
    assert await host.runner.attempt(S.TrustPromptUnresolved) == Recovered(1)
    assert host.types == ["recovery.attempted", "recovery.succeeded"]


async def test_with_the_seeds_rules_a_success_uses_up_the_attempt() -> None:
    host = Host()
    for _ in range(2):
        outcome = await host.runner.attempt(S.PromptMisdelivery)
    assert outcome == EscalationRequired("max recovery attempts (1) exceeded for prompt_misdelivery", P.AlertHuman)
    assert (host.incident("prompt_misdelivery").attempts, len(host.done)) == (1, 1)
    assert host.types[2:] == ["recovery.attempted", "recovery.escalated"]
    assert await host.runner.attempt(S.ProviderFailure) == Recovered(1)


async def test_a_success_resets_the_attempt_count() -> None:
    host = Host(rules=DEFAULT_RULES)
    for _ in range(3):
        assert await host.runner.attempt(S.ProviderFailure) == Recovered(1)
    assert host.incident("provider_failure").attempts == 1


@pytest.mark.parametrize("rules", [SEED_RULES, DEFAULT_RULES])
async def test_a_failure_after_the_first_step_is_a_partial_recovery(rules: RecoveryRules) -> None:
    host = Host(N.RetryMcpHandshake, rules=rules)
    outcome = await host.runner.attempt(S.PartialPluginStartup)
    assert isinstance(outcome, PartialRecovery)
    assert (outcome.done, outcome.remaining) == ((N.RestartPlugin,), (N.RetryMcpHandshake,))
    assert host.types[:2] == ["recovery.attempted", "recovery.failed"]
    assert host.types[2:] == (["recovery.escalated"] if rules is DEFAULT_RULES else [])
    assert outcome.escalated is (rules is DEFAULT_RULES)


@pytest.mark.parametrize("rules", [SEED_RULES, DEFAULT_RULES])
async def test_a_failure_at_the_first_step_is_escalated(rules: RecoveryRules) -> None:
    host = Host(N.CleanBuild, rules=rules)
    outcome = await host.runner.attempt(S.CompileRedCrossCrate)
    assert isinstance(outcome, EscalationRequired)
    assert "failed at first step" in outcome.reason
    assert host.types[-1] == "recovery.escalated"
    incident_state = host.incident("compile_red_cross_crate")
    assert (incident_state.state, incident_state.escalation, incident_state.policy) == (
        "exhausted",
        outcome.reason,
        "alert_human",
    )


async def test_events_name_scenarios_by_their_names() -> None:
    host = Host()
    await host.runner.attempt(S.McpHandshakeFailure)
    encoded = msgspec.json.decode(msgspec.json.encode(host.attempts.payloads[0]))
    assert (encoded["type"], encoded["scenario"]) == ("recovery.attempted", "mcp_handshake_failure")


async def test_the_ledger_has_all_details_of_an_attempt() -> None:
    host = Host()
    assert "stale_branch" not in host.attempts.state.incidents
    await host.runner.attempt(S.StaleBranch)
    incident_state = host.incident("stale_branch")
    assert (incident_state.key, incident_state.trigger, incident_state.state) == (
        "stale_branch",
        "automatic",
        "succeeded",
    )
    assert (incident_state.attempts, incident_state.attempts_max) == (1, 1)
    assert (incident_state.started_at, incident_state.ended_at) == (host.clock(), host.clock())
    assert [(result.step, result.status) for result in incident_state.results] == [
        ("rebase_branch", "done"),
        ("clean_build", "done"),
    ]
    assert incident_state.remaining_steps == ()


async def test_an_exhausted_incident_has_its_reason() -> None:
    host = Host()
    for _ in range(2):
        await host.runner.attempt(S.StaleBranch)
    incident_state = host.incident("stale_branch")
    assert (incident_state.state, incident_state.escalation) == (
        "exhausted",
        "max recovery attempts (1) exceeded for stale_branch",
    )


async def test_a_failure_names_scenario_step_and_cause() -> None:
    host = Host(N.CleanBuild)
    await host.runner.attempt(S.StaleBranch)
    assert host.incident("stale_branch").last_failure == "stale_branch: step 'clean_build' failed: it did not work"


@pytest.mark.parametrize(
    ("failure", "scenario"),
    [
        ("trust_gate", S.TrustPromptUnresolved),
        ("tool_permission_gate", S.TrustPromptUnresolved),
        ("prompt_delivery", S.PromptMisdelivery),
        ("protocol", S.McpHandshakeFailure),
        ("provider", S.ProviderFailure),
        ("startup_no_evidence", S.ProviderFailure),
    ],
)
def test_a_workers_failure_is_a_known_scenario(failure: str, scenario: FailureScenario) -> None:
    assert classify_worker_failure(failure) is scenario  # type: ignore[arg-type]  # one of the literals


async def test_a_worker_that_ends_without_output_is_restarted() -> None:
    failure = classify_completion("unknown", 0)
    assert failure is not None
    host = Host()
    assert await host.runner.attempt(classify_worker_failure(failure)) == Recovered(1)
    assert host.done == [N.RestartWorker]
    assert classify_completion("error", 5) == "provider"
    assert classify_completion("unknown", 5) is None
    assert classify_completion("stop", 0) is None


def recipes_for_stale_branch(attempts_max: int) -> Recipes:
    return {S.StaleBranch: msgspec.structs.replace(RECIPES[S.StaleBranch], attempts_max=attempts_max)}


async def test_the_next_attempt_starts_with_the_first_remaining_step() -> None:
    host = Host(N.CleanBuild, rules=DEFAULT_RULES, recipes=recipes_for_stale_branch(3))
    first = await host.runner.attempt(S.StaleBranch)
    assert isinstance(first, PartialRecovery)
    assert not first.escalated
    host.failing.clear()
    assert await host.runner.attempt(S.StaleBranch) == Recovered(1)
    assert host.done == [N.RebaseBranch, N.CleanBuild]
    await host.runner.attempt(S.StaleBranch)
    assert host.done[2:] == [N.RebaseBranch, N.CleanBuild]


async def test_a_changed_recipe_starts_from_its_beginning() -> None:
    host = Host(N.CleanBuild, rules=DEFAULT_RULES, recipes=recipes_for_stale_branch(3))
    await host.runner.attempt(S.StaleBranch)
    changed = RecoveryRecipe(S.StaleBranch, (RecoveryStep(N.RestartWorker),), P.AlertHuman, attempts_max=3)
    other = RecoveryRunner(
        host.attempts,
        {N.RestartWorker: host._do},
        clock=host.clock,
        recipes={S.StaleBranch: changed},
        sleep=host._sleep,
    )
    assert await other.attempt(S.StaleBranch) == Recovered(1)
    assert host.done[-1] is N.RestartWorker


async def test_pauses_between_attempts_grow() -> None:
    host = Host(N.RebaseBranch, rules=DEFAULT_RULES, recipes=recipes_for_stale_branch(4))
    for _ in range(6):
        await host.runner.attempt(S.StaleBranch)
    assert host.pauses == [1.0, 2.0, 4.0]
    assert host.types.count("recovery.attempted") == 4
    assert backoff_seconds(100) == 60.0


async def test_parallel_attempts_are_counted_too() -> None:
    host = Host(N.RebaseBranch, rules=DEFAULT_RULES, recipes=recipes_for_stale_branch(2))
    await host.runner.attempt(S.StaleBranch)
    await asyncio.gather(*(host.runner.attempt(S.StaleBranch) for _ in range(3)))
    assert host.types.count("recovery.attempted") == 2


async def test_incidents_are_counted_separately() -> None:
    host = Host(N.CleanBuild, rules=DEFAULT_RULES)
    await host.runner.attempt(S.CompileRedCrossCrate, incident="crate a")
    again = await host.runner.attempt(S.CompileRedCrossCrate, incident="crate a")
    assert isinstance(again, EscalationRequired)
    assert "max recovery attempts (1)" in again.reason
    assert host.types[3:] == ["recovery.escalated"]
    host.failing.clear()
    assert await host.runner.attempt(S.CompileRedCrossCrate, incident="crate b") == Recovered(1)


async def test_after_a_healthy_period_the_count_is_reset() -> None:
    host = Host(N.CleanBuild, rules=DEFAULT_RULES)
    await host.runner.attempt(S.StaleBranch)
    host.failing.clear()
    host.clock.advance(3_599.0)
    assert isinstance(await host.runner.attempt(S.StaleBranch), EscalationRequired)
    host.clock.advance(3_600.0)
    assert await host.runner.attempt(S.StaleBranch) == Recovered(2)


async def test_a_manual_attempt_resets_the_count_and_continues_with_the_failed_step() -> None:
    host = Host(N.CleanBuild, rules=DEFAULT_RULES)
    await host.runner.attempt(S.StaleBranch)
    host.failing.clear()
    assert await host.runner.attempt(S.StaleBranch, trigger="manual") == Recovered(1)
    assert (host.done, host.incident("stale_branch").trigger) == ([N.RebaseBranch, N.CleanBuild], "manual")


async def test_a_step_that_takes_too_long_has_failed() -> None:
    async def hangs(context: StepContext) -> None:
        await asyncio.Event().wait()

    soon = RecoveryRecipe(S.ProviderFailure, (RecoveryStep(N.RestartWorker, 0.01),), P.AlertHuman)
    host = Host(recipes={S.ProviderFailure: soon}, restart_worker=hangs)
    outcome = await host.runner.attempt(S.ProviderFailure)
    assert isinstance(outcome, EscalationRequired)
    assert "it took longer than 0.01 s" in outcome.reason


async def test_a_steps_own_timeout_error_is_reported_as_such() -> None:
    async def times_out(context: StepContext) -> None:
        raise TimeoutError("the plugin did not answer")

    host = Host(restart_worker=times_out)
    outcome = await host.runner.attempt(S.ProviderFailure)
    assert isinstance(outcome, EscalationRequired)
    assert "the plugin did not answer" in outcome.reason


async def test_a_synchronous_step_does_not_block_the_event_loop() -> None:
    def blocks(context: StepContext) -> StepOutcome:
        return threading.current_thread().name

    host = Host(restart_worker=blocks)
    await host.runner.attempt(S.ProviderFailure)
    assert host.incident("provider_failure").results[0].detail != threading.main_thread().name


async def test_a_step_that_fixes_the_problem_skips_the_remaining_steps() -> None:
    async def heals(context: StepContext) -> FixedByStep:
        return FixedByStep("nothing was wrong")

    host = Host(rebase_branch=heals)
    assert await host.runner.attempt(S.StaleBranch) == Recovered(1)
    assert host.done == []
    assert host.incident("stale_branch").results[0].status == "recovered"


@pytest.mark.parametrize("rules", [DEFAULT_RULES, SEED_RULES])
async def test_a_missing_step_is_named_and_uses_up_no_attempt(rules: RecoveryRules) -> None:
    attempts, clock = AttemptsInMemory(ManualClock()), ManualClock()
    done: list[StepName] = []

    def restart(context: StepContext) -> None:
        done.append(context.step.name)

    # Its first step has a subject, which is not the reason; its second step is the missing one.
    missing = RecoveryRunner(attempts, {N.RestartPlugin: restart}, clock=clock, rules=rules)
    outcome = await missing.attempt(S.PartialPluginStartup, detail="plugin x is slow")
    assert outcome == EscalationRequired("no step named 'retry_mcp_handshake' is registered", P.LogAndContinue)
    assert await RecoveryRunner(attempts, {}, clock=clock, rules=rules).attempt(S.PartialPluginStartup) == (
        EscalationRequired("no step named 'restart_plugin' is registered", P.LogAndContinue)
    )
    incident = attempts.state.incidents["partial_plugin_startup"]
    assert (incident.state, incident.attempts, done) == ("enqueued", 0, [])
    assert incident.detail == "no step named 'restart_plugin' is registered"
    assert [event_type_of(payload) for payload in attempts.payloads] == ["recovery.enqueued"] * 2
    both = {N.RestartPlugin: restart, N.RetryMcpHandshake: restart}
    registered = RecoveryRunner(attempts, both, clock=clock, rules=rules)
    assert await registered.attempt(S.PartialPluginStartup) == Recovered(2)


async def test_a_recipe_can_end_with_a_human() -> None:
    steps = (RecoveryStep(N.CleanBuild), RecoveryStep(N.EscalateToHuman, subject="the build needs a person"))
    recipe = RecoveryRecipe(S.StaleBranch, steps, P.AlertHuman, attempts_max=5)
    attempts = AttemptsInMemory(ManualClock())
    runner = RecoveryRunner(
        attempts, {N.CleanBuild: lambda context: None}, clock=ManualClock(), recipes={S.StaleBranch: recipe}
    )
    outcome = await runner.attempt(S.StaleBranch)
    assert isinstance(outcome, PartialRecovery)
    assert outcome.escalated
    assert "the build needs a person" in outcome.reason


async def test_a_cancelled_attempt_is_recorded_and_can_be_continued() -> None:
    begun = asyncio.Event()

    async def hangs(context: StepContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    host = Host(clean_build=hangs, rules=DEFAULT_RULES)
    task = asyncio.ensure_future(host.runner.attempt(S.StaleBranch))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    incident_state = host.incident("stale_branch")
    assert (incident_state.state, incident_state.remaining_steps) == ("failed", ("clean_build",))
    assert incident_state.last_failure.endswith("cancelled")


async def test_keys_in_the_output_of_a_step_are_redacted() -> None:
    async def leaks(context: StepContext) -> str:
        return "used sk-ant-0123456789abcdef"

    host = Host(restart_worker=leaks)
    await host.runner.attempt(S.ProviderFailure)
    assert host.incident("provider_failure").results[0].detail == "used [redacted]"


async def test_a_dry_run_describes_the_attempt_and_does_nothing() -> None:
    host = Host(N.CleanBuild, rules=DEFAULT_RULES)
    planned = host.runner.dry_run(S.StaleBranch)
    assert ([step.name for step in planned.steps], planned.allowed, planned.attempt) == (
        [N.RebaseBranch, N.CleanBuild],
        True,
        1,
    )
    assert (host.done, host.attempts.payloads, planned.missing) == ([], [], ())
    await host.runner.attempt(S.StaleBranch)
    assert not host.runner.dry_run(S.StaleBranch).allowed
    by_hand = host.runner.dry_run(S.StaleBranch, trigger="manual")
    assert [step.name for step in by_hand.steps] == [N.CleanBuild]


async def test_a_dry_run_names_the_steps_without_a_function() -> None:
    attempts = AttemptsInMemory(ManualClock())
    assert RecoveryRunner(attempts, {}, clock=ManualClock()).dry_run(S.ProviderFailure).missing == (N.RestartWorker,)


async def test_a_reported_failure_runs_its_recipe_if_work_continues() -> None:
    host = Host(rules=DEFAULT_RULES)
    report = await host.runner.report(S.PartialPluginStartup, detail="plugin x is slow")
    assert (report.follow_up, report.outcome) == ("run", Recovered(2))
    assert host.types == ["recovery.enqueued", "recovery.attempted", "recovery.succeeded"]
    assert host.incident("partial_plugin_startup").detail == "plugin x is slow"


async def test_a_reported_failure_can_wait_for_a_human(caplog: pytest.LogCaptureFixture) -> None:
    host = Host(rules=DEFAULT_RULES)
    report = await host.runner.report(S.StaleBranch, incident="branch a")
    assert (report.incident, report.follow_up, report.outcome, host.done) == ("branch a", "surface", None, [])
    assert host.incident("branch a").state == "enqueued"
    assert "branch a needs a person" in caplog.text
    assert await host.runner.attempt(S.StaleBranch, incident="branch a", trigger="manual") == Recovered(2)


async def test_a_reported_failure_can_abort() -> None:
    host = Host(rules=DEFAULT_RULES)
    with pytest.raises(AbortedError, match=r"mcp_handshake_failure: the work ends here; no answer"):
        await host.runner.report(S.McpHandshakeFailure, detail="no answer")
    assert (host.types, host.incident("mcp_handshake_failure").follow_up) == (["recovery.enqueued"], "end")


async def test_reporting_again_gives_no_additional_attempts() -> None:
    host = Host(N.RetryMcpHandshake, rules=DEFAULT_RULES)
    for _ in range(3):
        await host.runner.report(S.PartialPluginStartup)
    assert host.types.count("recovery.attempted") == 1
    assert host.incident("partial_plugin_startup").state == "exhausted"


async def test_reporting_a_recovered_failure_starts_over() -> None:
    host = Host(rules=DEFAULT_RULES)
    for _ in range(2):
        assert (await host.runner.report(S.PartialPluginStartup)).outcome == Recovered(2)


async def test_a_scenario_without_a_recipe_is_refused_by_name() -> None:
    runner = RecoveryRunner(
        AttemptsInMemory(ManualClock()), {}, clock=ManualClock(), recipes=recipes_for_stale_branch(1)
    )
    with pytest.raises(UserError, match="no recipe for 'provider_failure'; known scenarios: stale_branch"):
        runner.dry_run(S.ProviderFailure)


def test_a_request_is_not_retried_if_nothing_could_be_changed() -> None:
    available = {N.LearnWindow, N.RetryRequest, N.Checkpoint}
    steps = [step.name for step in keep_runnable_steps(RECIPES[S.ContextOverflow], available).steps]
    assert steps == [N.LearnWindow, N.Checkpoint, N.RetryRequest]
    assert keep_runnable_steps(RECIPES[S.ContextOverflow], {N.LearnWindow, N.RetryRequest}).steps[1:] == ()
