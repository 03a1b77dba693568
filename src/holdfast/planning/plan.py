"""The cache plan of a call, for every kind of provider cache, with what each breakpoint is expected to save."""

from collections.abc import Sequence
from decimal import Decimal

import msgspec

from holdfast.catalog.schema import CacheRules, Price
from holdfast.planning.adaptive_policy import plan_adaptive_call
from holdfast.planning.breakpoints import CacheProfile, place_breakpoints
from holdfast.planning.idle_times import IdleTimes, expected_idle_times
from holdfast.planning.learned import NOTHING_LEARNED, CacheMemory, LearnedParameters, guaranteed_read_tokens
from holdfast.planning.policy import PlanningMoment, PromptShape
from holdfast.types.prompt import Breakpoint, Plan, Ttl

_MILLION = Decimal(1_000_000)  # Prices are US dollars per million tokens.
_SAVING_STEP = Decimal("0.00000001")  # Recorded savings: a hundredth of a micro-dollar, below any token price.


def plan_cache(
    moment: PlanningMoment,
    memory: CacheMemory,
    learned: LearnedParameters = NOTHING_LEARNED,
    *,
    profile: CacheProfile = "default",
    keep_small: bool = False,
    ttl: Ttl | None = None,
) -> Plan:
    """The breakpoints of a call, with TTL, reason and expected saving.

    A provider with an implicit cache gets none: there the session's cache key and an unchanged prefix are the plan.
    `keep_small` is explained in `plan_adaptive_call`. A `ttl` that the provider supports overrides that of every
    breakpoint.
    """
    rules, buffer = moment.rules, moment.buffer
    if rules.kind == "explicit" and profile == "default" and {"5m", "1h"} <= rules.ttls_seconds.keys():
        planned = plan_adaptive_call(moment, memory, learned, keep_small=keep_small)
        base_plan, stakes = planned.plan, planned.stakes
        warmth = PromptWarmth(stakes.prompt, stakes.prompt - stakes.written)
    else:
        base_plan = place_breakpoints(buffer, rules, profile=profile)
        # The size of the last prompt as reported, plus our estimate for the blocks added since.
        continues = bool(memory.blocks) and memory.blocks <= len(buffer.tokens)
        prompt = memory.tail_tokens + sum(buffer.tokens[memory.blocks :]) if continues else buffer.tokens_total
        warmth = PromptWarmth(prompt, min(memory.tail_tokens, prompt) if continues else 0)
    if ttl is not None and ttl in rules.ttls_seconds:
        forced = tuple(
            msgspec.structs.replace(breakpoint, ttl=ttl, reason=f"{breakpoint.reason}; the TTL is set to {ttl}")
            for breakpoint in base_plan.breakpoints
        )
        base_plan = msgspec.structs.replace(base_plan, breakpoints=forced)
    idle_times = expected_idle_times(memory.idle_times.all, learned.idle_times.all)
    priced = add_savings(base_plan.breakpoints, buffer, warmth, idle_times, rules=rules, price=moment.price)
    read_tokens = guaranteed_read_tokens(memory, moment.at)
    return msgspec.structs.replace(base_plan, breakpoints=priced, expected_read_tokens=read_tokens)


class PromptWarmth(msgspec.Struct, frozen=True):
    """The size of a prompt, and how much of it this call will read from cache."""

    prompt_tokens: int
    hit_tokens: int


def add_savings(
    breakpoints: Sequence[Breakpoint],
    buffer: PromptShape,
    warmth: PromptWarmth,
    idle_times: IdleTimes,
    *,
    rules: CacheRules,
    price: Price,
) -> tuple[Breakpoint, ...]:
    """The breakpoints, each with what it saves in addition to those before it."""
    priced: list[Breakpoint] = []
    tokens_before = 0
    all_tokens = _tokens_upto(breakpoints, buffer, warmth.prompt_tokens)
    for breakpoint, tokens_upto in zip(breakpoints, all_tokens, strict=True):
        # q = probability that the next call comes within the TTL, i/r/w = input, read and write price. The next call
        # then reads the tokens between the previous breakpoint and this one instead of paying the input price:
        #   q (i - r) (tokens_upto - tokens_before).
        # Those not cached yet cost w - i more now. The sum over all breakpoints is the saving of the plan.
        return_probability = idle_times.probability(0.0, float(rules.ttls_seconds.get(breakpoint.ttl, 0)))
        written_tokens = max(0, tokens_upto - max(tokens_before, warmth.hit_tokens))
        gain = Decimal(return_probability) * (price.input - price.cache_read) * (tokens_upto - tokens_before)
        write_premium = (cache_write_rate(breakpoint.ttl, price) - price.input) * written_tokens
        saving = ((gain - write_premium) / _MILLION).quantize(_SAVING_STEP)
        priced.append(msgspec.structs.replace(breakpoint, saving_usd=saving))
        tokens_before = tokens_upto
    return tuple(priced)


def cache_write_rate(ttl: Ttl, price: Price) -> Decimal:
    match ttl:
        case "5m":
            return price.cache_write_5m
        case "1h":
            return price.cache_write_1h
        case "30m":
            return price.cache_write_other
        case "12h":
            return price.cache_write_12h or price.cache_write_other


def _tokens_upto(breakpoints: Sequence[Breakpoint], buffer: PromptShape, prompt_tokens: int) -> list[int]:
    """The tokens up to each breakpoint, scaled from our estimates to the size that the provider reports.

    Counts from the nearer end of the prompt, so that a breakpoint at the end of a long history is cheap.
    """
    estimated_total = buffer.tokens_total
    scale = prompt_tokens / estimated_total if estimated_total else 1.0
    all_tokens: list[int] = []
    last_block, last_tokens = -1, 0
    for breakpoint in breakpoints:
        if breakpoint.block_index - last_block <= len(buffer.tokens) - breakpoint.block_index:
            last_tokens += sum(buffer.tokens[last_block + 1 : breakpoint.block_index + 1])
        else:
            last_tokens = estimated_total - sum(buffer.tokens[breakpoint.block_index + 1 :])
        last_block = breakpoint.block_index
        all_tokens.append(min(prompt_tokens, round(last_tokens * scale)))
    return all_tokens
