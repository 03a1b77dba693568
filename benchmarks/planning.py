"""What plans cost relative to the lowest possible cost of recorded sessions: our policy, fixed ones and other agents'.

Reads traces from the folder that HOLDFAST_DATA names: oldest session first, pings after the last call included.
"""

import hashlib
from collections.abc import Callable, Iterator
from decimal import Decimal

import msgspec

from benchmarks._traces import SKIPPED, WITH_PAUSES, sessions_of, traces_folder
from holdfast.catalog.lookup import find_model
from holdfast.planning.adaptive_policy import AdaptivePolicy
from holdfast.planning.learned import LearnedParameters
from holdfast.planning.policies.fixed import FixedPolicy, ping_upgrade_once, prefix_and_tail_rule
from holdfast.planning.policies.peers import new_compared_policies
from holdfast.planning.policy import CachePolicy
from holdfast.replay.cache_misses import LossCounts, count_losses
from holdfast.replay.comparison import compare_policies, compute_lowest_costs
from holdfast.replay.model_accuracy import ModelFit, format_model_fit, measure_model_fit
from holdfast.replay.playback import Replayer, make_replay_setting
from holdfast.replay.recording import Recording

MODELS = ("claude-sonnet-4-6", "claude-opus-5-5", "claude-fable-5-2")
AUTONOMOUS = ("livemcpbench", "tau_bench_airline", "tau2_whissle")
OURS = AdaptivePolicy.name

NewPolicies = Callable[[], tuple[CachePolicy, ...]]
"""Creates the policies for one more session; the adaptive one keeps what it has learned."""


def run() -> Iterator[tuple[str, str]]:
    traces = traces_folder()
    if traces is None:
        yield SKIPPED
        return
    sessions = sessions_of(traces, WITH_PAUSES, compactions=False)
    for name in MODELS:
        for upgrade in (True, False):
            for keep_alive in (False, True):
                yield from _table(sessions, name, upgrade=upgrade, keep_alive=keep_alive)
    yield from _measure_unseen(sessions)
    compacted = sessions_of(traces, WITH_PAUSES, compactions=True)
    for upgrade in (True, False):
        yield from _table(compacted, MODELS[0], upgrade=upgrade, keep_alive=True, prefix="with compactions, ")
    for trace in AUTONOMOUS:
        yield from _autonomous(trace, sessions_of(traces, trace, compactions=True))
    yield from _model_fit(compacted)


def _costs(
    sessions: list[Recording], model: str, new_policies: NewPolicies, *, upgrade: bool, keep_alive: bool
) -> tuple[dict[str, Decimal], float, float]:
    """What each policy costs in all sessions, the bound, and the optimum."""
    setting = make_replay_setting(find_model(f"anthropic:{model}"), ttl_upgrade=upgrade)
    setting = msgspec.structs.replace(setting, keep_alive=keep_alive)
    costs: dict[str, Decimal] = {}
    lowest = best = 0.0
    for session in sessions:
        compared_here = compare_policies(session, new_policies(), setting)
        lowest += compared_here.bound_usd
        best += compared_here.optimum_usd
        for result in compared_here.results:
            costs[result.policy] = costs.get(result.policy, Decimal(0)) + result.cost_usd
    return costs, lowest, best


def _table(
    sessions: list[Recording], model: str, *, upgrade: bool, keep_alive: bool, prefix: str = ""
) -> Iterator[tuple[str, str]]:
    ours = _ours(keep_alive=keep_alive)

    def new_policies() -> tuple[CachePolicy, ...]:
        # All but one of the other policies send no pings, so they need not be replayed twice.
        fixed = tuple(new_compared_policies().values()) if not keep_alive or prefix else (_with_upgrade_ping(),)
        return (*ours(), *fixed)

    costs, lowest, best = _costs(sessions, model, new_policies, upgrade=upgrade, keep_alive=keep_alive)
    title = f"{prefix}{model}, {'upgrade' if upgrade else 'no upgrade'}, {'pings' if keep_alive else 'no pings'}"
    yield title, f"{len(sessions)} sessions, over the bound; the optimum is {best / lowest:.3f}"
    for name, cost in sorted(costs.items(), key=lambda pair: pair[1]):
        if keep_alive or name != "upgrade-ping":
            yield f"  {name}", f"{float(cost) / lowest:.3f} ({float(cost) / best:.3f} over the optimum)"


