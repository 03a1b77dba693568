"""What a plan would have cost, computed from prompt sizes and the times between calls alone.

The provider's own token counts are exact, so no text has to be encoded or counted. Uncertainty counts against every
plan: if a call read less than an expired TTL explains, the prompt is assumed to have changed, and a plan finds in the
cache only what the recorded client found.
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal

import msgspec

from holdfast.cachemodel.machine import run_call
from holdfast.cachemodel.values import CacheCall, CacheEntries, CacheEntry, CacheScope, PromptPrefix
from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.schema import CacheRules, Model, Price
from holdfast.economics.cost import cost_usd
from holdfast.planning.adaptive_policy import AdaptivePolicy
from holdfast.planning.learned import READ_SHARE_MIN
from holdfast.planning.optimum import SHORT_TTL_NAME, CallStep, optimal_cost, token_rates
from holdfast.planning.policy import CachePolicy, PlanningMoment, WaitedFor
from holdfast.replay.recording import RecordedCall
from holdfast.types.prompt import Stability, Ttl
from holdfast.types.request_buffer import EncodedBlock, PrefixDigest
from holdfast.types.usage import Usage

EXPIRED_ENTRIES_MAX = 32
"""Cache entries of a conversation from which expired ones are dropped: more calls than most make in five minutes."""


class SizedCall(msgspec.Struct, frozen=True):
    """`cached_tokens` were in the cache under any plan; None if the prompt extends the previous one.

    `ttl` is the TTL that the recorded client used, and therefore the assumed TTL of the tokens that were found.
    """

    at: float
    tokens: int
    price: Price
    waited_for: WaitedFor = "start"
    cached_tokens: int | None = None
    ttl: Ttl = SHORT_TTL_NAME


class PaidCall(msgspec.Struct, frozen=True):
    """A call with the price of its day and the TTL of its prefix."""

    call: RecordedCall
    price: Price
    ttl: Ttl


def reduce_to_sizes(calls: Iterable[PaidCall], rules: CacheRules) -> tuple[SizedCall, ...]:
    """Reduce calls to one model to their sizes."""
    sized_calls: list[SizedCall] = []
    previous: PaidCall | None = None
    for paid in calls:
        call, usage = paid.call, paid.call.usage or Usage()
        grew = previous is not None and _extends_previous(previous.call, call, rules.ttls_seconds[previous.ttl])
        found_tokens = None if grew else usage.cache_read
        sized_calls.append(SizedCall(call.at, usage.tokens_sent, paid.price, call.waited_for, found_tokens, paid.ttl))
        previous = paid
    return tuple(sized_calls)


def _extends_previous(before: RecordedCall, call: RecordedCall, ttl_seconds: float) -> bool:
    """Whether the prompt starts with the previous one, as far as usage can tell."""
    if call.kept_entries is not None or call.system_suffix != before.system_suffix:
        return False
    if call.usage is None or before.usage is None:
        return False
    sent = before.usage.tokens_sent
    was_read = call.usage.cache_read >= sent * READ_SHARE_MIN
    # If nothing was cached, or the entry had expired, a missing read says nothing about the prompt.
    unknown = not before.usage.cache_read + before.usage.cache_write or call.at - before.at >= ttl_seconds
    return call.usage.tokens_sent >= sent and (was_read or unknown)


_HEAD = EncodedBlock("role", "system", Stability.FROZEN, b"", accepts_breakpoint=True)
_PIECE = EncodedBlock("history", "messages", Stability.GROWING, b"", accepts_breakpoint=True, role="user")


class _SizedPrompt:
    """The prompt of the newest call: one block for the tokens that were found, one for what each call added.

    The blocks have no bytes, so a number that is never used twice stands for the digest of a prefix.
    """

    digests: Sequence[PrefixDigest] = ()
    first_ephemeral: int | None = None

    def __init__(self) -> None:
        self.blocks: list[EncodedBlock] = []
        self.tokens: list[int] = []
        self.tokens_total = 0
        self.stable_count = 0
        self.prefixes: list[PromptPrefix] = []
        self._block_count = 0

    def enter(self, call: SizedCall) -> None:
        if call.cached_tokens is None:
            self._add(call.tokens - self.tokens_total)
            return
        for items in (self.blocks, self.tokens, self.prefixes):
            items.clear()
        self.tokens_total = self.stable_count = 0
        if call.cached_tokens:
            self.stable_count = 1
            self._add(call.cached_tokens, _HEAD)
        self._add(call.tokens - call.cached_tokens)

    def _add(self, tokens: int, block: EncodedBlock = _PIECE) -> None:
        self._block_count += 1
        self.blocks.append(block)
        self.tokens.append(tokens)
        self.tokens_total += tokens
        self.prefixes.append(PromptPrefix(block.section, str(self._block_count), self.tokens_total))


class PolicyTrack:
    """The cache as one policy has shaped it so far, under one set of provider rules, and what that cost."""

    def __init__(self, rules: CacheRules, policy: CachePolicy, model: Model) -> None:
        self.policy = policy
        self.cost_usd = Decimal(0)
        self._rules = rules
        self._scope = CacheScope("", model.name)
        self._entries = CacheEntries()
        self._entries_max = EXPIRED_ENTRIES_MAX

    def start_prompt(self, head: PromptPrefix, call: SizedCall) -> None:
        """Start a changed prompt: our cache entries no longer match it, those that the recorded client found do."""
        entry = CacheEntry(self._scope, head.digest, head.tokens, call.ttl, expires_at=call.at + 1)
        self._entries = CacheEntries({(self._scope, head.digest): entry} if call.cached_tokens else {})

    def send(self, moment: PlanningMoment, prefixes: Sequence[PromptPrefix]) -> None:
        if len(self._entries.by_key) > self._entries_max:
            # Each call copies the entries, so those that can never be read again are dropped now and then.
            self._entries = self._entries.drop_expired(at=moment.at)
            self._entries_max = max(EXPIRED_ENTRIES_MAX, 2 * len(self._entries.by_key))
        call = CacheCall(self._scope, prefixes, self.policy.choose_breakpoints(moment), moment.at)
        outcome, self._entries = run_call(self._rules, self._entries, call)
        self.policy.record_usage(moment, outcome.usage)
        self.cost_usd += cost_usd(outcome.usage, moment.price)


def price_plans(
    calls: Sequence[SizedCall], model: Model, plans: Iterable[tuple[CacheRules, AdaptivePolicy]]
) -> tuple[Decimal, ...]:
    """What the prompts cost under our plan, for each set of rules; the policies learn from the replay."""
    prompt = _SizedPrompt()
    tracks = [(policy, PolicyTrack(rules, policy, model)) for rules, policy in plans]
    previous: SizedCall | None = None
    for call in calls:
        prompt.enter(call)
        idle = call.at - previous.at if previous else None
        moment = PlanningMoment(prompt, model.cache, call.price, call.at, idle, call.waited_for)
        for policy, track in tracks:
            if call.cached_tokens is not None:
                policy.forget_prefix()
                track.start_prompt(prompt.prefixes[0], call)
            track.send(moment, prompt.prefixes)
        previous = call
    return tuple(track.cost_usd for _, track in tracks)


def price_optimum(calls: Sequence[SizedCall], model: Model, rules: CacheRules) -> float:
    """The lowest possible cost of the prompts; each stretch at the price of its first day and its longest prompt."""
    total = 0.0
    for stretch in _stretches(calls):
        first = stretch[0]
        price = price_at(model, utc_date(first.at), max(call.tokens for call in stretch))
        rates = token_rates(price, rules)
        found_tokens = first.cached_tokens or 0
        # The found tokens are free: modelled as a write just before, whose cost (rates.short * found) is subtracted.
        steps = [CallStep(found_tokens, 0, None)] if found_tokens else []
        size, at = found_tokens, first.at
        for call in stretch:
            steps.append(CallStep(call.tokens, size, call.at - at if steps else None))
            size, at = call.tokens, call.at
        total += optimal_cost(steps, rates, upgrades=rules.ttl_upgrade) - rates.short * found_tokens
    return total


def _stretches(calls: Sequence[SizedCall]) -> list[list[SizedCall]]:
    stretches: list[list[SizedCall]] = []
    for call in calls:
        if call.cached_tokens is not None or not stretches:
            stretches.append([])
        stretches[-1].append(call)
    return stretches


def has_plannable_cache(row: Model) -> bool:
    """Whether there is something to plan: the model takes breakpoints and offers both TTLs."""
    return row.cache.kind == "explicit" and has_long_ttl(row)


def has_long_ttl(row: Model | None) -> bool:
    return row is not None and {"5m", "1h"} <= row.cache.ttls_seconds.keys()
