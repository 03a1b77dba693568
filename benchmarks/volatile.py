"""What text that changes every turn costs a session: where we put it, and at the end of the system prompt.

Recorded sessions are played as they were, and with a line of about 30 tokens that is another one in every turn and a
memory of about 300 tokens that is edited every fifth. From the cost with them the texts' own tokens are taken off,
once, at the price of input; what is left is divided by what the session costs without them. Reads HOLDFAST_DATA.
"""

import math
from collections.abc import Iterator
from decimal import Decimal

import msgspec

from benchmarks._traces import LEFT_OUT, WITH_PAUSES, sessions_of, traces_folder
from holdfast.canonical.blocks import Text
from holdfast.canonical.prompt import Passage, Segment, Stability
from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import find_model
from holdfast.catalog.tokens import count_block
from holdfast.economics.cost import cost_usd
from holdfast.planning.fixed import FixedPolicy, Placed, last_of
from holdfast.planning.memory import Learned
from holdfast.planning.ours import OurPolicy
from holdfast.planning.policy import Moment, Policy
from holdfast.providers.registry import adapter_for
from holdfast.replay.layouts import with_volatile_messages, with_volatile_system
from holdfast.replay.play import Played, Player, newest_price, setting_for
from holdfast.replay.recording import Recording

MODEL = find_model("anthropic:claude-sonnet-4-6")
BAR = 1.05
EDITED_EVERY_TURNS = 5
FACTS = "The harbour's books are kept in ledger.py; crates are counted at dawn, never at night. "

SEED, SEED_OUR_MARKS, OURS = "seed layout, seed marks", "seed layout, our marks", "ours"


def said(turn: int) -> tuple[str, ...]:
    line = f"Today is March {turn % 28 + 1}; branch main, {turn} files changed."
    edition = turn // EDITED_EVERY_TURNS
    return line, f"Memory, edition {edition}. " + FACTS * 12


def tokens_of(text: str) -> int:
    segment = Segment("history", Stability.GROWING, "messages", passages=(Passage("user", (Text(text),)),))
    (piece,) = adapter_for(MODEL.provider).spell(segment)
    return math.ceil(count_block(piece.data) * MODEL.tokens_factor)


def seed_marks(moment: Moment, calls: int) -> Placed:
    """The tools and the stable system prompt; the history stays unmarked."""
    return ((last_of(moment.scroll, "system"), "5m"), (last_of(moment.scroll, "tools"), "5m"))


class Spent(msgspec.Struct, frozen=True):
    """Dollars without the changing text, and by layout with it, its own tokens taken off once."""

    without: Decimal
    layouts: dict[str, Decimal]


def measure(recording: Recording, policies: dict[str, Policy], *, upgrade: bool) -> Spent:
    """The texts' own tokens are those that the last prompt has more than it had without them, where we put them."""
    setting = setting_for(MODEL, ttl_upgrade=upgrade)

    def played(laid_out: Recording, name: str) -> Played:
        (found,) = Player(laid_out, setting).play((policies[name],))
        return found

    without, ours = played(recording, "without"), played(with_volatile_messages(recording, said, tokens_of), OURS)
    own_tokens = ours.calls[-1].usage.tokens_sent - without.calls[-1].usage.tokens_sent
    own_usd = cost_usd(Usage(input=own_tokens), newest_price(MODEL, own_tokens))
    system = with_volatile_system(recording, said)
    found = {OURS: ours, SEED: played(system, SEED), SEED_OUR_MARKS: played(system, SEED_OUR_MARKS)}
    return Spent(without.cost_usd, {name: one.cost_usd - own_usd for name, one in found.items()})


def run() -> Iterator[tuple[str, str]]:
    traces = traces_folder()
    if traces is None:
        yield LEFT_OUT
        return
    sessions = sessions_of(traces, WITH_PAUSES, compactions=False)
    line, memory = said(100)
    yield "a line, a memory", f"{tokens_of(line)} and {tokens_of(memory)} tokens as counted for {MODEL.name}"
    for upgrade in (True, False):
        learned = dict.fromkeys(("without", OURS, SEED_OUR_MARKS), Learned())
        spent = []
        for session in sessions:
            ours = {name: OurPolicy(known) for name, known in learned.items()}
            spent.append(measure(session, {**ours, SEED: FixedPolicy("seed", seed_marks)}, upgrade=upgrade))
            learned = {name: policy.learned() for name, policy in ours.items()}
        yield f"{len(sessions)} sessions, {'upgrade' if upgrade else 'no upgrade'}", "over the same without the texts"
        yield from _rows(spent)


def _rows(spent: list[Spent]) -> Iterator[tuple[str, str]]:
    without = sum((one.without for one in spent), Decimal(0))
    for name in (OURS, SEED_OUR_MARKS, SEED):
        ratio = sum((one.layouts[name] for one in spent), Decimal(0)) / without
        each = sorted(one.layouts[name] / one.without for one in spent if one.without)
        bar = f" (bar: at most {BAR})" if name == OURS else ""
        yield f"  {name}", f"{ratio:.3f}{bar}; median session {each[len(each) // 2]:.3f}, worst {each[-1]:.3f}"
