"""Decide whether to compact a session now, and why; the figures behind the decision are recorded with it.

`CompactionMonitor` tracks whether compactions helped, and keeps a session from compacting in a loop.
"""

from decimal import Decimal

import msgspec

from holdfast.compaction.models import GAIN_SHARE_MIN, GAIN_TOKENS_MIN, REQUESTED_GAIN_TOKENS_MIN, CompactionConfig
from holdfast.economics.breakeven import (
    CacheRates,
    CompactionSizes,
    break_even_calls,
    compaction_pays,
    is_compaction_ripe,
    one_time_cost,
)
from holdfast.events.payloads.compaction import (
    CompactionNumbers,
    CompactionRequested,
    CompactionSkipped,
    CompactionTrigger,
    CompactionUndone,
    ContextCompacted,
)
from holdfast.types.usage import Usage

SOFT_WINDOW_SHARE = 0.8
"""A prompt of this share of the context window is compacted even if it is below the configured limit: the rest is
room for the reply, a large tool result and the error of the token estimate."""

LIMIT_SHARE_MAX = 1.25
"""A prompt this much above the configured limit is compacted at once: below, a session waits until that is paid for."""

PROMPTS_REMEMBERED = 64
"""More calls than it takes to pay for a compaction that removes a fifth of the prompt, with one-hour writes too."""

WINDOW_SHARE_MAX = 0.95
"""How full the context window may be; the margin covers the error of the token estimate."""

REFETCH_TOKENS = 2_000
"""Tokens that the agent is expected to fetch again because they were compacted away: about one or two files. By cost
alone it would be 1,000 (`python -m benchmarks compaction_cost` compares both halves of recorded sessions); information
that the agent loses is worth more than the tokens that bring it back."""

SUMMARY_SHARE = 0.5
"""The summary's share of what a compaction leaves, when `share_max` is the binding limit."""

ECONOMICAL_SHARE_MAX = 0.45
"""The share of the messages that a compaction for money leaves; more saves less and is soon compacted again. Chosen on
one half of the recorded sessions (`python -m benchmarks compaction`, decision 0023)."""

SUMMARY_TOKENS_MIN = 600

SOON_SHARE = 0.25
"""The share of the limit that the newest groups may take after a compaction soon after another one."""

# Guards against compacting in a loop: a compaction is a strike if the prompt is not below 80 % of its size before
# afterwards, by the provider's count.
EFFECT_SHARE_MAX = 0.8
STRIKES_MAX = 2
WAIT_CALLS = 10
# More calls than any session makes: a back-off that ends only with the next user message.
NEVER_AGAIN_CALLS = 1_000_000_000


