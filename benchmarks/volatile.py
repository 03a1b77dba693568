"""What text that changes every turn costs a session: after the history, and at the end of the system prompt.

Recorded sessions are replayed unchanged, and with a line of about 30 tokens that changes every turn and a memory of
about 300 tokens that changes every fifth turn. The tokens of these texts are subtracted once, at the price of input;
the rest is divided by the cost of the session without them. Reads HOLDFAST_DATA.
"""

import math
from collections.abc import Iterator
from decimal import Decimal

import msgspec

from benchmarks._traces import SKIPPED, WITH_PAUSES, sessions_of, traces_folder
from holdfast.catalog.lookup import find_model
from holdfast.catalog.token_count import count_block_tokens
from holdfast.economics.cost import cost_usd
from holdfast.planning.adaptive_policy import AdaptivePolicy
from holdfast.planning.learned import LearnedParameters
from holdfast.planning.policies.fixed import BreakpointCandidates, FixedPolicy, last_stable_block
from holdfast.planning.policy import CachePolicy, PlanningMoment
from holdfast.providers.registry import get_adapter
from holdfast.replay.playback import Replayer, ReplayResult, find_newest_price, make_replay_setting
from holdfast.replay.prompt_layouts import append_volatile_to_system, insert_volatile_messages
from holdfast.replay.recording import Recording
from holdfast.types.blocks import Text
from holdfast.types.prompt import HistoryEntry, Segment, Stability
from holdfast.types.usage import Usage

MODEL = find_model("anthropic:claude-sonnet-4-6")
BAR = 1.05
EDITED_EVERY_TURNS = 5
FACTS = "The harbour's books are kept in ledger.py; crates are counted at dawn, never at night. "

SEED, SEED_OUR_BREAKPOINTS, OURS = "seed layout, seed breakpoints", "seed layout, our breakpoints", "ours"


def volatile_texts(turn: int) -> tuple[str, ...]:
    line = f"Today is March {turn % 28 + 1}; branch main, {turn} files changed."
    edition = turn // EDITED_EVERY_TURNS
    return line, f"Memory, edition {edition}. " + FACTS * 12


def tokens_of(text: str) -> int:
    segment = Segment("history", Stability.GROWING, "messages", entries=(HistoryEntry("user", (Text(text),)),))
    (block,) = get_adapter(MODEL.provider).encode_segment(segment)
    return math.ceil(count_block_tokens(block.data) * MODEL.tokens_factor)


def seed_breakpoints(moment: PlanningMoment, calls: int) -> BreakpointCandidates:
    """The tools and the stable system prompt; the history has no breakpoint."""
    return ((last_stable_block(moment.buffer, "system"), "5m"), (last_stable_block(moment.buffer, "tools"), "5m"))


class Spent(msgspec.Struct, frozen=True):
    """Dollars without the changing text, and by layout with it, its own tokens subtracted once."""

    without: Decimal
    layouts: dict[str, Decimal]


def measure(recording: Recording, policies: dict[str, CachePolicy], *, upgrade: bool) -> Spent:
    """The texts' own tokens: by how much they make the last prompt longer in our layout."""
    setting = make_replay_setting(MODEL, ttl_upgrade=upgrade)

    def replay(laid_out: Recording, name: str) -> ReplayResult:
        (results,) = Replayer(laid_out, setting).replay((policies[name],))
        return results

    without, ours = (
        replay(recording, "without"),
        replay(insert_volatile_messages(recording, volatile_texts, tokens_of), OURS),
    )
    own_tokens = ours.calls[-1].usage.tokens_sent - without.calls[-1].usage.tokens_sent
    own_usd = cost_usd(Usage(input=own_tokens), find_newest_price(MODEL, own_tokens))
    system = append_volatile_to_system(recording, volatile_texts)
    results = {OURS: ours, SEED: replay(system, SEED), SEED_OUR_BREAKPOINTS: replay(system, SEED_OUR_BREAKPOINTS)}
    return Spent(without.cost_usd, {name: one.cost_usd - own_usd for name, one in results.items()})


def run() -> Iterator[tuple[str, str]]:
    traces = traces_folder()
    if traces is None:
        yield SKIPPED
        return
    sessions = sessions_of(traces, WITH_PAUSES, compactions=False)
    line, memory = volatile_texts(100)
    yield "a line, a memory", f"{tokens_of(line)} and {tokens_of(memory)} tokens as counted for {MODEL.name}"
    for upgrade in (True, False):
        learned = dict.fromkeys(("without", OURS, SEED_OUR_BREAKPOINTS), LearnedParameters())
        spent = []
        for session in sessions:
            ours = {name: AdaptivePolicy(parameters) for name, parameters in learned.items()}
            spent.append(measure(session, {**ours, SEED: FixedPolicy("seed", seed_breakpoints)}, upgrade=upgrade))
            learned = {name: policy.learned_parameters() for name, policy in ours.items()}
        yield f"{len(sessions)} sessions, {'upgrade' if upgrade else 'no upgrade'}", "over the same without the texts"
        yield from _rows(spent)


def _rows(spent: list[Spent]) -> Iterator[tuple[str, str]]:
    without = sum((one.without for one in spent), Decimal(0))
    for name in (OURS, SEED_OUR_BREAKPOINTS, SEED):
        ratio = sum((one.layouts[name] for one in spent), Decimal(0)) / without
        each = sorted(one.layouts[name] / one.without for one in spent if one.without)
        bar = f" (bar: at most {BAR})" if name == OURS else ""
        yield f"  {name}", f"{ratio:.3f}{bar}; median session {each[len(each) // 2]:.3f}, worst {each[-1]:.3f}"
