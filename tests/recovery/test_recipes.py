"""What is done about known failures: the recipes, how they are followed, and what the ledger says of it."""

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
    """A host whose steps succeed, but for those it is told to fail; `done` are the steps in order."""

    def __init__(
        self, *failing: StepName, rules: RecoveryRules = SEED_RULES, recipes: Recipes = RECIPES, **steps: StepFunction
    ) -> None:
        self.failing = set(failing)
        self.done: list[StepName] = []
        self.pauses: list[float] = []
        self.clock = ManualClock()
        self.kept = AttemptsInMemory(self.clock)
        given: dict[StepName, StepFunction] = dict.fromkeys(StepName, self._do)
        given |= {StepName(name): step for name, step in steps.items()}
        self.recoverer = RecoveryRunner(
            self.kept, given, clock=self.clock, sleep=self._sleep, recipes=recipes, rules=rules
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
        return [event_type_of(payload) for payload in self.kept.payloads]

    def incident(self, key: str) -> Incident:
        return self.kept.ledger.incidents[key]


def test_every_scenario_has_a_recipe_with_a_step_and_an_attempt() -> None:
    assert set(RECIPES) == set(FailureScenario)
    assert all(recipe.steps and recipe.attempts_max >= 1 for recipe in RECIPES.values())
    assert all(recipe.scenario is scenario for scenario, recipe in RECIPES.items())


def test_the_names_are_those_agreed_on() -> None:
    assert [one.name for one in WORKER_SCENARIOS] == [
        "TrustPromptUnresolved",
        "PromptMisdelivery",
        "StaleBranch",
        "CompileRedCrossCrate",
        "McpHandshakeFailure",
        "PartialPluginStartup",
        "ProviderFailure",
    ]
    assert [one.name for one in StepName][:8] == [
        "AcceptTrustPrompt",
        "RedirectPromptToAgent",
        "RebaseBranch",
        "CleanBuild",
        "RetryMcpHandshake",
        "RestartPlugin",
        "RestartWorker",
        "EscalateToHuman",
    ]
    assert [one.name for one in EscalationPolicy] == ["AlertHuman", "LogAndContinue", "Abort"]
    assert [str(one) for one in WORKER_SCENARIOS][:3] == [
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
def test_the_recipes_are_those_agreed_on(
    scenario: FailureScenario, steps: list[StepName], policy: EscalationPolicy
) -> None:
    recipe = RECIPES[scenario]
    assert ([step.name for step in recipe.steps], recipe.escalation, recipe.attempts_max) == (steps, policy, 1)


def test_the_limits_and_the_subject_of_a_plugins_steps_are_those_agreed_on() -> None:
    plugin, handshake = RECIPES[S.PartialPluginStartup].steps
    assert (plugin.subject, handshake.seconds_max) == ("stalled", 3.0)
    assert RECIPES[S.McpHandshakeFailure].steps[0].seconds_max == 5.0


@pytest.mark.parametrize("rules", [SEED_RULES, DEFAULT_RULES])
async def test_steps_that_all_succeed_recover(rules: RecoveryRules) -> None:
    host = Host(rules=rules)
    assert await host.recoverer.attempt(S.TrustPromptUnresolved) == Recovered(1)
    assert host.types == ["recovery.attempted", "recovery.succeeded"]


async def test_in_the_seed_a_success_uses_the_attempt_up() -> None:
    host = Host()
    for _ in range(2):
        outcome = await host.recoverer.attempt(S.PromptMisdelivery)
    assert outcome == EscalationRequired("max recovery attempts (1) exceeded for prompt_misdelivery", P.AlertHuman)
    assert (host.incident("prompt_misdelivery").attempts, len(host.done)) == (1, 1)
    assert host.types[2:] == ["recovery.attempted", "recovery.escalated"]
    assert await host.recoverer.attempt(S.ProviderFailure) == Recovered(1)


async def test_a_success_starts_the_count_anew() -> None:
    host = Host(rules=DEFAULT_RULES)
    for _ in range(3):
        assert await host.recoverer.attempt(S.ProviderFailure) == Recovered(1)
    assert host.incident("provider_failure").attempts == 1


@pytest.mark.parametrize("rules", [SEED_RULES, DEFAULT_RULES])
async def test_what_fails_behind_the_first_step_is_recovered_in_part(rules: RecoveryRules) -> None:
    host = Host(N.RetryMcpHandshake, rules=rules)
    outcome = await host.recoverer.attempt(S.PartialPluginStartup)
    assert isinstance(outcome, PartialRecovery)
    assert (outcome.done, outcome.remaining) == ((N.RestartPlugin,), (N.RetryMcpHandshake,))
    assert host.types[:2] == ["recovery.attempted", "recovery.failed"]
    assert host.types[2:] == (["recovery.escalated"] if rules is DEFAULT_RULES else [])
    assert outcome.escalated is (rules is DEFAULT_RULES)


@pytest.mark.parametrize("rules", [SEED_RULES, DEFAULT_RULES])
async def test_what_fails_at_its_first_step_is_escalated(rules: RecoveryRules) -> None:
    host = Host(N.CleanBuild, rules=rules)
    outcome = await host.recoverer.attempt(S.CompileRedCrossCrate)
    assert isinstance(outcome, EscalationRequired)
    assert "failed at first step" in outcome.reason
    assert host.types[-1] == "recovery.escalated"
    told = host.incident("compile_red_cross_crate")
    assert (told.state, told.escalation, told.policy) == ("exhausted", outcome.reason, "alert_human")


async def test_events_tell_scenarios_by_their_names() -> None:
    host = Host()
    await host.recoverer.attempt(S.McpHandshakeFailure)
    told = msgspec.json.decode(msgspec.json.encode(host.kept.payloads[0]))
    assert (told["type"], told["scenario"]) == ("recovery.attempted", "mcp_handshake_failure")


async def test_the_ledger_tells_all_of_an_attempt() -> None:
    host = Host()
    assert "stale_branch" not in host.kept.ledger.incidents
    await host.recoverer.attempt(S.StaleBranch)
    told = host.incident("stale_branch")
    assert (told.key, told.trigger, told.state) == ("stale_branch", "automatic", "succeeded")
    assert (told.attempts, told.attempts_max) == (1, 1)
    assert (told.started_at, told.ended_at) == (host.clock(), host.clock())
    assert [(one.step, one.status) for one in told.results] == [("rebase_branch", "done"), ("clean_build", "done")]
    assert told.remaining_steps == ()


async def test_an_exhausted_incident_has_its_reason() -> None:
    host = Host()
    for _ in range(2):
        await host.recoverer.attempt(S.StaleBranch)
    told = host.incident("stale_branch")
    assert (told.state, told.escalation) == ("exhausted", "max recovery attempts (1) exceeded for stale_branch")


async def test_a_failure_names_scenario_step_and_cause() -> None:
    host = Host(N.CleanBuild)
    await host.recoverer.attempt(S.StaleBranch)
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


async def test_a_worker_that_ends_without_a_word_is_restarted() -> None:
    failure = classify_completion("unknown", 0)
    assert failure is not None
    host = Host()
    assert await host.recoverer.attempt(classify_worker_failure(failure)) == Recovered(1)
    assert host.done == [N.RestartWorker]
    assert classify_completion("error", 5) == "provider"
    assert classify_completion("unknown", 5) is None
    assert classify_completion("stop", 0) is None


def stale(attempts_max: int) -> Recipes:
    return {S.StaleBranch: msgspec.structs.replace(RECIPES[S.StaleBranch], attempts_max=attempts_max)}


async def test_the_next_attempt_starts_with_the_first_step_that_remains() -> None:
    host = Host(N.CleanBuild, rules=DEFAULT_RULES, recipes=stale(3))
    first = await host.recoverer.attempt(S.StaleBranch)
    assert isinstance(first, PartialRecovery)
    assert not first.escalated
    host.failing.clear()
    assert await host.recoverer.attempt(S.StaleBranch) == Recovered(1)
    assert host.done == [N.RebaseBranch, N.CleanBuild]
    await host.recoverer.attempt(S.StaleBranch)
    assert host.done[2:] == [N.RebaseBranch, N.CleanBuild]


async def test_where_the_recipe_is_another_it_is_followed_from_its_beginning() -> None:
    host = Host(N.CleanBuild, rules=DEFAULT_RULES, recipes=stale(3))
    await host.recoverer.attempt(S.StaleBranch)
    changed = RecoveryRecipe(S.StaleBranch, (RecoveryStep(N.RestartWorker),), P.AlertHuman, attempts_max=3)
    other = RecoveryRunner(
        host.kept, {N.RestartWorker: host._do}, clock=host.clock, recipes={S.StaleBranch: changed}, sleep=host._sleep
    )
    assert await other.attempt(S.StaleBranch) == Recovered(1)
    assert host.done[-1] is N.RestartWorker


async def test_attempts_are_made_after_ever_longer_pauses() -> None:
    host = Host(N.RebaseBranch, rules=DEFAULT_RULES, recipes=stale(4))
    for _ in range(6):
        await host.recoverer.attempt(S.StaleBranch)
    assert host.pauses == [1.0, 2.0, 4.0]
    assert host.types.count("recovery.attempted") == 4
    assert backoff_seconds(100) == 60.0


async def test_attempts_that_are_asked_for_at_once_are_counted_too() -> None:
    host = Host(N.RebaseBranch, rules=DEFAULT_RULES, recipes=stale(2))
    await host.recoverer.attempt(S.StaleBranch)
    await asyncio.gather(*(host.recoverer.attempt(S.StaleBranch) for _ in range(3)))
    assert host.types.count("recovery.attempted") == 2


async def test_incidents_are_counted_apart() -> None:
    host = Host(N.CleanBuild, rules=DEFAULT_RULES)
    await host.recoverer.attempt(S.CompileRedCrossCrate, incident="crate a")
    again = await host.recoverer.attempt(S.CompileRedCrossCrate, incident="crate a")
    assert isinstance(again, EscalationRequired)
    assert "max recovery attempts (1)" in again.reason
    assert host.types[3:] == ["recovery.escalated"]
    host.failing.clear()
    assert await host.recoverer.attempt(S.CompileRedCrossCrate, incident="crate b") == Recovered(1)


async def test_after_a_healthy_while_the_count_starts_anew() -> None:
    host = Host(N.CleanBuild, rules=DEFAULT_RULES)
    await host.recoverer.attempt(S.StaleBranch)
    host.failing.clear()
    host.clock.advance(3_599.0)
    assert isinstance(await host.recoverer.attempt(S.StaleBranch), EscalationRequired)
    host.clock.advance(3_600.0)
    assert await host.recoverer.attempt(S.StaleBranch) == Recovered(2)


async def test_a_person_starts_the_count_anew_and_goes_on_where_it_stopped() -> None:
    host = Host(N.CleanBuild, rules=DEFAULT_RULES)
    await host.recoverer.attempt(S.StaleBranch)
    host.failing.clear()
    assert await host.recoverer.attempt(S.StaleBranch, trigger="manual") == Recovered(1)
    assert (host.done, host.incident("stale_branch").trigger) == ([N.RebaseBranch, N.CleanBuild], "manual")


async def test_a_step_that_takes_too_long_has_failed() -> None:
    async def hangs(context: StepContext) -> None:
        await asyncio.Event().wait()

    soon = RecoveryRecipe(S.ProviderFailure, (RecoveryStep(N.RestartWorker, 0.01),), P.AlertHuman)
    host = Host(recipes={S.ProviderFailure: soon}, restart_worker=hangs)
    outcome = await host.recoverer.attempt(S.ProviderFailure)
    assert isinstance(outcome, EscalationRequired)
    assert "it took longer than 0.01 s" in outcome.reason


async def test_a_time_out_of_the_steps_own_is_told_as_such() -> None:
    async def times_out(context: StepContext) -> None:
        raise TimeoutError("the plugin did not answer")

    host = Host(restart_worker=times_out)
    outcome = await host.recoverer.attempt(S.ProviderFailure)
    assert isinstance(outcome, EscalationRequired)
    assert "the plugin did not answer" in outcome.reason


async def test_a_step_that_is_no_coroutine_does_not_hold_up_the_loop() -> None:
    def blocks(context: StepContext) -> StepOutcome:
        return threading.current_thread().name

    host = Host(restart_worker=blocks)
    await host.recoverer.attempt(S.ProviderFailure)
    assert host.incident("provider_failure").results[0].detail != threading.main_thread().name


async def test_a_step_that_heals_all_makes_the_others_needless() -> None:
    async def heals(context: StepContext) -> FixedByStep:
        return FixedByStep("nothing was wrong")

    host = Host(rebase_branch=heals)
    assert await host.recoverer.attempt(S.StaleBranch) == Recovered(1)
    assert host.done == []
    assert host.incident("stale_branch").results[0].status == "recovered"


async def test_a_step_without_a_function_has_failed() -> None:
    kept = AttemptsInMemory(ManualClock())
    outcome = await RecoveryRunner(kept, {}, clock=ManualClock()).attempt(S.ProviderFailure)
    assert isinstance(outcome, EscalationRequired)
    assert "no function was given for step 'restart_worker'" in outcome.reason


async def test_a_recipe_can_end_with_a_person() -> None:
    steps = (RecoveryStep(N.CleanBuild), RecoveryStep(N.EscalateToHuman, subject="the build needs a person"))
    recipe = RecoveryRecipe(S.StaleBranch, steps, P.AlertHuman, attempts_max=5)
    kept = AttemptsInMemory(ManualClock())
    recoverer = RecoveryRunner(
        kept, {N.CleanBuild: lambda context: None}, clock=ManualClock(), recipes={S.StaleBranch: recipe}
    )
    outcome = await recoverer.attempt(S.StaleBranch)
    assert isinstance(outcome, PartialRecovery)
    assert outcome.escalated
    assert "the build needs a person" in outcome.reason


async def test_a_cancelled_attempt_is_on_the_ledger_and_can_be_gone_on_with() -> None:
    begun = asyncio.Event()

    async def hangs(context: StepContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    host = Host(clean_build=hangs, rules=DEFAULT_RULES)
    task = asyncio.ensure_future(host.recoverer.attempt(S.StaleBranch))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    told = host.incident("stale_branch")
    assert (told.state, told.remaining_steps) == ("failed", ("clean_build",))
    assert told.last_failure.endswith("cancelled")


async def test_keys_in_what_a_step_says_are_not_recorded() -> None:
    async def leaks(context: StepContext) -> str:
        return "used sk-ant-0123456789abcdef"

    host = Host(restart_worker=leaks)
    await host.recoverer.attempt(S.ProviderFailure)
    assert host.incident("provider_failure").results[0].detail == "used [redacted]"


async def test_a_dry_run_tells_what_would_be_done_and_does_nothing() -> None:
    host = Host(N.CleanBuild, rules=DEFAULT_RULES)
    told = host.recoverer.dry_run(S.StaleBranch)
    assert ([step.name for step in told.steps], told.allowed, told.attempt) == ([N.RebaseBranch, N.CleanBuild], True, 1)
    assert (host.done, host.kept.payloads, told.missing) == ([], [], ())
    await host.recoverer.attempt(S.StaleBranch)
    assert not host.recoverer.dry_run(S.StaleBranch).allowed
    by_hand = host.recoverer.dry_run(S.StaleBranch, trigger="manual")
    assert [step.name for step in by_hand.steps] == [N.CleanBuild]


async def test_a_dry_run_names_the_steps_that_nobody_can_do() -> None:
    kept = AttemptsInMemory(ManualClock())
    assert RecoveryRunner(kept, {}, clock=ManualClock()).dry_run(S.ProviderFailure).missing == (N.RestartWorker,)


async def test_a_reported_failure_is_run_where_the_work_goes_on_anyway() -> None:
    host = Host(rules=DEFAULT_RULES)
    told = await host.recoverer.report(S.PartialPluginStartup, detail="plugin x is slow")
    assert (told.follow_up, told.outcome) == ("run", Recovered(2))
    assert host.types == ["recovery.enqueued", "recovery.attempted", "recovery.succeeded"]
    assert host.incident("partial_plugin_startup").detail == "plugin x is slow"


async def test_a_reported_failure_waits_for_a_person(caplog: pytest.LogCaptureFixture) -> None:
    host = Host(rules=DEFAULT_RULES)
    told = await host.recoverer.report(S.StaleBranch, incident="branch a")
    assert (told.incident, told.follow_up, told.outcome, host.done) == ("branch a", "surface", None, [])
    assert host.incident("branch a").state == "enqueued"
    assert "branch a needs a person" in caplog.text
    assert await host.recoverer.attempt(S.StaleBranch, incident="branch a", trigger="manual") == Recovered(2)


async def test_a_reported_failure_can_end_the_work() -> None:
    host = Host(rules=DEFAULT_RULES)
    with pytest.raises(AbortedError, match=r"mcp_handshake_failure: the work ends here; no answer"):
        await host.recoverer.report(S.McpHandshakeFailure, detail="no answer")
    assert (host.types, host.incident("mcp_handshake_failure").follow_up) == (["recovery.enqueued"], "end")


async def test_reporting_again_does_not_give_more_attempts() -> None:
    host = Host(N.RetryMcpHandshake, rules=DEFAULT_RULES)
    for _ in range(3):
        await host.recoverer.report(S.PartialPluginStartup)
    assert host.types.count("recovery.attempted") == 1
    assert host.incident("partial_plugin_startup").state == "exhausted"


async def test_reporting_what_was_recovered_begins_anew() -> None:
    host = Host(rules=DEFAULT_RULES)
    for _ in range(2):
        assert (await host.recoverer.report(S.PartialPluginStartup)).outcome == Recovered(2)


async def test_a_scenario_without_a_recipe_is_refused_by_name() -> None:
    recoverer = RecoveryRunner(AttemptsInMemory(ManualClock()), {}, clock=ManualClock(), recipes=stale(1))
    with pytest.raises(UserError, match="no recipe for 'provider_failure'; known scenarios: stale_branch"):
        recoverer.dry_run(S.ProviderFailure)


def test_a_request_is_not_tried_again_where_nothing_could_be_changed() -> None:
    can = {N.LearnWindow, N.RetryRequest, N.Checkpoint}
    steps = [step.name for step in keep_runnable_steps(RECIPES[S.ContextOverflow], can).steps]
    assert steps == [N.LearnWindow, N.Checkpoint, N.RetryRequest]
    assert keep_runnable_steps(RECIPES[S.ContextOverflow], {N.LearnWindow, N.RetryRequest}).steps[1:] == ()