class CompactionOutlook(msgspec.Struct, frozen=True):
    """A session before a call, in tokens and calls; known without reading the history.

    `unit_usd` is the price of one uncached input token. `sent_tokens` were sent by the `calls` since the last
    compaction, which left a prompt of `base_tokens`; `refetch_tokens` are expected to be fetched again after one.
    """

    prompt_tokens: int
    stable_prefix_tokens: int
    window_tokens: int
    output_tokens_max: int
    expected_calls: float
    is_cache_cold: bool
    rates: CacheRates
    unit_usd: Decimal = Decimal(0)
    calls: int = 0
    sent_tokens: int = 0
    base_tokens: int = 0
    refetch_tokens: int = REFETCH_TOKENS

    @property
    def hard_tokens(self) -> int:
        """The prompt size from which on the next call may not fit. The prompt always gets half of the window."""
        room = max(self.window_tokens - self.output_tokens_max, self.window_tokens // 2)
        # A catalog row may allow a reply as long as the window; without the lower bound no prompt would ever fit.
        return int(room * WINDOW_SHARE_MAX)


def estimate_compacted_tokens(message_tokens: int, config: CompactionConfig) -> int:
    """Upper bound on what is left of this many tokens after the stable prefix, without the newest group."""
    most = config.summary_tokens_max + config.tail_tokens_max + config.files_tokens_max
    return min(most, int(max(0, message_tokens) * _share_max(config)))


def _share_max(config: CompactionConfig) -> float:
    return min(config.share_max, ECONOMICAL_SHARE_MAX) if config.mode == "economical" else config.share_max


def split_token_budget(message_tokens: int, config: CompactionConfig) -> tuple[int, int, int]:
    """Token budgets of the summary, of the recent messages that are kept, and of files in progress before them."""
    room = int(message_tokens * _share_max(config))
    # The summary is sized first; the recent messages get half of what is left, and the files the rest.
    summary_tokens = max(SUMMARY_TOKENS_MIN, min(config.summary_tokens_max, int(room * SUMMARY_SHARE)))
    rest = max(0, room - summary_tokens)
    tail_tokens = min(config.tail_tokens_max, rest - rest // 2 if config.files_tokens_max else rest)
    return summary_tokens, tail_tokens, min(config.files_tokens_max, rest - tail_tokens)


class CompactionMonitor(msgspec.Struct, frozen=True):
    """The state since the last compaction, which covered up to `last_message` and left `base_tokens`.

    `calls` were answered since and sent `sent_tokens`, the newest of them `prompts`; `from_tokens` is the size before,
    until a call reports the size after. `covered_until` is the last message that the summary covers. After STRIKES_MAX
    compactions that did not help, there is no automatic one until the next user message; after a refused one, not for
    WAIT_CALLS calls. After an undone one, not below `tokens_min`, unless the window is full. `request` is
    what the agent asked for and was not answered yet.
    """

    count: int = 0
    last_message: int = 0
    calls: int = 0
    from_tokens: int = 0
    strikes: int = 0
    calls_to_wait: int = 0
    sent_tokens: int = 0
    base_tokens: int = 0
    covered_until: int = 0
    summary_tokens_max: int = 0
    tokens_min: int = 0
    prompts: tuple[int, ...] = ()
    request: CompactionRequested | None = None

    @property
    def may_act(self) -> bool:
        """Not directly after another compaction, and not after repeated ones that did not help."""
        return not self.calls_to_wait and self.strikes < STRIKES_MAX and (not self.count or self.calls > 1)


def find_compaction_trigger(
    outlook: CompactionOutlook, monitor: CompactionMonitor, config: CompactionConfig, *, by_size_alone: bool = False
) -> CompactionTrigger | None:
    """The reason to compact before the next call; None if there is none."""
    trigger = _find_automatic_trigger(outlook, monitor, config, by_size_alone=by_size_alone)
    # A user who has undone a compaction wants more in view than the agent.
    is_asked = monitor.request is not None and outlook.prompt_tokens >= monitor.tokens_min
    return "agent" if is_asked and trigger != "hard" else trigger


def _find_automatic_trigger(
    outlook: CompactionOutlook, monitor: CompactionMonitor, config: CompactionConfig, *, by_size_alone: bool
) -> CompactionTrigger | None:
    if config.mode == "off" or not monitor.may_act:
        return None
    prompt, prefix = outlook.prompt_tokens, outlook.stable_prefix_tokens
    sizes = CompactionSizes(prompt, prefix, estimate_compacted_tokens(prompt - prefix, config))
    if outlook.prompt_tokens >= outlook.hard_tokens:
        return "hard"
    if outlook.prompt_tokens < monitor.tokens_min:
        return None
    # Order of the triggers: the window comes before money, because a call that does not fit fails; then a cold cache,
    # where the shorter prompt saves from the first call on; the soft limit holds even where money says no.
    if sizes.removed < removed_tokens_min(outlook.prompt_tokens, "soft"):
        return None
    if config.mode == "economical" and not by_size_alone and _pays(sizes, outlook):
        if outlook.is_cache_cold:
            return "cache_expired"
        if _is_ripe(sizes, outlook, config):
            return "money"
    if outlook.prompt_tokens < soft_limit_tokens(outlook, config):
        return None
    return "soft" if by_size_alone or _is_over_limit_paid(sizes, outlook, monitor, config) else None


def _is_over_limit_paid(
    sizes: CompactionSizes, outlook: CompactionOutlook, monitor: CompactionMonitor, config: CompactionConfig
) -> bool:
    """Whether a prompt above the limit is compacted now: it costs nothing, it has been paid for, or it cannot wait."""
    limit = config.auto_compaction_input_tokens_threshold
    is_near_window = sizes.prompt >= outlook.window_tokens * SOFT_WINDOW_SHARE
    if outlook.is_cache_cold or is_near_window or sizes.prompt >= limit * LIMIT_SHARE_MAX:
        return True
    # Rent or buy, from the limit on: with F + A tokens left, a call with prompt P above the limit carries P - F - A
    # that it could do without, at r each; removing them costs (w - r) A once. A session that ends before the one
    # equals the other would have paid for nothing; one that goes on has paid at most twice (decision 0053).
    needed = sizes.prefix + sizes.after
    prompts = (*(prompt for prompt in monitor.prompts if prompt >= limit), sizes.prompt)
    carried = sum(max(0, prompt - needed) for prompt in prompts)
    return outlook.rates.read * carried >= (outlook.rates.write - outlook.rates.read) * sizes.after


def soft_limit_tokens(outlook: CompactionOutlook, config: CompactionConfig) -> int:
    """The prompt size from which on a session is compacted."""
    return min(config.auto_compaction_input_tokens_threshold, int(outlook.window_tokens * SOFT_WINDOW_SHARE))


def _pays(sizes: CompactionSizes, outlook: CompactionOutlook) -> bool:
    """Whether compacting saves money, including the tokens that will be fetched again."""
    with_refetch = CompactionSizes(sizes.prompt, sizes.prefix, sizes.after + outlook.refetch_tokens)
    return bool(compaction_pays(with_refetch, outlook.rates, outlook.expected_calls, cold=outlook.is_cache_cold))


def _is_ripe(sizes: CompactionSizes, outlook: CompactionOutlook, config: CompactionConfig) -> bool:
    # Rent or buy: compact once carrying the removable tokens has cost as much as removing them, which needs no forecast
    # of the remaining calls (decision 0023). With P the prompts sent so far, n their number and F + A the compacted
    # size: carried = sum(P) - n * (F + A). See economics/breakeven.py for the break-even itself.
    needed = sizes.prefix + sizes.after
    carried = outlook.sent_tokens + outlook.prompt_tokens - (outlook.calls + 1) * needed
    fixed = estimate_compacted_tokens(outlook.base_tokens - outlook.stable_prefix_tokens, config)
    return is_compaction_ripe(outlook.rates, carried, fixed_tokens=fixed, lost_tokens=outlook.refetch_tokens)


def recent_groups_tokens_max(trigger: CompactionTrigger, monitor: CompactionMonitor, config: CompactionConfig) -> int:
    """Up to how many tokens the newest groups are kept whatever their size; none where the prompt has to fit."""
    if trigger in ("hard", "overflow", "requested", "agent"):
        return 0
    # Soon after another compaction that kept much, keeping as much again would be paid for with every few calls.
    is_soon = monitor.count > 0 and monitor.calls < WAIT_CALLS
    return int(config.auto_compaction_input_tokens_threshold * (SOON_SHARE if is_soon else 1))


def removed_tokens_min(prompt_tokens: int, trigger: CompactionTrigger) -> int:
    """The minimum number of tokens to remove that justifies a cache miss; less accumulates again within a few calls.

    A requested compaction, or one after an overflow, accepts a smaller gain than an automatic one.
    """
    # The limit of 8,000 tokens or a fifth keeps compactions rare: without it there would be three to five times as
    # many, for no gain as soon as anything is lost (111 recorded sessions, decision 0023).
    if trigger in ("requested", "overflow"):
        return REQUESTED_GAIN_TOKENS_MIN
    return max(GAIN_TOKENS_MIN, int(prompt_tokens * GAIN_SHARE_MIN))


def is_stable_prefix_too_large(outlook: CompactionOutlook, config: CompactionConfig) -> bool:
    """Whether the stable prefix alone exceeds the limit, so that no compaction can help."""
    limit = min(outlook.hard_tokens, soft_limit_tokens(outlook, config))
    return outlook.stable_prefix_tokens >= limit


def compute_compaction_numbers(
    outlook: CompactionOutlook, *, summary_tokens: int, kept_tokens: int, stable_prefix_tokens: int
) -> CompactionNumbers:
    """The one-time cost, the saving per call, and the break-even of a compaction to these sizes."""
    sizes = CompactionSizes(outlook.prompt_tokens, stable_prefix_tokens, summary_tokens + kept_tokens)
    # cost_usd is the extra cost of the one call that changes the prefix; saving_per_call_usd = r * removed tokens.
    unit = outlook.unit_usd
    return CompactionNumbers(
        prompt_tokens=outlook.prompt_tokens,
        stable_prefix_tokens=stable_prefix_tokens,
        summary_tokens=summary_tokens,
        kept_tokens=kept_tokens,
        removed_tokens=sizes.removed,
        expected_calls=outlook.expected_calls,
        cost_usd=one_time_cost(sizes, outlook.rates, cold=outlook.is_cache_cold) * unit,
        saving_per_call_usd=outlook.rates.read * sizes.removed * unit,
        break_even_calls=break_even_calls(sizes, outlook.rates, cold=outlook.is_cache_cold),
        is_cache_cold=outlook.is_cache_cold,
    )


def observe_compaction(monitor: CompactionMonitor, event: ContextCompacted, *, messages: int) -> CompactionMonitor:
    if event.strategy == "lossless":
        # Nothing was lost and nothing was paid: the next compaction is decided as if this had not happened.
        return monitor
    before, after = event.tokens_before, event.tokens_after
    covered = event.last if event.strategy != "clear" else monitor.covered_until
    return CompactionMonitor(
        monitor.count + 1,
        messages,
        0,
        before,
        monitor.strikes,
        base_tokens=after,
        covered_until=covered,
        # A later compaction covers more of the log: with a smaller budget its summary would forget.
        summary_tokens_max=max(monitor.summary_tokens_max, event.summary_tokens_max),
    )


def observe_call(monitor: CompactionMonitor, usage: Usage) -> CompactionMonitor:
    strikes = monitor.strikes
    # Measured by the provider's usage, because our own estimate could be wrong in the same way before and after.
    if monitor.from_tokens:
        has_helped = usage.tokens_sent < monitor.from_tokens * EFFECT_SHARE_MAX
        strikes = 0 if has_helped else strikes + 1
    return msgspec.structs.replace(
        monitor,
        calls=monitor.calls + 1,
        from_tokens=0,
        strikes=strikes,
        sent_tokens=monitor.sent_tokens + usage.tokens_sent,
        prompts=(*monitor.prompts, usage.tokens_sent)[-PROMPTS_REMEMBERED:],
        calls_to_wait=max(0, monitor.calls_to_wait - 1),
    )


def observe_refusal(monitor: CompactionMonitor, event: CompactionSkipped) -> CompactionMonitor:
    """Back off for some calls, or for good if the stable prefix itself is too long (`is_final`)."""
    if event.trigger == "agent":
        # The agent may ask at any size: that says nothing about the next automatic compaction.
        return msgspec.structs.replace(monitor, request=None)
    return msgspec.structs.replace(monitor, calls_to_wait=NEVER_AGAIN_CALLS if event.is_final else WAIT_CALLS)


def observe_undo(monitor: CompactionMonitor, event: CompactionUndone) -> CompactionMonitor:
    """The user wants this much in view: the next automatic compaction comes when as much again could be removed."""
    tokens_min = event.tokens_after + removed_tokens_min(event.tokens_after, "soft")
    return msgspec.structs.replace(monitor, from_tokens=0, tokens_min=tokens_min, request=None)


def observe_user_message(monitor: CompactionMonitor) -> CompactionMonitor:
    """A new user message resets the back-off, because a compaction may help now."""
    if not monitor.strikes and not monitor.calls_to_wait:
        return monitor
    return msgspec.structs.replace(monitor, strikes=0, calls_to_wait=0)
