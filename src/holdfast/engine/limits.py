"""Limits that a provider's refusals revealed, and plans that respect them."""

import msgspec

from holdfast.canonical.prompt import Plan, Ttl
from holdfast.catalog.rows import CacheRules
from holdfast.events.payloads_recovery import ProviderLimited


class Limits(msgspec.Struct, frozen=True):
    """None where no limit is known. `short_lifetimes`: breakpoints use the shortest TTL only."""

    marks_max: int | None = None
    short_lifetimes: bool = False
    window_tokens_max: int | None = None


UNLIMITED = Limits()


def narrowed(limits: Limits, refusal: ProviderLimited) -> Limits:
    """Add a refusal. Limits only become narrower, except the window: there the newest value applies."""
    breakpoints = [count for count in (limits.marks_max, refusal.marks_max) if count is not None]
    return Limits(
        marks_max=min(breakpoints, default=None),
        short_lifetimes=limits.short_lifetimes or refusal.short_lifetimes,
        window_tokens_max=refusal.window_tokens_max or limits.window_tokens_max,
    )


def limited(plan: Plan, limits: Limits, rules: CacheRules) -> Plan:
    """The plan without its deepest breakpoints, if there are too many; cache reads are then no longer predicted."""
    breakpoints = plan.marks if limits.marks_max is None else plan.marks[: max(0, limits.marks_max)]
    if limits.short_lifetimes:
        short = shortest_lifetime(rules)
        breakpoints = tuple(
            breakpoint if breakpoint.ttl == short else msgspec.structs.replace(breakpoint, ttl=short)
            for breakpoint in breakpoints
        )
    if breakpoints == plan.marks:
        return plan
    note = f"the provider refused the planned breakpoints: {len(breakpoints)} of {len(plan.marks)} are set"
    return msgspec.structs.replace(plan, marks=breakpoints, notes=(*plan.notes, note), expected_read_tokens=0)


def shortest_lifetime(rules: CacheRules) -> Ttl:
    ttls: tuple[Ttl, ...] = ("5m", "30m", "1h", "12h")
    return next((ttl for ttl in ttls if ttl in rules.ttls_seconds), "5m")
