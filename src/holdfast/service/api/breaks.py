"""HTTP routes that list calls: those with a cache break, most expensive first, and those that failed, newest first."""

import datetime
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from holdfast.ledger.analytics import queries
from holdfast.ledger.cache.verdicts import VerdictKind
from holdfast.ledger.money import NAME_CHARACTERS_MAX
from holdfast.ledger.spending_actions import REMEDIES
from holdfast.service.api.analytics import LISTED_MAX, SKIPPED_MAX, AnalyticsResponse, WindowRequest, resolve_window
from holdfast.service.api.analytics_rows import to_json_usd
from holdfast.service.context import AppContext
from holdfast.service.http.request_parsing import to_datetime
from holdfast.service.http.routes import Route, copy_fields, json_route

OutcomeText = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]


class CacheBreaksRequest(WindowRequest, frozen=True):
    """Filters by cause (`any` is every break, so neither `held` nor `first_use`) and optionally by component."""

    cause: VerdictKind | Literal["any"] = "any"
    component: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=LISTED_MAX)] = 50
    skip: Annotated[int, msgspec.Meta(ge=0, le=SKIPPED_MAX)] = 0


class CacheBreakRow(msgspec.Struct, frozen=True):
    """`remedy` is what to do about the cause."""

    session: str
    title: str
    name: str | None
    number: int
    at: datetime.datetime
    model: str
    cause: VerdictKind
    component: str | None
    detail: str
    lost_tokens: int
    lost_usd: float
    remedy: str


class CacheBreaksResponse(AnalyticsResponse, frozen=True, kw_only=True):
    data: tuple[CacheBreakRow, ...]
    more: bool


class FailedCallsRequest(WindowRequest, frozen=True):
    """Filters by `outcome`, an error class as in `/analytics/reliability`."""

    outcome: OutcomeText | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=LISTED_MAX)] = 50
    skip: Annotated[int, msgspec.Meta(ge=0, le=SKIPPED_MAX)] = 0


class FailureRow(msgspec.Struct, frozen=True):
    """A call that failed, was cut or could not be read, and the session that it belongs to."""

    session_id: str
    title: str
    model: str
    outcome: str
    at: datetime.datetime
    latency_ms: int
    retries: int


class FailedCallsResponse(AnalyticsResponse, frozen=True, kw_only=True):
    data: tuple[FailureRow, ...]
    more: bool


def list_cache_breaks(context: AppContext, request: CacheBreaksRequest) -> CacheBreaksResponse:
    """The calls with a cache break, most expensive first."""
    window, scope = resolve_window(context, request)
    kind = None if request.cause == "any" else request.cause
    # One extra row shows whether there is another page.
    calls = context.log.analytics_queries().cache_breaks(
        scope, kind=kind, component=request.component, limit=request.limit + 1, skip=request.skip
    )
    page = calls[: request.limit]
    titles = context.find_titles(call.session_id for call in page)
    return CacheBreaksResponse(
        window=window,
        current_pricing_version=context.pricing_version,
        data=tuple(_call_row(call, titles[call.session_id]) for call in page),
        more=len(calls) > request.limit,
    )


def _call_row(call: queries.CacheBreakCall, title: str) -> CacheBreakRow:
    verdict = call.verdict
    return copy_fields(
        CacheBreakRow,
        call,
        session=call.session_id,
        title=title,
        at=to_datetime(call.at),
        cause=verdict.kind,
        component=verdict.component,
        detail=verdict.detail,
        lost_tokens=verdict.lost_tokens,
        lost_usd=to_json_usd(verdict.lost_usd),
        remedy=REMEDIES.get(verdict.kind, ""),
    )


def list_failed_calls(context: AppContext, request: FailedCallsRequest) -> FailedCallsResponse:
    """The calls that failed, were cut or could not be read, newest first."""
    window, scope = resolve_window(context, request)
    calls = context.log.analytics_queries().call_failures(
        scope, outcome=request.outcome, limit=request.limit + 1, skip=request.skip
    )
    return FailedCallsResponse(
        window=window,
        current_pricing_version=context.pricing_version,
        data=make_failure_rows(context, calls[: request.limit]),
        more=len(calls) > request.limit,
    )


def make_failure_rows(context: AppContext, calls: Sequence[queries.CallFailure]) -> tuple[FailureRow, ...]:
    titles = context.format_titles(call.row for call in calls)
    return tuple(
        copy_fields(FailureRow, call, session_id=call.row.id, title=titles[call.row.id], at=to_datetime(call.at))
        for call in calls
    )


ROUTES: tuple[Route, ...] = (
    json_route("GET", "/analytics/breaks/calls", list_cache_breaks, rule="read"),
    json_route("GET", "/analytics/reliability/calls", list_failed_calls, rule="read"),
)
