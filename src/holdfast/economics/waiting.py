"""When a waiting agent should resume: while its cache is still warm, or so late that the cache miss is worth it."""

from decimal import Decimal

import msgspec

from holdfast.economics.pinging import pings_max

WAKE_MARGIN_SECONDS = 15.0
"""How long before the cache expires the next request should start: requests take a while to arrive."""

LONG_WAIT_SECONDS = 1200.0
"""Minimum wait for an agent that cannot resume in time: a miss costs the same after 6 minutes as after 20."""


class NextWake(msgspec.Struct, frozen=True):
    """Resume within `within_seconds` for `warm_usd`, or not before `or_after_seconds` for `cold_usd`.

    Any time in between costs as much as the long wait and gains less from it. `within_seconds` is 0 where nothing is
    cached. Resuming in time up to `warm_wakes_max` times (None: unlimited) with nothing to do is still cheaper than one
    cold start. Amounts cover the prompt only.
    """

    prompt_tokens: int
    within_seconds: float
    or_after_seconds: float
    warm_usd: Decimal
    cold_usd: Decimal
    warm_wakes_max: int | None

    def __str__(self) -> str:
        cold = f"after {self.or_after_seconds / 60:.0f} min or more for ${self.cold_usd:.4f}"
        if not self.within_seconds:
            return f"nothing is warm: come back {cold}"
        return f"come back within {self.within_seconds:.0f} s for ${self.warm_usd:.4f}, or {cold}"


def plan_wake(
    *, prompt_tokens: int, cached_tokens: int, warm_seconds: float, read_usd: Decimal, write_usd: Decimal
) -> NextWake:
    """The two times to resume at; `warm_seconds` is how long the cached tokens stay cached, rates are per million."""
    # T = prompt_tokens, C = cached_tokens. In time: r C + w (T - C). Late: w T. Resuming n times with nothing to do
    # pays n r C to save (w - r) C, which bounds n exactly as for pings.
    cached = min(cached_tokens, prompt_tokens)
    within = max(warm_seconds - WAKE_MARGIN_SECONDS, 0.0) if cached else 0.0
    cold = prompt_tokens * write_usd / 1_000_000
    warm = (cached * read_usd + (prompt_tokens - cached) * write_usd) / 1_000_000
    return NextWake(
        prompt_tokens=prompt_tokens,
        within_seconds=within,
        or_after_seconds=max(LONG_WAIT_SECONDS, warm_seconds if cached else 0.0),
        warm_usd=warm if within else cold,
        cold_usd=cold,
        warm_wakes_max=pings_max(read=read_usd, write=write_usd) if within else 0,
    )
