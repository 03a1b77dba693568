"""The expected saving of each breakpoint by the next call."""

from collections.abc import Sequence
from decimal import Decimal

import msgspec

from holdfast.canonical.prompt import Mark, Ttl
from holdfast.canonical.scroll import Scroll
from holdfast.catalog.rows import CacheRules, Price
from holdfast.planning.gaps import Gaps

_MILLION = Decimal(1_000_000)
_STEP = Decimal("0.00000001")


class Warmth(msgspec.Struct, frozen=True):
    """The size of a prompt, and how much of it this call will read from cache."""

    prompt_tokens: int
    hit_tokens: int


def with_savings(
    breakpoints: Sequence[Mark], buffer: Scroll, warmth: Warmth, idle_times: Gaps, *, rules: CacheRules, price: Price
) -> tuple[Mark, ...]:
    """The breakpoints, each with what it saves in addition to those before it."""
    priced: list[Mark] = []
    tokens_before = 0
    all_tokens = _tokens_upto(breakpoints, buffer, warmth.prompt_tokens)
    for breakpoint, tokens_upto in zip(breakpoints, all_tokens, strict=True):
        # q = probability that the next call comes within the TTL, i/r/w = input, read and write price. The next call
        # then reads the tokens between the previous breakpoint and this one instead of paying the input price:
        #   q (i - r) (tokens_upto - tokens_before).
        # Those not cached yet cost w - i more now. The sum over all breakpoints is the saving of the plan.
        return_probability = idle_times.chance(0.0, float(rules.ttls_seconds.get(breakpoint.ttl, 0)))
        written_tokens = max(0, tokens_upto - max(tokens_before, warmth.hit_tokens))
        gain = Decimal(return_probability) * (price.input - price.cache_read) * (tokens_upto - tokens_before)
        write_premium = (write_rate(breakpoint.ttl, price) - price.input) * written_tokens
        saving = ((gain - write_premium) / _MILLION).quantize(_STEP)
        priced.append(msgspec.structs.replace(breakpoint, saving_usd=saving))
        tokens_before = tokens_upto
    return tuple(priced)


def write_rate(ttl: Ttl, price: Price) -> Decimal:
    match ttl:
        case "5m":
            return price.cache_write_5m
        case "1h":
            return price.cache_write_1h
        case "30m" | "12h":
            return price.cache_write_other


def _tokens_upto(breakpoints: Sequence[Mark], buffer: Scroll, prompt_tokens: int) -> list[int]:
    """The tokens up to each breakpoint, scaled from our estimates to the size that the provider reports.

    Counts from the nearer end of the prompt, so that a breakpoint at the end of a long history is cheap.
    """
    estimated_total = buffer.tokens_total
    scale = prompt_tokens / estimated_total if estimated_total else 1.0
    all_tokens: list[int] = []
    last_block, last_tokens = -1, 0
    for breakpoint in breakpoints:
        if breakpoint.piece - last_block <= len(buffer.tokens) - breakpoint.piece:
            last_tokens += sum(buffer.tokens[last_block + 1 : breakpoint.piece + 1])
        else:
            last_tokens = estimated_total - sum(buffer.tokens[breakpoint.piece + 1 :])
        last_block = breakpoint.piece
        all_tokens.append(min(prompt_tokens, round(last_tokens * scale)))
    return all_tokens
