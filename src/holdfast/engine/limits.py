"""What a provider was found not to take, and the plan that keeps to it."""

import msgspec

from holdfast.canonical.prompt import Plan, Ttl
from holdfast.catalog.rows import CacheRules
from holdfast.events.payloads_recovery import ProviderLimited


class Limits(msgspec.Struct, frozen=True):
    """None where nothing was found. `short_lifetimes`: marks live no longer than the shortest lifetime."""

    marks_max: int | None = None
    short_lifetimes: bool = False
    window_tokens_max: int | None = None


UNLIMITED = Limits()


def narrowed(limits: Limits, refusal: ProviderLimited) -> Limits:
    """Limits only ever become narrower, but for the window: the newest word on it holds."""
    breakpoints = [count for count in (limits.marks_max, refusal.marks_max) if count is not None]
    return Limits(
        marks_max=min(breakpoints, default=None),
        short_lifetimes=limits.short_lifetimes or refusal.short_lifetimes,
        window_tokens_max=refusal.window_tokens_max or limits.window_tokens_max,
    )


def limited(plan: Plan, limits: Limits, rules: CacheRules) -> Plan:
    """The plan without its deepest marks, where there are too many; what is then read is not foreseen."""
    breakpoints = plan.marks if limits.marks_max is None else plan.marks[: max(0, limits.marks_max)]
    if limits.short_lifetimes:
        short = shortest_lifetime(rules)
        breakpoints = tuple(
            breakpoint if breakpoint.ttl == short else msgspec.structs.replace(breakpoint, ttl=short)
            for breakpoint in breakpoints
        )
    if breakpoints == plan.marks:
        return plan
    note = f"the provider refused marks as they were planned: {len(breakpoints)} of {len(plan.marks)} are set"
    return msgspec.structs.replace(plan, marks=breakpoints, notes=(*plan.notes, note), expected_read_tokens=0)


def shortest_lifetime(rules: CacheRules) -> Ttl:
    ttls: tuple[Ttl, ...] = ("5m", "30m", "1h", "12h")
    return next((ttl for ttl in ttls if ttl in rules.ttls_seconds), "5m")
