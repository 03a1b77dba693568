"""What recorded sessions cost through a session, a gateway and a wrapped client, beside other programs' fixed plans.

Reads traces from the folder that HOLDFAST_DATA names: every fourth session, oldest first, or all with
HOLDFAST_EVERY_SESSION=1. Peers are the plans that other programs use; the fixed plans include some that none uses.
Plans that change the prompt are left out: here all send the same one.

Each entry point plays all sessions, in a process of its own, because it learns from one to the next. The file that
HOLDFAST_RESUME names keeps what is finished, so that an interrupted run goes on where it was.
"""

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from decimal import Decimal
from pathlib import Path

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
PROCESSES = 2
PROGRESS_STEP = 24

# Other formats and kinds of caches, on every so many sessions: the simulator takes its time.
OTHERS = ("openai:gpt-6.1-sol", "openai-chat:gpt-6.1-sol", "openai:gpt-5.4", "gemini:gemini-3.8-flash", OPENROUTER)
OTHERS_STEP = 16
OVER_PEER_MAX = {"upgrade": 0.95, "no upgrade": 1.01}
FIXED = "fixed plans"

Costs = dict[str, Decimal]


class Part(msgspec.Struct, frozen=True):
    """All sessions, every so many, through one entry point or with the fixed plans."""

    title: str
    player: str
    step: int
    model: str = MODEL

    @property
    def key(self) -> str:
        return f"{self.model}, {self.title}, {self.player}, every {self.step}"


def run() -> Iterator[tuple[str, str]]:
    traces = traces_folder()
    if traces is None:
        yield SKIPPED
        return
    every = sessions_of(traces, WITH_PAUSES, compactions=False)
    step = 1 if os.environ.get("HOLDFAST_EVERY_SESSION") else SAMPLE_STEP
    yield "sessions", f"{_count(every[::step])} of {len(every)}, {MODEL}"
    titles = [f"{truth}, {pings}" for truth in OVER_PEER_MAX for pings in ("no pings", "pings")]
    parts = [Part(f"{truth}, no pings", FIXED, step) for truth in OVER_PEER_MAX]
    parts += [Part(title, player, step) for player in ENTRY_POINTS for title in titles]
    parts += [Part("simulator", point, OTHERS_STEP, name) for name in OTHERS for point in ("session", "gateway")]
    finished = _play_all(parts)
    for title in titles:
        truth = title.partition(",")[0]
        via = {name: finished[Part(title, name, step).key][name] for name in ENTRY_POINTS}
        figures = ", ".join(f"{name} ${cost:.4f}" for name, cost in via.items())
        apart = max(via.values()) / min(via.values())
        yield f"{title}: most over least (at most {1 + APART_MAX:.2f})", f"{apart:.4f} ({figures})"
        fixed = finished.get(Part(title, FIXED, step).key)
        if fixed is not None:
            peers = {name: cost for name, cost in fixed.items() if name in RIVAL_POLICIES}
            bar = OVER_PEER_MAX[truth]
            yield f"{title}: gateway over the best peer (at most {bar:.2f})", _over_best(via["gateway"], peers)
            yield f"{title}: gateway over the best fixed plan", _over_best(via["gateway"], fixed)
    for truth in OVER_PEER_MAX:
        plain, pinged = (finished[Part(f"{truth}, {k}", "gateway", step).key]["gateway"] for k in ("no pings", "pings"))
        yield f"{truth}: pings lower the gateway's cost by", f"{1 - pinged / plain:.2%}"
    calls = _count(every[::OTHERS_STEP])
    for name in OTHERS:
        costs = {
            point: finished[Part("simulator", point, OTHERS_STEP, name).key][point] for point in ("session", "gateway")
        }
        figures = ", ".join(f"{point} ${cost:.4f}" for point, cost in costs.items())
        ratio = costs["gateway"] / costs["session"]
        yield f"{name}: gateway over session (at most {1 + APART_MAX:.2f}; {calls})", f"{ratio:.4f} ({figures})"


def _count(sessions: list[Recording]) -> str:
    return f"{len(sessions)} sessions with {sum(len(session.calls) for session in sessions)} calls"


def _over_best(cost: Decimal, others: Costs) -> str:
    best = min(others, key=others.__getitem__)
    return f"{cost / others[best]:.4f} ({best} ${others[best]:.4f})"


def _play_all(parts: list[Part]) -> dict[str, Costs]:
    resumed = os.environ.get("HOLDFAST_RESUME")
    file = Path(resumed) if resumed else None
    finished: dict[str, Costs] = {}
    if file is not None and file.exists():
        finished = msgspec.json.decode(file.read_bytes(), type=dict[str, Costs])
    with ProcessPoolExecutor(PROCESSES) as pool:
        playing = {pool.submit(_play, part): part for part in parts if part.key not in finished}
        for done in as_completed(playing):
            finished[playing[done].key] = done.result()
            if file is not None:
                file.write_bytes(msgspec.json.encode(finished))
    return finished


def _play(part: Part) -> Costs:
    traces = traces_folder()
    assert traces is not None
    sessions = sessions_of(traces, WITH_PAUSES, compactions=False)[:: part.step]
    if part.model != MODEL:
        return {part.player: _play_at_simulator(part, sessions)}
    truth, _, pings = part.title.partition(", ")
    setting = make_replay_setting(find_model(MODEL), ttl_upgrade=truth == "upgrade")
    setting = msgspec.structs.replace(setting, keep_alive=pings == "pings")
    player = None if part.player == FIXED else create_player(part.player, setting)
    costs: Costs = {}
    for number, session in enumerate(sessions, 1):
        policies: tuple[CachePolicy, ...]
        if player is None:
            # Without what they might know of earlier sessions: none of them learns.
            policies = tuple(policy for name, policy in new_compared_policies().items() if name not in LAYOUTS)
        else:
            player.open_recording(session)
            policies = (player,)
        for result in compare_policies(session, policies, setting).results:
            name = result.policy.removeprefix("via-")
            costs[name] = costs.get(name, Decimal(0)) + result.cost_usd
        if not number % PROGRESS_STEP or number == len(sessions):
            print(f"    {part.key}: {number} of {len(sessions)} sessions", file=sys.stderr, flush=True)
    return costs


def _play_at_simulator(part: Part, sessions: list[Recording]) -> Decimal:
    """A session or a gateway in another provider's format."""
    model = find_model(part.model)
    player = create_player(part.player, ReplaySetting(model, model.cache, model.cache))
    return sum((play_simulated(player, session, model) for session in sessions), Decimal(0))
