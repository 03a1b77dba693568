"""HTTP route that lists the calls with a cache break, most expensive first."""

import asyncio
import datetime
from typing import Annotated, Literal

import msgspec

from holdfast.ledger import figures
from holdfast.ledger.tables import Scope
from holdfast.ledger.verdicts import VerdictKind
from holdfast.service.routes import Route, route
from holdfast.service.service import Service
from holdfast.service.sums import usd
from holdfast.service.times import Moment, Window, moment, span

LISTED_MAX = 500
SKIPPED_MAX = 1_000_000


class BrokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}):
    """Filters by cause (`any` is every cause but `held`) and optionally by component."""

    start: Moment | None = None
    end: Moment | None = None
    cause: VerdictKind | Literal["any"] = "any"
    component: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=LISTED_MAX)] = 50
    skip: Annotated[int, msgspec.Meta(ge=0, le=SKIPPED_MAX)] = 0


class BrokenCall(msgspec.Struct, frozen=True):
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


class BrokenReply(msgspec.Struct, frozen=True):
    window: Window
    current_pricing_version: str
    data: tuple[BrokenCall, ...]
    more: bool


async def broken_calls(context: Service, request: BrokenRequest) -> BrokenReply:
    within = span(request.start, request.end, now=context.clock())

    def find() -> tuple[BrokenCall, ...]:
        scope = Scope(since=within.start, until=within.end, simulated=context.simulated)
        kind = None if request.cause == "any" else request.cause
        # One extra row shows whether there is another page.
        calls = context.log.figures().broken(
            scope, kind=kind, component=request.component, limit=request.limit + 1, skip=request.skip
        )
        return tuple(map(_call_row, calls))

    calls = await asyncio.to_thread(find)
    more = len(calls) > request.limit
    return BrokenReply(within.told, context.pricing_version, calls[: request.limit], more)


def _call_row(call: figures.BrokenCall) -> BrokenCall:
    verdict = call.verdict
    return BrokenCall(
        session=call.session_id,
        name=call.name,
        number=call.number,
        at=moment(call.at),
        model=call.model,
        cause=verdict.kind,
        component=verdict.component,
        detail=verdict.detail,
        lost_tokens=verdict.lost_tokens,
        lost_usd=usd(verdict.lost_usd),
    )


ROUTES: tuple[Route, ...] = (
    route(
        "GET",
        "/analytics/breaks/calls",
        broken_calls,
        request=BrokenRequest,
        reply=BrokenReply,
        rule="read",
        summary="The calls with a cache break, most expensive first.",
    ),
)
