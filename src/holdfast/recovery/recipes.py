"""Recovery recipes: the steps for each known failure, the number of attempts, and the escalation policy."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

import msgspec

from holdfast.events.payloads.recovery import FollowUp
from holdfast.recovery.scenarios import EscalationPolicy, FailureScenario, StepName

STEP_SECONDS_MAX = 300.0
BACKOFF_SECONDS_FIRST = 1.0
BACKOFF_SECONDS_MAX = 60.0


class RecoveryStep(msgspec.Struct, frozen=True):
    """`subject` is what the step applies to, or why, if the recipe defines it.

    Without `seconds_max` the step enforces its own limits.
    """

    name: StepName
    seconds_max: float | None = STEP_SECONDS_MAX
    subject: str = ""


class RecoveryRecipe(msgspec.Struct, frozen=True):
    """What is done about a known failure: steps in order, how often, and what happens if they do not help."""

    scenario: FailureScenario
    steps: tuple[RecoveryStep, ...]
    escalation: EscalationPolicy
    attempts_max: int = 1


class RecoveryRules(msgspec.Struct, frozen=True):
    """How attempts are counted: a success, or `healthy_seconds` without failure, resets the count.

    With `escalates_at_once` the last allowed failure is escalated immediately, otherwise at the next attempt.
    """

    success_resets: bool = True
    escalates_at_once: bool = True
    healthy_seconds: float | None = 3_600.0


DEFAULT_RULES = RecoveryRules()
SEED_RULES = RecoveryRules(success_resets=False, escalates_at_once=False, healthy_seconds=None)
"""As in seed 002: attempts, also successful ones, count for the whole session; a failed first step escalates."""


def select_rules(profile: str) -> RecoveryRules:
    return SEED_RULES if profile == "seed" else DEFAULT_RULES


def _recipe(scenario: FailureScenario, escalation: EscalationPolicy, *steps: StepName | RecoveryStep) -> RecoveryRecipe:
    return RecoveryRecipe(scenario, tuple(map(_step, steps)), escalation)


def _step(step: StepName | RecoveryStep) -> RecoveryStep:
    if isinstance(step, RecoveryStep):
        return step
    # A model reply has no fixed time limit here; the connection's own timeouts apply.
    return RecoveryStep(step, None) if step is StepName.RetryRequest else RecoveryStep(step)


_S, _N, _P = FailureScenario, StepName, EscalationPolicy
_LEDGER_STEPS = (_N.LastGoodCopy, _N.RebuildFromFiles, _N.Quarantine)

_TABLE = (
    _recipe(_S.TrustPromptUnresolved, _P.AlertHuman, _N.AcceptTrustPrompt),
    _recipe(_S.PromptMisdelivery, _P.AlertHuman, _N.RedirectPromptToAgent),
    _recipe(_S.StaleBranch, _P.AlertHuman, _N.RebaseBranch, _N.CleanBuild),
    _recipe(_S.CompileRedCrossCrate, _P.AlertHuman, _N.CleanBuild),
    _recipe(_S.McpHandshakeFailure, _P.Abort, RecoveryStep(_N.RetryMcpHandshake, seconds_max=5.0)),
    _recipe(
        _S.PartialPluginStartup,
        _P.LogAndContinue,
        RecoveryStep(_N.RestartPlugin, subject="stalled"),
        RecoveryStep(_N.RetryMcpHandshake, seconds_max=3.0),
    ),
    _recipe(_S.ProviderFailure, _P.AlertHuman, _N.RestartWorker),
    _recipe(
        _S.ContextOverflow,
        _P.AlertHuman,
        _N.LearnWindow,
        *(_N.ShortenNewestResults, _N.RetryRequest),
        *(_N.BatchClear, _N.RetryRequest),
        *(_N.Checkpoint, _N.RetryRequest),
        *(_N.SmallerTail, _N.RetryRequest),
    ),
    _recipe(_S.CompactionIneffective, _P.AlertHuman, _N.DiagnoseHeadAndTail, _N.SuggestCuts, _N.DisableAutoCompaction),
    _recipe(_S.SummaryInvalid, _P.LogAndContinue, _N.RemindSummariser, _N.DeterministicRecord),
    _recipe(_S.OrphanToolPair, _P.Abort, _N.RepairView, _N.RevalidateView, _N.RetryRequest),
    _recipe(
        _S.ThinkingPrefixMismatch,
        _P.AlertHuman,
        *(_N.DropOldThinking, _N.RetryRequest),
        *(_N.DropAllThinking, _N.RetryRequest),
    ),
    _recipe(_S.UnexpectedCacheBreak, _P.LogAndContinue, _N.DiffChain, _N.FreezeToolsAndSystem, _N.RepinHead),
    _recipe(_S.CacheColdLarge, _P.AlertHuman, _N.DeterministicTidy, _N.ConfirmCost),
    _recipe(_S.DigestInvalid, _P.LogAndContinue, *_LEDGER_STEPS),
    _recipe(_S.LedgerCorrupt, _P.LogAndContinue, *_LEDGER_STEPS),
    _recipe(
        _S.ProviderRejectsMarker,
        _P.LogAndContinue,
        *(_N.DropDeepestMarker, _N.RetryRequest),
        *(_N.DropAllMarkers, _N.RetryRequest),
    ),
)

Recipes = Mapping[FailureScenario, RecoveryRecipe]
RECIPES: Recipes = MappingProxyType({recipe.scenario: recipe for recipe in _TABLE})

_FOLLOW_UPS: dict[EscalationPolicy, FollowUp] = {
    EscalationPolicy.LogAndContinue: "run",
    EscalationPolicy.AlertHuman: "surface",
    EscalationPolicy.Abort: "end",
}


def choose_follow_up(recipe: RecoveryRecipe) -> FollowUp:
    """What happens with the recipe once its failure is reported."""
    return _FOLLOW_UPS[recipe.escalation]


def keep_runnable_steps(recipe: RecoveryRecipe, available: AbstractSet[StepName]) -> RecoveryRecipe:
    """The recipe with the available steps only; a retry is dropped unless a step before it changed something."""
    steps: list[RecoveryStep] = []
    has_changed = False
    for step in recipe.steps:
        if step.name not in available or (step.name is StepName.RetryRequest and not has_changed):
            continue
        # Learning the window changes what later steps aim for, but not the request itself.
        if step.name is not StepName.LearnWindow:
            has_changed = step.name is not StepName.RetryRequest
        steps.append(step)
    return msgspec.structs.replace(recipe, steps=tuple(steps))


def backoff_seconds(attempt: int) -> float:
    """The pause before attempt number `attempt`, counted from 1: 0, then 1 s doubling up to 60 s."""
    # The exponent is bounded so that a very large attempt number cannot overflow the float.
    return 0.0 if attempt <= 1 else min(BACKOFF_SECONDS_FIRST * 2.0 ** min(attempt - 2, 16), BACKOFF_SECONDS_MAX)
