"""Replays one recording under many policies, with the prompt layouts of some agents, and compares their costs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal

import msgspec

from holdfast.errors import UserError
from holdfast.planning.adaptive_policy import AdaptivePolicy
from holdfast.planning.learned import LearnedParameters
from holdfast.planning.optimum import CallStep, one_ttl_bound, optimal_cost, token_rates
from holdfast.planning.policies.peers import new_compared_policies
from holdfast.planning.policy import CachePolicy
from holdfast.replay.model_accuracy import ModelFit
from holdfast.replay.playback import OnRequest, Replayer, ReplayResult, ReplaySetting, find_newest_price
from holdfast.replay.recording import RecordedCall, Recording
from holdfast.types.blocks import Block, Text, ToolResult
from holdfast.types.prompt import HistoryEntry
from holdfast.types.usage import Usage

ALL_POLICIES = "all"


class PolicyComparison(msgspec.Struct, frozen=True):
    """`bound_usd` and `optimum_usd` are for the conversation as recorded, whatever layout a policy uses."""

    recording: str
    results: tuple[ReplayResult, ...]
    bound_usd: float
    optimum_usd: float


def compare_policies(
    recording: Recording, policies: Iterable[CachePolicy], setting: ReplaySetting, on_request: OnRequest | None = None
) -> PolicyComparison:
    """Policies that keep the recorded layout share one pass; results are in the order of the policies."""
    ordered = tuple(policies)
    plain = [policy for policy in ordered if policy.name not in LAYOUTS]
    player = Replayer(recording, setting, on_request)
    results = dict(zip((id(policy) for policy in plain), player.replay(plain), strict=True))
    for policy in ordered:
        if policy.name in LAYOUTS:
            (results[id(policy)],) = Replayer(LAYOUTS[policy.name](recording), setting, on_request).replay((policy,))
    bound_cost, optimum_cost = compute_lowest_costs(player.steps, setting)
    return PolicyComparison(recording.id, tuple(results[id(policy)] for policy in ordered), bound_cost, optimum_cost)


def compute_lowest_costs(steps: list[CallStep], setting: ReplaySetting) -> tuple[float, float]:
    """The bound and the optimum in dollars, at the price tier of the longest prompt."""
    longest = max((step.prompt_tokens for step in steps), default=0)
    rates = token_rates(find_newest_price(setting.model, longest), setting.provider_rules)
    return one_ttl_bound(steps, rates), optimal_cost(steps, rates, upgrades=setting.provider_rules.ttl_upgrade)


class PolicyRow(msgspec.Struct, frozen=True):
    policy: str
    cost_usd: float
    read_share: float
    to_best: float
    to_bound: float
    to_optimum: float
    pings: int
    cache_misses: int


class ReplayReport(msgspec.Struct, frozen=True):
    conversations: int
    calls: int
    broken_lines: int
    bound_usd: float
    optimum_usd: float
    policies: tuple[PolicyRow, ...]
    model_fit: ModelFit | None = None
    compactions: int = 0


class PolicyFactory:
    """Creates fresh policies for each conversation; only ours keeps what it learned from the previous ones."""

    def __init__(self, wanted: str = ALL_POLICIES, *, keep_alive: bool = False) -> None:
        names = (AdaptivePolicy.name, *new_compared_policies())
        if wanted not in (ALL_POLICIES, *names):
            raise UserError(f"unknown policy {wanted[:60]!r}; known policies: {', '.join(names)}")
        self._wanted, self._keep_alive = wanted, keep_alive
        self._ours = AdaptivePolicy(LearnedParameters(), keep_alive=keep_alive)

    def create_policies(self) -> tuple[CachePolicy, ...]:
        # Real sessions start with learned parameters too; the other policies learn nothing.
        self._ours = AdaptivePolicy(self._ours.learned_parameters(), keep_alive=self._keep_alive)
        policies: dict[str, CachePolicy] = {AdaptivePolicy.name: self._ours, **new_compared_policies()}
        return tuple(policies.values()) if self._wanted == ALL_POLICIES else (policies[self._wanted],)


class ReplayTotals:
    """Accumulates comparisons."""

    def __init__(self) -> None:
        self.recordings = self.calls = self.broken = self.compactions = 0
        self.bound_usd = self.optimum_usd = 0.0
        self.model_fit: ModelFit | None = None
        self.cost_usd: dict[str, Decimal] = {}
        self._usage: dict[str, Usage] = {}
        self._pings: Counter[str] = Counter()
        self._misses: Counter[str] = Counter()

    def add_comparison(
        self,
        comparison: PolicyComparison,
        model_fit: ModelFit | None,
        calls: int,
        *,
        scale: Decimal = Decimal(1),
        extra_usd: Decimal = Decimal(0),
    ) -> None:
        """`scale` turns estimated costs of prompts into those of the bill; `extra_usd` is paid under every policy."""
        self.recordings += 1
        self.calls += calls
        self.bound_usd += comparison.bound_usd * float(scale) + float(extra_usd)
        self.optimum_usd += comparison.optimum_usd * float(scale) + float(extra_usd)
        if model_fit is not None:
            self.model_fit = model_fit if self.model_fit is None else self.model_fit + model_fit
        for played in comparison.results:
            name = played.policy
            self.cost_usd[name] = self.cost_usd.get(name, Decimal(0)) + played.cost_usd * scale + extra_usd
            self._usage[name] = self._usage.get(name, Usage()) + played.usage
            self._pings[name] += sum(call.is_ping for call in played.calls)
            self._misses[name] += sum(call.is_miss for call in played.calls)

    def build_report(self) -> ReplayReport:
        best = min(self.cost_usd.values(), default=Decimal(0))
        rows = tuple(
            PolicyRow(
                policy=name,
                cost_usd=float(cost),
                read_share=self._usage[name].read_share,
                to_best=_ratio(float(cost), float(best)),
                to_bound=_ratio(float(cost), self.bound_usd),
                to_optimum=_ratio(float(cost), self.optimum_usd),
                pings=self._pings[name],
                cache_misses=self._misses[name],
            )
            for name, cost in self.cost_usd.items()
        )
        counts = self.recordings, self.calls, self.broken
        return ReplayReport(*counts, self.bound_usd, self.optimum_usd, rows, self.model_fit, self.compactions)


def _ratio(cost: float, reference: float) -> float:
    """1 if the reference is free."""
    return cost / reference if reference else 1.0


# LangChain's context editing middleware: its placeholder, trigger and number of kept results.
CLEARED_TEXT = "[cleared]"
CLEARING_CHARACTERS_MIN = 400_000
"""Clearing starts at 100,000 tokens, estimated at four characters per token."""

RESULTS_KEPT = 3
Layout = Callable[[Recording], Recording]
VolatileTexts = Callable[[int], tuple[str, ...]]
"""Returns the volatile texts of turn 1, 2, ...: one text per layer, the same layers in every turn."""


def render_turn_line(turn: int) -> tuple[str, ...]:
    return (f"Now it is turn {turn} of this session, on branch main; {turn} files have been changed since it began.",)


def append_volatile_to_system(recording: Recording, texts_of: VolatileTexts = render_turn_line) -> Recording:
    """Volatile text at the end of the system prompt, so that the system prompt changes with every user message."""
    calls = []
    turns = 0
    for call in recording.calls:
        turns += call.waited_for != "tool"
        calls.append(msgspec.structs.replace(call, system_suffix="\n".join(texts_of(turns))))
    return msgspec.structs.replace(recording, calls=tuple(calls))


def clear_old_results(recording: Recording) -> Recording:
    """From 100,000 tokens on, every request clears all tool results but the last three."""
    history: list[HistoryEntry] = []
    sent: list[HistoryEntry] = []
    cleared_entries: dict[HistoryEntry, HistoryEntry] = {}
    calls: list[RecordedCall] = []
    for call in recording.calls:
        if call.kept_entries is not None:
            del history[call.kept_entries :]
        history += call.added
        current = list(history)
        if sum(map(_count_characters, history)) > CLEARING_CHARACTERS_MIN:
            current = _clear_results(history, cleared_entries)
        pairs = enumerate(zip(sent, current, strict=False))
        shared = next((at for at, (old, new) in pairs if old is not new), len(sent))
        kept = None if shared == len(sent) and len(current) >= shared else shared
        calls.append(msgspec.structs.replace(call, added=tuple(current[shared:]), kept_entries=kept))
        reply = [call.reply] if call.reply is not None else []
        sent = current + reply
        history += reply
    return msgspec.structs.replace(recording, calls=tuple(calls))


LAYOUTS: Mapping[str, Layout] = {"metis": append_volatile_to_system, "langchain-clearing": clear_old_results}
"""Keyed by the name of the policy that uses the layout."""


def _clear_results(
    history: list[HistoryEntry], cleared_entries: dict[HistoryEntry, HistoryEntry]
) -> list[HistoryEntry]:
    results = sum(isinstance(block, ToolResult) for entry in history for block in entry.content)
    to_clear = results - RESULTS_KEPT
    current = []
    for entry in history:
        count = sum(isinstance(block, ToolResult) for block in entry.content)
        if count and count <= to_clear:
            if entry not in cleared_entries:
                cleared_entries[entry] = msgspec.structs.replace(entry, content=tuple(map(_clear_block, entry.content)))
            current.append(cleared_entries[entry])
        else:
            current.append(entry)
        to_clear -= count
    return current


def _clear_block(block: Block) -> Block:
    if not isinstance(block, ToolResult):
        return block
    return ToolResult(block.tool_use_id, (Text(CLEARED_TEXT),), block.is_error)


def _count_characters(entry: HistoryEntry) -> int:
    total = 0
    for block in entry.content:
        if isinstance(block, Text):
            total += len(block.text)
        elif isinstance(block, ToolResult):
            total += sum(len(part.text) for part in block.content if isinstance(part, Text))
    return total
