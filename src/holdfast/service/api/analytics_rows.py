"""Response rows of the analytics routes and their arithmetic: sums in Decimal, reported to six decimal places."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.catalog.lookup import Models, find_model_or_none, price_at, utc_date
from holdfast.catalog.schema import Model
from holdfast.economics.cost import cost_usd
from holdfast.events.records import KeyRow
from holdfast.ledger.analytics.queries import (
    Amounts,
    Group,
    GroupBy,
    GroupName,
    MissCause,
    SizedUsage,
    SkillLoad,
    UnpricedSums,
    list_size_limits,
)
from holdfast.ledger.cache.verdicts import NO_BREAKS, UNEXPECTED_KINDS, VerdictKind

# A micro-dollar; fine enough for a single cached token.
_PLACES = 6


def to_json_usd(amount: Decimal | float) -> float:
    return round(float(amount), _PLACES)


def make_json_cost(spent_usd: Decimal, *, is_unpriced: bool) -> float | None:
    """Null where no price is known for any of the calls: 0 would say that they were free."""
    return None if is_unpriced and not spent_usd else to_json_usd(spent_usd)


class CostRow(msgspec.Struct, frozen=True):
    """One group. Only the field it was grouped by is present; it is null for calls that have no such value.

    The kinds of input tokens do not overlap. `gateway_key_name` is the label of the gateway key. `cost_usd`
    does not contain the `unpriced_calls`, for whose model no price is known, with `unpriced_tokens`; it is null if no
    call has a price.
    """

    cost_usd: float | None
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int
    cache_creation_input_tokens: int
    avg_latency_ms: float | None
    call_count: int
    unpriced_calls: int
    unpriced_tokens: int
    model: str | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    session: str | UnsetType = UNSET
    day: str | UnsetType = UNSET
    hour: str | UnsetType = UNSET
    gateway_key: str | UnsetType | None = UNSET
    gateway_key_name: str | UnsetType | None = UNSET
    user: str | UnsetType | None = UNSET
    team: str | UnsetType | None = UNSET
    parent_session: str | UnsetType = UNSET
    is_worker: bool | UnsetType = UNSET


class CacheEffectRow(msgspec.Struct, frozen=True):
    """Shares are of all tokens sent; null if none were sent.

    `hit_coverage` is the share of calls with any cache read. `stable_write_share` counts only the written tokens of
    tools and stable system prompt.
    """

    model: str
    uncached_input_tokens: int
    cached_input_tokens: int
    cache_creation_tokens: int
    hit_rate: float | None
    hit_coverage: float | None
    cache_write_share: float | None
    stable_write_share: float | None
    call_count: int


class BreakRow(msgspec.Struct, frozen=True):
    """`call_count` calls got this verdict; `losing_calls` of them lost tokens."""

    cause: VerdictKind
    component: str | None
    is_break: bool
    call_count: int
    losing_calls: int
    lost_tokens: int
    lost_usd: float


class SkillLoadRow(msgspec.Struct, frozen=True):
    """`wasted_preload_tokens` were preloaded in sessions whose model did not ask for the skill or follow it."""

    skill: str
    loads_always: int
    loads_on_demand: int
    loads_auto_suggested: int
    tokens: int
    wasted_preload_tokens: int


class RepricedCost(msgspec.Struct, frozen=True):
    """The same tokens at today's prices, of their own models and of a baseline; `missing` calls have no price."""

    actual_usd: Decimal
    baseline_usd: Decimal
    missing: int


def make_cost_rows(
    group_by: GroupBy, groups: Iterable[Group], unpriced: Mapping[GroupName, UnpricedSums]
) -> tuple[CostRow, ...]:
    """Most expensive first, then by name; days and hours in chronological order."""
    ordered = sorted(groups, key=lambda group: str(group.name or ""))
    if group_by not in ("day", "hour"):
        ordered.sort(key=lambda group: -group.amounts.spent_usd)
    return tuple(_cost_row(group_by, group, unpriced.get(group.name, UnpricedSums())) for group in ordered)


def _cost_row(group_by: GroupBy, group: Group, unpriced: UnpricedSums) -> CostRow:
    group_field: dict[str, object] = {} if group_by == "none" else {group_by: group.name}
    amounts = group.amounts
    row = CostRow(
        cost_usd=make_json_cost(amounts.spent_usd, is_unpriced=0 < amounts.calls <= unpriced.calls),
        input_tokens=amounts.usage.input,
        output_tokens=amounts.usage.output,
        cached_input_tokens=amounts.usage.cache_read,
        cache_creation_input_tokens=amounts.usage.cache_write,
        avg_latency_ms=round(amounts.latency_ms / amounts.calls, 1) if amounts.calls else None,
        call_count=amounts.calls,
        unpriced_calls=unpriced.calls,
        unpriced_tokens=unpriced.tokens,
    )
    return msgspec.structs.replace(row, **group_field)


