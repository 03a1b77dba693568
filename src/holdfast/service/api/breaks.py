"""HTTP route that lists the calls with a cache break, most expensive first."""

import datetime
from typing import Annotated, Literal

import msgspec

from holdfast.ledger.analytics import queries
from holdfast.ledger.cache.verdicts import VerdictKind
from holdfast.ledger.spending_actions import REMEDIES
from holdfast.service.api.analytics import LISTED_MAX, SKIPPED_MAX, AnalyticsResponse, WindowRequest, resolve_window
from holdfast.service.api.analytics_rows import to_json_usd
from holdfast.service.context import AppContext
from holdfast.service.http.request_parsing import to_datetime
from holdfast.service.http.routes import Route, copy_fields, json_route


class CacheBreaksRequest(WindowRequest, frozen=True):
    """Filters by cause (`any` is every cause but `held`) and optionally by component."""

    cause: VerdictKind | Literal["any"] = "any"
    component: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=LISTED_MAX)] = 50
    skip: Annotated[int, msgspec.Meta(ge=0, le=SKIPPED_MAX)] = 0


class CacheBreakRow(msgspec.Struct, frozen=True):
    """`remedy` is what to do about the cause; empty if nothing can be done."""

    session: str
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


def list_cache_breaks(context: AppContext, request: CacheBreaksRequest) -> CacheBreaksResponse:
    """The calls with a cache break, most expensive first."""
    window, scope = resolve_window(context, request)
    kind = None if request.cause == "any" else request.cause
    # One extra row shows whether there is another page.
    calls = context.log.analytics_queries().cache_breaks(
        scope, kind=kind, component=request.component, limit=request.limit + 1, skip=request.skip
    )
    return CacheBreaksResponse(
        window=window,
        current_pricing_version=context.pricing_version,
        data=tuple(map(_call_row, calls[: request.limit])),
        more=len(calls) > request.limit,
    )


def _call_row(call: queries.CacheBreakCall) -> CacheBreakRow:
    verdict = call.verdict
    return copy_fields(
        CacheBreakRow,
        call,
        session=call.session_id,
        at=to_datetime(call.at),
        cause=verdict.kind,
        component=verdict.component,
        detail=verdict.detail,
        lost_tokens=verdict.lost_tokens,
        lost_usd=to_json_usd(verdict.lost_usd),
        remedy=REMEDIES.get(verdict.kind, ""),
    )


ROUTES: tuple[Route, ...] = (json_route("GET", "/analytics/breaks/calls", list_cache_breaks, rule="read"),)
