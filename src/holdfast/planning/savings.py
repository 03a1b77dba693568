"""What each mark of a request is expected to save by the next call."""

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
    """Of a prompt of so many tokens, `hit_tokens` will be read by the call that is made now."""

    prompt_tokens: int
    hit_tokens: int


def with_savings(
    marks: Sequence[Mark], scroll: Scroll, warmth: Warmth, gaps: Gaps, *, rules: CacheRules, price: Price
) -> tuple[Mark, ...]:
    """The marks, each with what it saves beside those in front of it.

    The next call comes within the mark's lifetime with probability q, and reads the tokens up to the mark instead of
    paying for them: q (1 - r) a token. Those of them that are not in the cache yet cost (w - 1) more now.
    """
    told: list[Mark] = []
    before = 0
    for mark, upto in zip(marks, _tokens_upto(marks, scroll, warmth.prompt_tokens), strict=True):
        back = gaps.chance(0.0, float(rules.ttls_seconds.get(mark.ttl, 0)))
        written = max(0, upto - max(before, warmth.hit_tokens))
        gained = Decimal(back) * (price.input - price.cache_read) * (upto - before)
        paid = (write_rate(mark.ttl, price) - price.input) * written
        told.append(msgspec.structs.replace(mark, saving_usd=((gained - paid) / _MILLION).quantize(_STEP)))
        before = upto
    return tuple(told)


def write_rate(ttl: Ttl, price: Price) -> Decimal:
    match ttl:
        case "5m":
            return price.cache_write_5m
        case "1h":
            return price.cache_write_1h
        case "30m" | "12h":
            return price.cache_write_other


def _tokens_upto(marks: Sequence[Mark], scroll: Scroll, prompt_tokens: int) -> list[int]:
    """The tokens up to each mark: counted from the end that is nearer, in the size that the provider reports."""
    counted = scroll.tokens_total
    scale = prompt_tokens / counted if counted else 1.0
    found: list[int] = []
    last_piece, last = -1, 0
    for mark in marks:
        if mark.piece - last_piece <= len(scroll.tokens) - mark.piece:
            last += sum(scroll.tokens[last_piece + 1 : mark.piece + 1])
        else:
            last = counted - sum(scroll.tokens[mark.piece + 1 :])
        last_piece = mark.piece
        found.append(min(prompt_tokens, round(last * scale)))
    return found
