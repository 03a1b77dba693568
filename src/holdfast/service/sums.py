"""What calls add up to, by group: the arithmetic behind the figures, in Decimal, told rounded to six places."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.catalog.lookup import Models, known_model, price_at, utc_date
from holdfast.catalog.rows import Model
from holdfast.economics.cost import cost_usd
from holdfast.events.access import KeyRow
from holdfast.ledger.figures import Sized, SkillLoad, size_limits
from holdfast.ledger.groups import Group, GroupBy
from holdfast.ledger.tables import Amounts, Cause
from holdfast.ledger.verdicts import UNEXPECTED, VerdictKind

_PLACES = 6


def usd(amount: Decimal | float) -> float:
    return round(float(amount), _PLACES)


class CostRow(msgspec.Struct, frozen=True):
    """One group; it is named by the one key that it was grouped by, which is null for what belongs to none.

    The kinds of input tokens do not overlap. `gateway_key_name` is what a key is called in lists.
    """

    cost_usd: float
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int
    cache_creation_input_tokens: int
    avg_latency_ms: float | None
    call_count: int
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


class EffectRow(msgspec.Struct, frozen=True):
    """Shares are of all tokens that were sent, and null where none were.

    `hit_coverage` is the share of calls that read anything at all. Of `cache_creation_tokens`, `stable_write_share`
    counts only those for tools and stable system prompt.
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
    """`call_count` calls were judged so, of which `losing_calls` have lost something."""

    cause: VerdictKind
    component: str | None
    is_break: bool
    call_count: int
    losing_calls: int
    lost_tokens: int
    lost_usd: float


class SkillRow(msgspec.Struct, frozen=True):
    """`wasted_preload_tokens` stand in the prompts of sessions that never asked for the skill."""

    skill: str
    loads_always: int
    loads_on_demand: int
    loads_auto_suggested: int
    tokens: int
    wasted_preload_tokens: int


class Repriced(msgspec.Struct, frozen=True):
    """The same tokens at the prices of today: of their own models, and of another; `missing` calls have no price."""

    actual_usd: Decimal
    baseline_usd: Decimal
    missing: int


def cost_rows(group_by: GroupBy, groups: Iterable[Group]) -> tuple[CostRow, ...]:
    """Dearest first; days and hours in their order. Of two that cost the same their names decide."""
    by_name = sorted(groups, key=lambda one: str(one.name or ""))
    if group_by not in ("day", "hour"):
        by_name.sort(key=lambda one: -one.amounts.spent_usd)
    return tuple(_cost_row(group_by, one) for one in by_name)


def _cost_row(group_by: GroupBy, group: Group) -> CostRow:
    named: dict[str, object] = {} if group_by == "none" else {group_by: group.name}
    amounts = group.amounts
    row = CostRow(
        cost_usd=usd(amounts.spent_usd),
        input_tokens=amounts.usage.input,
        output_tokens=amounts.usage.output,
        cached_input_tokens=amounts.usage.cache_read,
        cache_creation_input_tokens=amounts.usage.cache_write,
        avg_latency_ms=round(amounts.latency_ms / amounts.calls, 1) if amounts.calls else None,
        call_count=amounts.calls,
    )
    return msgspec.structs.replace(row, **named)


def named_keys(rows: Iterable[CostRow], find: Callable[[str], KeyRow | None]) -> tuple[CostRow, ...]:
    """Rows by key, with what each key is called."""

    def name_of(key_id: str | UnsetType | None) -> str | None:
        row = find(key_id) if isinstance(key_id, str) else None
        return row.name if row else None

    return tuple(msgspec.structs.replace(row, gateway_key_name=name_of(row.gateway_key)) for row in rows)


def effect_rows(groups: Iterable[Group]) -> tuple[EffectRow, ...]:
    """By name of the model; one that was charged for, and never called, has no effect to tell."""
    called = [(str(one.name), one.amounts) for one in groups if one.amounts.calls]
    return tuple(_effect_row(model, amounts) for model, amounts in sorted(called, key=lambda one: one[0]))


def _effect_row(model: str, amounts: Amounts) -> EffectRow:
    sent = amounts.usage.tokens_sent
    return EffectRow(
        model=model,
        uncached_input_tokens=amounts.usage.input,
        cached_input_tokens=amounts.usage.cache_read,
        cache_creation_tokens=amounts.usage.cache_write,
        hit_rate=_share(amounts.usage.cache_read, sent),
        hit_coverage=_share(amounts.hits, amounts.calls),
        cache_write_share=_share(amounts.usage.cache_write, sent),
        stable_write_share=_share(amounts.stable_written, sent),
        call_count=amounts.calls,
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def break_rows(verdicts: Iterable[Cause]) -> tuple[BreakRow, ...]:
    """Every verdict but `held`, in the order given."""
    return tuple(
        BreakRow(one.kind, one.component, one.kind in UNEXPECTED, one.given, one.calls, one.tokens, usd(one.lost_usd))
        for one in verdicts
        if one.kind != "held"
    )


def skills_by_name(loads: Sequence[SkillLoad]) -> tuple[SkillRow, ...]:
    asked = {(load.session_id, load.skill) for load in loads if load.reason == "on_demand"}
    by_name: dict[str, list[SkillLoad]] = {}
    for load in loads:
        by_name.setdefault(load.skill, []).append(load)

    def count(some: Sequence[SkillLoad], reason: str) -> int:
        return sum(load.reason == reason for load in some)

    return tuple(
        SkillRow(
            skill=name,
            loads_always=count(some, "always"),
            loads_on_demand=count(some, "on_demand"),
            loads_auto_suggested=count(some, "auto_suggested"),
            tokens=sum(load.tokens for load in some),
            wasted_preload_tokens=sum(
                load.tokens for load in some if load.reason == "always" and (load.session_id, name) not in asked
            ),
        )
        for name, some in sorted(by_name.items())
    )


def repriced(sized: Iterable[Sized], baseline: Model, models: Models, *, at: float) -> Repriced:
    """Each call at the price of today for its size; a call whose model has no price counts in neither sum."""
    actual = other = Decimal(0)
    missing = 0
    limits, today = size_limits(models), utc_date(at)
    for some in sized:
        row = known_model(some.model, models)
        if row is None or not row.prices:
            missing += some.calls
            continue
        # Any size between the two limits has the same price.
        sent = limits[some.sizes - 1] + 1 if some.sizes else 0
        actual += cost_usd(some.usage, price_at(row, today, sent))
        other += cost_usd(some.usage, price_at(baseline, today, sent))
    return Repriced(actual, other, missing)


def percentile(counts: Mapping[int, int], percent: int) -> int:
    """The smallest value that no less than this share of all lie at or below; `counts` says how often each is there."""
    rank = max(1, -(-sum(counts.values()) * percent // 100))
    for value in sorted(counts):
        rank -= counts[value]
        if rank <= 0:
            return value
    return max(counts)