def _measure_unseen(sessions: list[Recording]) -> Iterator[tuple[str, str]]:
    """Learn from one half of the sessions only, and measure each session of the other half separately."""
    by_hash = sorted(sessions, key=_by_hash)
    halves = {"the later half": (sessions, sessions), "a half by hash": (by_hash, sessions)}
    for name, (order, in_time) in halves.items():
        learned_parameters = {session.id for session in order[: len(order) // 2]}
        known = [session for session in in_time if session.id in learned_parameters]
        unseen = [session for session in in_time if session.id not in learned_parameters]
        for upgrade in (True, False):
            for keep_alive in (False, True):
                title = f"unseen, {name}, {MODELS[0]}, {'upgrade' if upgrade else 'no upgrade'}"
                yield f"{title}, {'pings' if keep_alive else 'no pings'}", f"{len(unseen)} sessions, over the bound"
                yield from _measure_learning(known, unseen, upgrade=upgrade, keep_alive=keep_alive)


def _measure_learning(
    known: list[Recording], unseen: list[Recording], *, upgrade: bool, keep_alive: bool
) -> Iterator[tuple[str, str]]:
    setting = make_replay_setting(find_model(f"anthropic:{MODELS[0]}"), ttl_upgrade=upgrade)
    setting = msgspec.structs.replace(setting, keep_alive=keep_alive)
    learned_parameters = LearnedParameters()
    for session in known:
        learner = AdaptivePolicy(learned_parameters, keep_alive=keep_alive)
        Replayer(session, setting).replay((learner,))
        learned_parameters = learner.learned_parameters()
    names = ("learned in the other half, then frozen", "learning as it goes", "nothing learned")
    spent, lowest, best, continuing = dict.fromkeys(names, Decimal(0)), 0.0, 0.0, LearnedParameters()
    for session in unseen:
        policies = [
            AdaptivePolicy(start, keep_alive=keep_alive)
            for start in (learned_parameters, continuing, LearnedParameters())
        ]
        player = Replayer(session, setting)
        for name, result in zip(names, player.replay(policies), strict=True):
            spent[name] += result.cost_usd
        bound_here, best_here = compute_lowest_costs(player.steps, setting)
        lowest, best = lowest + bound_here, best + best_here
        continuing = policies[1].learned_parameters()
    for name, cost in spent.items():
        yield f"  {name}", f"{float(cost) / lowest:.3f} ({float(cost) / best:.3f} over the optimum)"


def _autonomous(trace: str, sessions: list[Recording]) -> Iterator[tuple[str, str]]:
    ours = _ours(keep_alive=False)
    costs, _, _ = _costs(
        sessions, MODELS[0], lambda: (*ours(), *new_compared_policies().values()), upgrade=True, keep_alive=False
    )
    for name in (OURS, "all-1h", "sparse-anchors"):
        if name in costs:
            yield f"{trace}: {name} over a tail of 5 min", f"{costs[name] / costs['tail-5m']:.3f}"


def _model_fit(sessions: list[Recording]) -> Iterator[tuple[str, str]]:
    setting = make_replay_setting(find_model("anthropic:claude-opus-4-6"))
    total = sum((fit for session in sessions if (fit := measure_model_fit(session, setting)) is not None), ModelFit())
    yield from format_model_fit(total)
    read_share_off = total.modelled.read_share - total.recorded.read_share
    yield "modelled read share less the reported one", f"{100 * read_share_off:+.2f} points (bar: within 1)"
    alone = total.explained_alone_count / total.miss_count
    yield (
        "misses with a reason",
        f"{total.explained_count / total.miss_count:.1%}, {alone:.1%} by the call alone (bar: 95%)",
    )
    by_hash = sorted(sessions, key=_by_hash)
    halves = by_hash[: len(by_hash) // 2], by_hash[len(by_hash) // 2 :]
    for half, other in (halves, halves[::-1]):
        learned = sum((count_losses(session, setting.assumed_rules) for session in other), LossCounts())
        unseen = sum((count_losses(session, setting.assumed_rules) for session in half), LossCounts())
        yield (
            "  the client's losses in the other half",
            f"{learned.loss_ratio:.0f} times as often after a user message; here {unseen.loss_ratio:.0f} times",
        )


def _by_hash(session: Recording) -> str:
    return hashlib.sha256(session.id.encode()).hexdigest()


def _with_upgrade_ping() -> CachePolicy:
    return FixedPolicy("upgrade-ping", prefix_and_tail_rule("5m", "5m"), ping_upgrade_once)


def _ours(*, keep_alive: bool) -> NewPolicies:
    """Our policy starts each session with what it learned in the previous ones."""
    last: AdaptivePolicy | None = None

    def new_policies() -> tuple[CachePolicy, ...]:
        nonlocal last
        last = AdaptivePolicy(last.learned_parameters() if last else LearnedParameters(), keep_alive=keep_alive)
        return (last,)

    return new_policies
