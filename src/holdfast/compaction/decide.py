"""Whether a session is to be made shorter now, and by what; the numbers that decide go along with the decision."""

from decimal import Decimal

import msgspec

from holdfast.compaction.values import ASKED_GAIN_TOKENS_MIN, GAIN_SHARE_MIN, GAIN_TOKENS_MIN, CompactionConfig
from holdfast.compaction.watch import Watch
from holdfast.economics.compacting import Rates, Sizes, break_even_calls, once_units, ripe, shorter_pays
from holdfast.events.payloads_compaction import CompactionNumbers, Trigger

WINDOW_SHARE_MAX = 0.95
"""How full a window may be, by an estimate that is never exact."""

REFETCH_TOKENS = 2_000
"""What is read again because it left the view, about: a file or two. Nobody knows it beforehand. Money alone would say
1,000 (`python -m benchmarks compaction_cost` asks both halves of recorded sessions); what leaves the view is worth more
than the tokens that bring it back."""

RECORD_SHARE = 0.5
"""How much of what a compaction leaves is the record, where the share of the messages before is what limits it."""

RECORD_TOKENS_MIN = 600


class Outlook(msgspec.Struct, frozen=True):
    """A session before a call, in tokens and calls; all of it is known without a look at the history.

    `unit_usd` is what one uncached token costs. `sent_tokens` were sent by the `calls` since the last compaction, which
    left a prompt of `base_tokens`; `lost_tokens` are expected to be fetched again behind one.
    """

    prompt_tokens: int
    head_tokens: int
    window_tokens: int
    output_tokens_max: int
    calls_expected: float
    cold: bool
    rates: Rates
    unit_usd: Decimal = Decimal(0)
    calls: int = 0
    sent_tokens: int = 0
    base_tokens: int = 0
    lost_tokens: int = REFETCH_TOKENS

    @property
    def hard_tokens(self) -> int:
        """From here on the next call may not fit; half a window is the prompt's, however much a reply may have."""
        room = max(self.window_tokens - self.output_tokens_max, self.window_tokens // 2)
        return int(room * WINDOW_SHARE_MAX)


def after_tokens(outlook: Outlook, config: CompactionConfig) -> int:
    """What will stand behind the head at most, the newest group aside."""
    return left_tokens(outlook.prompt_tokens - outlook.head_tokens, config)


def left_tokens(message_tokens: int, config: CompactionConfig) -> int:
    """What so many tokens of messages become."""
    return min(config.record_tokens_max + config.tail_tokens_max, int(max(0, message_tokens) * config.share_max))


def budgets(message_tokens: int, config: CompactionConfig) -> tuple[int, int]:
    """How many tokens the record and the tail may have."""
    room = int(message_tokens * config.share_max)
    record = max(RECORD_TOKENS_MIN, min(config.record_tokens_max, int(room * RECORD_SHARE)))
    return record, min(config.tail_tokens_max, max(0, room - record))


def due(outlook: Outlook, watch: Watch, config: CompactionConfig, *, by_size_alone: bool = False) -> Trigger | None:
    """Why the prompt is to be made shorter before the next call; None where it is not."""
    if not config.auto or not watch.may_act:
        return None
    sizes = Sizes(outlook.prompt_tokens, outlook.head_tokens, after_tokens(outlook, config))
    if outlook.prompt_tokens >= outlook.hard_tokens:
        return "hard"
    if sizes.removed < least_gain(outlook.prompt_tokens, "soft"):
        return None
    if not by_size_alone and _pays(sizes, outlook):
        if outlook.cold:
            return "cold"
        if config.money and _ripe(sizes, outlook, config):
            return "money"
    return "soft" if outlook.prompt_tokens >= config.auto_compaction_input_tokens_threshold else None


def _pays(sizes: Sizes, outlook: Outlook) -> bool:
    """With what will be fetched again counted in."""
    again = Sizes(sizes.prompt, sizes.head, sizes.after + outlook.lost_tokens)
    return bool(shorter_pays(again, outlook.rates, outlook.calls_expected, cold=outlook.cold))


def _ripe(sizes: Sizes, outlook: Outlook, config: CompactionConfig) -> bool:
    needed = sizes.head + sizes.after
    carried = outlook.sent_tokens + outlook.prompt_tokens - (outlook.calls + 1) * needed
    fixed = left_tokens(outlook.base_tokens - outlook.head_tokens, config)
    return ripe(outlook.rates, carried, fixed_tokens=fixed, lost_tokens=outlook.lost_tokens)


def least_gain(prompt_tokens: int, trigger: Trigger) -> int:
    """What must go so that it is worth a break: less is gathered again within a few calls.

    Whoever asks for it, or could not send it, takes less than a session that decides by itself.
    """
    if trigger in ("asked", "overflow"):
        return ASKED_GAIN_TOKENS_MIN
    return max(GAIN_TOKENS_MIN, int(prompt_tokens * GAIN_SHARE_MIN))


def too_large_a_head(outlook: Outlook, config: CompactionConfig) -> bool:
    """Whether the limit is passed by what no compaction can remove."""
    limit = min(outlook.hard_tokens, config.auto_compaction_input_tokens_threshold)
    return outlook.head_tokens >= limit


def numbers_of(outlook: Outlook, *, record_tokens: int, kept_tokens: int, head_tokens: int) -> CompactionNumbers:
    """What a compaction to these sizes costs once, saves with each call, and when it has paid."""
    sizes = Sizes(outlook.prompt_tokens, head_tokens, record_tokens + kept_tokens)
    unit = outlook.unit_usd
    return CompactionNumbers(
        prompt_tokens=outlook.prompt_tokens,
        head_tokens=head_tokens,
        record_tokens=record_tokens,
        kept_tokens=kept_tokens,
        removed_tokens=sizes.removed,
        calls_expected=outlook.calls_expected,
        cost_usd=once_units(sizes, outlook.rates, cold=outlook.cold) * unit,
        saving_per_call_usd=outlook.rates.read * sizes.removed * unit,
        break_even_calls=break_even_calls(sizes, outlook.rates, cold=outlook.cold),
        cache_cold=outlook.cold,
    )
