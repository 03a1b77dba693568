"""What calls add up to, by group: the arithmetic behind the figures, in Decimal, told rounded to six places."""

import datetime
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import Models, price_at, utc_date
from holdfast.catalog.rows import Model
from holdfast.economics.cost import cost_usd
from holdfast.ledger.figures import CallFigure, ExtraFigure, SkillFigure
from holdfast.ledger.verdicts import VerdictKind

GroupBy = Literal["model", "provider", "session", "day", "hour", "parent_session", "is_worker", "none"]

_PLACES = 6


def usd(amount: Decimal | float) -> float:
    return round(float(amount), _PLACES)


class CostRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One group; it is named by the one key that it was grouped by. The kinds of input tokens do not overlap."""

    cost_usd: float
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int
    cache_creation_input_tokens: int
    avg_latency_ms: float | None
    call_count: int
    model: str | None = None
    provider: str | None = None
    session: str | None = None
    day: str | None = None
    hour: str | None = None
    parent_session: str | None = None
    is_worker: bool | None = None


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
    cause: VerdictKind
    component: str | None
    is_break: bool
    call_count: int
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


class _Sum:
    def __init__(self) -> None:
        self.usage = Usage()
        self.cost_usd = Decimal(0)
        self.latency_ms = 0
        self.calls = self.hits = self.stable_written = 0

    def add(self, call: CallFigure) -> None:
        self.usage += call.usage
        self.cost_usd += call.cost_usd
        self.latency_ms += call.latency_ms
        self.calls += 1
        self.hits += call.usage.cache_read > 0
        self.stable_written += call.stable_written


def costs_by(group_by: GroupBy, calls: Iterable[CallFigure], extras: Iterable[ExtraFigure]) -> tuple[CostRow, ...]:
    """Dearest first; days and hours in their order. Without calls there is one row for `none`, and no other."""
    key = _KEYS[group_by]
    sums: dict[str | bool | None, _Sum] = {None: _Sum()} if group_by == "none" else {}
    for call in calls:
        sums.setdefault(key(call), _Sum()).add(call)
    for extra in extras:
        # What a cache cost beside the calls is paid by the same group; it is no call.
        sums.setdefault(key(extra), _Sum()).cost_usd += extra.cost_usd
    rows = [_cost_row(group_by, name, one) for name, one in sums.items()]
    if group_by in ("day", "hour"):
        return tuple(sorted(rows, key=lambda row: row.day or row.hour or ""))
    return tuple(sorted(rows, key=lambda row: (-row.cost_usd, str(msgspec.structs.astuple(row)))))


def _day(one: CallFigure | ExtraFigure) -> str:
    return datetime.datetime.fromtimestamp(one.at, datetime.UTC).strftime("%Y-%m-%d")


def _hour(one: CallFigure | ExtraFigure) -> str:
    return datetime.datetime.fromtimestamp(one.at, datetime.UTC).strftime("%Y-%m-%dT%H")


_KEYS: dict[GroupBy, Callable[[CallFigure | ExtraFigure], str | bool | None]] = {
    "model": lambda one: one.model,
    "provider": lambda one: one.model.partition(":")[0],
    "session": lambda one: one.session_id,
    "day": _day,
    "hour": _hour,
    "parent_session": lambda one: one.parent_session_id or one.session_id,
    "is_worker": lambda one: one.parent_session_id is not None,
    "none": lambda one: None,
}


def _cost_row(group_by: GroupBy, name: str | bool | None, one: _Sum) -> CostRow:
    named: dict[str, object] = {} if group_by == "none" else {group_by: name}
    row = CostRow(
        cost_usd=usd(one.cost_usd),
        input_tokens=one.usage.input,
        output_tokens=one.usage.output,
        cached_input_tokens=one.usage.cache_read,
        cache_creation_input_tokens=one.usage.cache_write,
        avg_latency_ms=round(one.latency_ms / one.calls, 1) if one.calls else None,
        call_count=one.calls,
    )
    return msgspec.structs.replace(row, **named)


def effects_by_model(calls: Iterable[CallFigure]) -> tuple[EffectRow, ...]:
    """By name of the model."""
    sums: dict[str, _Sum] = {}
    for call in calls:
        sums.setdefault(call.model, _Sum()).add(call)
    return tuple(_effect_row(model, one) for model, one in sorted(sums.items()))


def _effect_row(model: str, one: _Sum) -> EffectRow:
    sent = one.usage.tokens_sent
    return EffectRow(
        model=model,
        uncached_input_tokens=one.usage.input,
        cached_input_tokens=one.usage.cache_read,
        cache_creation_tokens=one.usage.cache_write,
        hit_rate=_share(one.usage.cache_read, sent),
        hit_coverage=_share(one.hits, one.calls),
        cache_write_share=_share(one.usage.cache_write, sent),
        stable_write_share=_share(one.stable_written, sent),
        call_count=one.calls,
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def breaks_by_cause(calls: Iterable[CallFigure]) -> tuple[BreakRow, ...]:
    """Every verdict but `held`, those that cost most first."""
    rows: dict[tuple[VerdictKind, str | None], BreakRow] = {}
    lost: dict[tuple[VerdictKind, str | None], Decimal] = {}
    for call in calls:
        verdict = call.verdict
        if verdict is None or verdict.kind == "held":
            continue
        key = verdict.kind, verdict.component
        before = rows.get(key, BreakRow(*key, verdict.is_break, 0, 0, 0.0))
        lost[key] = lost.get(key, Decimal(0)) + verdict.lost_usd
        rows[key] = BreakRow(
            *key,
            verdict.is_break,
            before.call_count + 1,
            before.lost_tokens + verdict.lost_tokens,
            usd(lost[key]),
        )
    return tuple(sorted(rows.values(), key=lambda row: (-row.lost_usd, row.cause, row.component or "")))


def skills_by_name(loads: Sequence[SkillFigure]) -> tuple[SkillRow, ...]:
    asked = {(load.session_id, load.skill) for load in loads if load.reason == "on_demand"}
    by_name: dict[str, list[SkillFigure]] = {}
    for load in loads:
        by_name.setdefault(load.skill, []).append(load)

    def count(some: Sequence[SkillFigure], reason: str) -> int:
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


def repriced(calls: Iterable[CallFigure], baseline: Model, models: Models, *, at: float) -> Repriced:
    """Each call at the price of today for its size; a call whose model has no price counts in neither sum."""
    actual = other = Decimal(0)
    missing = 0
    for call in calls:
        row = models.get(call.model)
        if row is None or not row.prices:
            missing += 1
            continue
        sent = call.usage.tokens_sent
        actual += cost_usd(call.usage, price_at(row, utc_date(at), sent))
        other += cost_usd(call.usage, price_at(baseline, utc_date(at), sent))
    return Repriced(actual, other, missing)


def percentile(values: Sequence[int], share: float) -> int:
    """The smallest value that no less than this share of all lie at or below."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -(-len(ordered) * round(share * 100) // 100) - 1))]