def add_key_names(rows: Iterable[CostRow], find: Callable[[str], KeyRow | None]) -> tuple[CostRow, ...]:
    """Adds the label of each gateway key."""

    def name_of(key_id: str | UnsetType | None) -> str | None:
        row = find(key_id) if isinstance(key_id, str) else None
        return row.name if row else None

    return tuple(msgspec.structs.replace(row, gateway_key_name=name_of(row.gateway_key)) for row in rows)


def make_effect_rows(groups: Iterable[Group]) -> tuple[CacheEffectRow, ...]:
    """Sorted by model; models without calls (only charged, such as cache storage) are left out."""
    called = [(str(group.name), group.amounts) for group in groups if group.amounts.calls]
    return tuple(_effect_row(model, amounts) for model, amounts in sorted(called, key=lambda pair: pair[0]))


def _effect_row(model: str, amounts: Amounts) -> CacheEffectRow:
    tokens_sent = amounts.usage.tokens_sent
    return CacheEffectRow(
        model=model,
        uncached_input_tokens=amounts.usage.input,
        cached_input_tokens=amounts.usage.cache_read,
        cache_creation_tokens=amounts.usage.cache_write,
        hit_rate=_share(amounts.usage.cache_read, tokens_sent),
        hit_coverage=_share(amounts.hits, amounts.calls),
        cache_write_share=_share(amounts.usage.cache_write, tokens_sent),
        stable_write_share=_share(amounts.stable_write_tokens, tokens_sent),
        call_count=amounts.calls,
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def make_break_rows(verdicts: Iterable[MissCause]) -> tuple[BreakRow, ...]:
    """Every break, in the order of the input."""
    return tuple(
        BreakRow(
            cause.kind,
            cause.component,
            cause.kind in UNEXPECTED_KINDS,
            cause.verdict_count,
            cause.calls,
            cause.tokens,
            to_json_usd(cause.lost_usd),
        )
        for cause in verdicts
        if cause.kind not in NO_BREAKS
    )


def make_skill_rows(loads: Sequence[SkillLoad]) -> tuple[SkillLoadRow, ...]:
    by_name: dict[str, list[SkillLoad]] = {}
    for load in loads:
        by_name.setdefault(load.skill, []).append(load)

    def count(skill_loads: Sequence[SkillLoad], reason: str) -> int:
        return sum(load.reason == reason for load in skill_loads)

    return tuple(
        SkillLoadRow(
            skill=name,
            loads_always=count(skill_loads, "always"),
            loads_on_demand=count(skill_loads, "on_demand"),
            loads_auto_suggested=count(skill_loads, "auto_suggested"),
            tokens=sum(load.tokens for load in skill_loads),
            wasted_preload_tokens=sum(load.tokens for load in skill_loads if load.reason == "always" and not load.used),
        )
        for name, skill_loads in sorted(by_name.items())
    )


def reprice_usage(sized: Iterable[SizedUsage], baseline: Model, models: Models, *, at: float) -> RepricedCost:
    """Each call at today's price for its size; calls whose model has no price are in neither sum."""
    actual = baseline_total = Decimal(0)
    missing = 0
    limits, today = list_size_limits(models), utc_date(at)
    for group in sized:
        row = find_model_or_none(group.model, models)
        if row is None or not row.prices:
            missing += group.calls
            continue
        # Calls are grouped by price tier, so any size within the tier gives the same price.
        tokens_sent = limits[group.limits_exceeded - 1] + 1 if group.limits_exceeded else 0
        actual += cost_usd(group.usage, price_at(row, today, tokens_sent))
        baseline_total += cost_usd(group.usage, price_at(baseline, today, tokens_sent))
    return RepricedCost(actual, baseline_total, missing)


def compute_percentile(counts: Mapping[int, int], percent: int) -> int:
    """Nearest-rank percentile: the smallest value with at least `percent` of all values at or below it.

    `counts` maps a value to how often it occurs.
    """
    # rank = ceil(total * percent / 100), at least 1
    rank = max(1, -(-sum(counts.values()) * percent // 100))
    for value in sorted(counts):
        rank -= counts[value]
        if rank <= 0:
            return value
    return max(counts)
