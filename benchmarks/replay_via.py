"""What recorded sessions cost through a session, a gateway and a wrapped client, beside other programs' fixed plans.

Reads traces from the folder that HOLDFAST_DATA names: every fourth session, oldest first, or all with
HOLDFAST_EVERY_SESSION=1. Peers are the plans that other programs use; the fixed plans include some that none uses.
Plans that change the prompt are left out: here all send the same one.
"""

import os
from collections.abc import Iterator
from decimal import Decimal

import msgspec

from benchmarks._traces import SKIPPED, WITH_PAUSES, sessions_of, traces_folder
from holdfast.catalog.lookup import find_model
from holdfast.cli.costs.entry_points import ENTRY_POINTS, create_player, play_simulated
from holdfast.planning.policies.peers import RIVAL_POLICIES, new_compared_policies
from holdfast.planning.policy import CachePolicy
from holdfast.replay.comparison import LAYOUTS, compare_policies
from holdfast.replay.playback import ReplaySetting, make_replay_setting
from holdfast.replay.recording import Recording

MODEL = "anthropic:claude-sonnet-4-6"
OPENROUTER = "openrouter:anthropic/claude-sonnet-5.5"
SAMPLE_STEP = 4
APART_MAX = 0.01

# Other formats and kinds of caches, on every so many sessions: the simulator takes its time.
OTHERS = ("openai:gpt-6.1-sol", "openai-chat:gpt-6.1-sol", "openai:gpt-5.4", "gemini:gemini-3.8-flash", OPENROUTER)
OTHERS_STEP = 16
OVER_PEER_MAX = {"upgrade": 0.95, "no upgrade": 1.01}


def run() -> Iterator[tuple[str, str]]:
    traces = traces_folder()
    if traces is None:
        yield SKIPPED
        return
    every = sessions_of(traces, WITH_PAUSES, compactions=False)
    sessions = every if os.environ.get("HOLDFAST_EVERY_SESSION") else every[::SAMPLE_STEP]
    calls = sum(len(session.calls) for session in sessions)
    yield "sessions", f"{len(sessions)} of {len(every)}, {calls} calls, {MODEL}"
    for truth, bar in OVER_PEER_MAX.items():
        for keep_alive in (False, True):
            costs = _costs(sessions, upgrade=truth == "upgrade", keep_alive=keep_alive)
            title = f"{truth}, {'pings' if keep_alive else 'no pings'}"
            via = {name: costs.pop(f"via-{name}") for name in ENTRY_POINTS}
            least, most = min(via.values()), max(via.values())
            figures = ", ".join(f"{name} ${cost:.4f}" for name, cost in via.items())
            yield f"{title}: most over least (at most {1 + APART_MAX:.2f})", f"{most / least:.4f} ({figures})"
            if costs:
                peers = {name: cost for name, cost in costs.items() if name in RIVAL_POLICIES}
                yield f"{title}: gateway over the best peer (at most {bar:.2f})", _over_best(via["gateway"], peers)
                yield f"{title}: gateway over the best fixed plan", _over_best(via["gateway"], costs)
    yield from _compare_others(every[::OTHERS_STEP])


def _compare_others(sessions: list[Recording]) -> Iterator[tuple[str, str]]:
    """Sessions and gateway in the other providers' formats, at their simulators."""
    calls = sum(len(session.calls) for session in sessions)
    for name in OTHERS:
        model = find_model(name)
        setting = ReplaySetting(model, model.cache, model.cache)
        via = {point: create_player(point, setting) for point in ("session", "gateway")}
        costs = {
            point: sum((play_simulated(player, session, model) for session in sessions), Decimal(0))
            for point, player in via.items()
        }
        figures = ", ".join(f"{point} ${cost:.4f}" for point, cost in costs.items())
        ratio = costs["gateway"] / costs["session"]
        yield f"{name}: gateway over session (at most {1 + APART_MAX:.2f}; {calls} calls)", f"{ratio:.4f} ({figures})"


def _over_best(cost: Decimal, others: dict[str, Decimal]) -> str:
    best = min(others, key=others.__getitem__)
    return f"{cost / others[best]:.4f} ({best} ${others[best]:.4f})"


def _costs(sessions: list[Recording], *, upgrade: bool, keep_alive: bool) -> dict[str, Decimal]:
    """What each entry point costs, and without pings each fixed plan."""
    setting = make_replay_setting(find_model(MODEL), ttl_upgrade=upgrade)
    setting = msgspec.structs.replace(setting, keep_alive=keep_alive)
    players = [create_player(name, setting) for name in ENTRY_POINTS]
    costs: dict[str, Decimal] = {}
    for session in sessions:
        for player in players:
            player.open_recording(session)
        fixed = {} if keep_alive else new_compared_policies()
        peers: tuple[CachePolicy, ...] = tuple(policy for name, policy in fixed.items() if name not in LAYOUTS)
        for result in compare_policies(session, (*players, *peers), setting).results:
            costs[result.policy] = costs.get(result.policy, Decimal(0)) + result.cost_usd
    return costs
