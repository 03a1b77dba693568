"""What plans cost over the least that was possible, on recorded sessions; ours beside fixed schedules and rivals.

Reads traces below the folder that HOLDFAST_DATA names: sessions in order of time, pings after the last call included.
"""

import os
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import msgspec

from holdfast.catalog.lookup import find_model
from holdfast.planning.fixed import FixedPolicy, head_and_tail, upgrade_once
from holdfast.planning.memory import Learned
from holdfast.planning.ours import OurPolicy
from holdfast.planning.policy import Policy
from holdfast.planning.rivals import compared
from holdfast.replay.compare import compare
from holdfast.replay.likeness import Likeness, likeness
from holdfast.replay.play import setting_for
from holdfast.replay.recording import Recording
from holdfast.replay.traces import read_traces

MODELS = ("claude-sonnet-4-6", "claude-opus-5-5", "claude-fable-5-2")
WITH_PAUSES = "entire_claude_code"
AUTONOMOUS = ("livemcpbench", "tau_bench_airline", "tau2_whissle")
OURS = OurPolicy.name

Fresh = Callable[[], tuple[Policy, ...]]
"""Policies for one more session; what ours has learned goes along."""


def run() -> Iterator[tuple[str, str]]:
    folder = os.environ.get("HOLDFAST_DATA")
    if not folder or not (Path(folder) / "traces").is_dir():
        yield "left out", "HOLDFAST_DATA names no folder with traces"
        return
    traces = Path(folder) / "traces"
    # The summaries of the recorded client are left out, so that prompts only grow: plans are compared, not clients.
    sessions = _sessions(traces, WITH_PAUSES, compactions=False)
    for name in MODELS:
        for upgrade in (True, False):
            for keep_alive in (False, True):
                yield from _table(sessions, name, upgrade=upgrade, keep_alive=keep_alive)
    compacted = _sessions(traces, WITH_PAUSES, compactions=True)
    for upgrade in (True, False):
        yield from _table(compacted, MODELS[0], upgrade=upgrade, keep_alive=True, what="with compactions, ")
    for trace in AUTONOMOUS:
        yield from _autonomous(trace, _sessions(traces, trace, compactions=True))
    yield from _likeness(compacted)


def _sessions(traces: Path, name: str, *, compactions: bool) -> list[Recording]:
    read = read_traces([traces / f"{name}.jsonl.gz"], compactions=compactions)
    return sorted((one for one in read if isinstance(one, Recording)), key=lambda one: one.started_at)


def _costs(
    sessions: list[Recording], model: str, fresh: Fresh, *, upgrade: bool, keep_alive: bool
) -> tuple[dict[str, Decimal], float, float]:
    """What each policy costs in all sessions, the bound, and the optimum."""
    setting = setting_for(find_model(f"anthropic:{model}"), ttl_upgrade=upgrade)
    setting = msgspec.structs.replace(setting, keep_alive=keep_alive)
    costs: dict[str, Decimal] = {}
    lowest = best = 0.0
    for session in sessions:
        compared_here = compare(session, fresh(), setting)
        lowest += compared_here.bound_usd
        best += compared_here.optimum_usd
        for played in compared_here.played:
            costs[played.policy] = costs.get(played.policy, Decimal(0)) + played.cost_usd
    return costs, lowest, best


def _table(
    sessions: list[Recording], model: str, *, upgrade: bool, keep_alive: bool, what: str = ""
) -> Iterator[tuple[str, str]]:
    ours = _ours(keep_alive=keep_alive)

    def fresh() -> tuple[Policy, ...]:
        # Rivals and schedules send no pings, but for one: they need not be played twice.
        fixed = tuple(compared().values()) if not keep_alive or what else (_with_upgrade_ping(),)
        return (*ours(), *fixed)

    costs, lowest, best = _costs(sessions, model, fresh, upgrade=upgrade, keep_alive=keep_alive)
    title = f"{what}{model}, {'upgrade' if upgrade else 'no upgrade'}, {'pings' if keep_alive else 'no pings'}"
    yield title, f"{len(sessions)} sessions, over the bound; the optimum is {best / lowest:.3f}"
    for name, cost in sorted(costs.items(), key=lambda pair: pair[1]):
        if keep_alive or name != "upgrade-ping":
            yield f"  {name}", f"{float(cost) / lowest:.3f} ({float(cost) / best:.3f} over the optimum)"


def _autonomous(trace: str, sessions: list[Recording]) -> Iterator[tuple[str, str]]:
    ours = _ours(keep_alive=False)
    costs, _, _ = _costs(sessions, MODELS[0], lambda: (*ours(), *compared().values()), upgrade=True, keep_alive=False)
    for name in (OURS, "all-1h", "sparse-anchors"):
        if name in costs:
            yield f"{trace}: {name} over a tail of 5 min", f"{costs[name] / costs['tail-5m']:.3f}"


def _likeness(sessions: list[Recording]) -> Iterator[tuple[str, str]]:
    setting = setting_for(find_model("anthropic:claude-opus-4-6"))
    total = sum((near for one in sessions if (near := likeness(one, setting)) is not None), Likeness())
    yield (
        "read share of the recorded client",
        f"{total.recorded.read_share:.2%} recorded, {total.modelled.read_share:.2%} modelled",
    )
    for reason, count in total.cold.items():
        yield f"recorded cold calls, {reason}", f"{count}, foreseen {total.cold_foreseen[reason]}"
    yield "calls taken for cold that were not", str(total.cold_imagined)


def _with_upgrade_ping() -> Policy:
    return FixedPolicy("upgrade-ping", head_and_tail("5m", "5m"), upgrade_once)


def _ours(*, keep_alive: bool) -> Fresh:
    """What ours learns in one session it knows in the next."""
    last: OurPolicy | None = None

    def fresh() -> tuple[Policy, ...]:
        nonlocal last
        last = OurPolicy(last.learned() if last else Learned(), keep_alive=keep_alive)
        return (last,)

    return fresh
