"""When an agent that has to wait should come back: while its cache is warm, or so late that the miss is worth it."""

from decimal import Decimal

import msgspec

from holdfast.economics.pinging import pings_max

WAKE_MARGIN_SECONDS = 15.0
"""How long before the cache lapses the next request should begin: requests take a while to arrive."""

LONG_WAIT_SECONDS = 1200.0
"""Who cannot come back in time should wait at least so long: a miss costs the same after 6 minutes as after 20."""


class NextWake(msgspec.Struct, frozen=True):
    """Come back within `within_seconds` for `warm_usd`, or not before `or_after_seconds` for `cold_usd`.

    Anything between costs as much as the long wait and gains less by it. `within_seconds` is 0 where nothing is warm.
    Up to `warm_wakes_max` times it is cheaper to come back in time for nothing, and stay warm, than to start cold once;
    None is without limit. The amounts are those of the prompt alone.
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
    """The two times to come back at, for a prompt of which so much is warm for so long; rates are per million tokens.

    In time, what is cached is read and the rest written: r C + w (T - C). Late, all of it is written: w T. Who
    comes back n times for nothing pays n r C to save (w - r) C, which bounds n as it does for pings.
    """
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
