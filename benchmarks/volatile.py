"""What text that changes every turn costs a session: after the history, and at the end of the system prompt.

Recorded sessions are replayed unchanged, and with a line of about 30 tokens that changes every turn and a memory of
about 300 tokens that changes every fifth turn. The tokens of these texts are subtracted once, at the price of input;
the rest is divided by the cost of the session without them. Reads HOLDFAST_DATA.
"""

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import zip_longest

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
from holdfast.replay.comparison import VolatileTexts, append_volatile_to_system
from holdfast.replay.playback import Replayer, ReplayResult, find_newest_price, make_replay_setting
from holdfast.replay.recording import RecordedCall, Recording
from holdfast.types.blocks import Text, ToolResult
from holdfast.types.prompt import HistoryEntry, Segment, Stability
from holdfast.types.usage import Usage

MODEL = find_model("anthropic:claude-sonnet-4-6")
BAR = 1.05
EDITED_EVERY_TURNS = 5
FACTS = "The harbour's books are kept in ledger.py; crates are counted at dawn, never at night. "

SEED, SEED_OUR_BREAKPOINTS, OURS = "seed layout, seed breakpoints", "seed layout, our breakpoints", "ours"


def insert_volatile_messages(recording: Recording, texts_of: VolatileTexts, tokens: Callable[[str], int]) -> Recording:
    """Volatile text before the user's words, sent only when it changed, and part of the history from then on.

    Nothing is added inside a tool loop; after a compaction all of it is sent again. `tokens` counts what it adds to the
    recorded size of the first prompt.
    """
    calls: list[RecordedCall] = []
    last: tuple[str | None, ...] = ()
    turns = first_tokens = 0
    for call in recording.calls:
        last = () if call.kept_entries is not None else last
        if call.waited_for != "tool":
            turns += 1
            now = texts_of(turns)
            new = tuple(text for text, before in zip_longest(now, last) if text is not None and text != before)
            call = msgspec.structs.replace(call, added=_insert_texts(call.added, new))
            first_tokens += sum(map(tokens, new)) if not calls else 0
            last = now
        calls.append(call)
    recorded = recording.first_prompt_tokens
    first_prompt = None if recorded is None else recorded + first_tokens
    return msgspec.structs.replace(recording, calls=tuple(calls), first_prompt_tokens=first_prompt)


def _insert_texts(added: tuple[HistoryEntry, ...], texts: tuple[str, ...]) -> tuple[HistoryEntry, ...]:
    """Put the texts into the newest entry: after its tool results, which providers require first, before the rest."""
    if not added or not texts:
        return added
    *earlier, newest = added
    results = tuple(block for block in newest.content if isinstance(block, ToolResult))
    rest = tuple(block for block in newest.content if not isinstance(block, ToolResult))
    content = (*results, *map(Text, texts), *rest)
    return (*earlier, msgspec.structs.replace(newest, content=content))


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
