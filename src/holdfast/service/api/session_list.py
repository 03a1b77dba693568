"""The HTTP route of the session list: search, filters, sorting and pages that continue behind the last session."""

import asyncio
import base64
import datetime
from typing import Annotated

import msgspec

from holdfast.ledger.analytics.queries import (
    ListedSession,
    SessionFilter,
    SessionOrdering,
    SessionPosition,
    SessionSort,
)
from holdfast.ledger.cache.verdicts import VerdictKind
from holdfast.ledger.money import NAME_CHARACTERS_MAX
from holdfast.service.api.analytics_rows import make_json_cost, to_json_usd
from holdfast.service.context import AppContext
from holdfast.service.http.request_parsing import TimeText, parse_time, to_datetime
from holdfast.service.http.routes import (
    ApiError,
    Route,
    RouteRequest,
    RouteResponse,
    copy_fields,
    decode_request_fields,
    get_summary,
)

LISTED_MAX = 500
CURSOR_CHARACTERS_MAX = 2_000
SearchText = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
_encode = msgspec.json.Encoder().encode
_decode_position = msgspec.json.Decoder(SessionPosition).decode


class SessionsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}):
    """`search`, `client` and `model` match parts of a text; `key` is an id or a name of a key.

    `after` is the `next` of the page before.
    """

    search: SearchText | None = None
    client: SearchText | None = None
    model: SearchText | None = None
    key: SearchText | None = None
    user: SearchText | None = None
    team: SearchText | None = None
    verdict: VerdictKind | None = None
    start: TimeText | None = None
    end: TimeText | None = None
    sort: SessionSort = "activity"
    descending: bool = True
    after: Annotated[str, msgspec.Meta(max_length=CURSOR_CHARACTERS_MAX)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=LISTED_MAX)] = 50


class SessionListRow(msgspec.Struct, frozen=True):
    """No two sessions of a list have the same `title`: the name that a program gave, or client, key, first words of the
    first request, and start. Only admins get the words; without them it has the model.

    `model` is that of its start, `active_model` that of its last call. `read_share` is null if nothing was sent,
    `spent_usd` if no price is known for any call. `verdict` is that of the call that lost most.
    """

    id: str
    title: str
    name: str | None
    client: str | None
    model: str
    active_model: str
    key_id: str | None
    user_id: str | None
    team_id: str | None
    simulated: bool
    call_count: int
    unpriced_calls: int
    read_share: float | None
    spent_usd: float | None
    lost_usd: float
    verdict: VerdictKind | None
    started_at: datetime.datetime
    last_event_at: datetime.datetime


class SessionList(msgspec.Struct, frozen=True):
    """One page of `total` sessions; `next` is null on the last page."""

    sessions: tuple[SessionListRow, ...]
    total: int
    next: str | None


async def list_sessions(context: AppContext, incoming: RouteRequest) -> RouteResponse:
    """Sessions that match, with calls, read share, spending and losses; by default the most recently active first."""
    request = decode_request_fields(incoming, SessionsRequest)
    page = await asyncio.to_thread(find_page, context, request)
    return RouteResponse(_encode(page))


def find_page(context: AppContext, request: SessionsRequest) -> SessionList:
    queries = context.log.analytics_queries()
    filter_ = copy_fields(
        SessionFilter,
        request,
        key=None if request.key is None else _find_key_id(context, request.key),
        since=None if request.start is None else parse_time(request.start),
        until=None if request.end is None else parse_time(request.end),
        simulated=context.simulated,
        # Whoever may not read the words may not learn them by searching either.
        openings=context.quotes_prompt,
    )
    after = None if request.after is None else _decode_cursor(request.after)
    ordering = SessionOrdering(request.sort, request.descending, after)
    found = queries.find_sessions(filter_, ordering, limit=request.limit + 1)
    page = found[: request.limit]
    titles = context.format_titles(session.row for session in page)
    return SessionList(
        tuple(make_list_row(session, titles[session.row.id]) for session in page),
        # A first page that has room for more has them all.
        len(page) if after is None and len(found) == len(page) else queries.count_matches(filter_),
        _encode_cursor(page[-1].position) if len(found) > len(page) else None,
    )


def _find_key_id(context: AppContext, key: str) -> str:
    """The id of the key with this id or name; a key that is not stored has its id only."""
    keys = context.records.all_keys()
    named = () if any(row.id == key for row in keys) else tuple(row.id for row in keys if row.name == key)
    if len(named) > 1:
        raise ApiError(400, "invalid_key", f"{len(named)} keys are named {key[:80]!r}; filter by the id of one")
    return named[0] if named else key


def make_list_row(session: ListedSession, title: str) -> SessionListRow:
    row, amounts = session.row, session.amounts
    is_unpriced = 0 < amounts.calls <= session.unpriced_calls
    return copy_fields(
        SessionListRow,
        row,
        title=title,
        active_model=session.active_model,
        key_id=row.caller_key_id,
        user_id=row.caller_user_id,
        team_id=row.caller_team_id,
        simulated=bool(row.is_simulated),
        call_count=amounts.calls,
        unpriced_calls=session.unpriced_calls,
        read_share=round(amounts.usage.read_share, 6) if amounts.usage.tokens_sent else None,
        spent_usd=make_json_cost(amounts.spent_usd, is_unpriced=is_unpriced),
        lost_usd=to_json_usd(amounts.lost_usd),
        verdict=session.verdict,
        started_at=to_datetime(row.started_at),
        last_event_at=to_datetime(row.last_event_at),
    )


def _encode_cursor(position: SessionPosition) -> str:
    return base64.urlsafe_b64encode(_encode(position)).decode().rstrip("=")


def _decode_cursor(text: str) -> SessionPosition:
    try:
        return _decode_position(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, msgspec.MsgspecError) as error:
        raise ApiError(400, "invalid_after", "`after` must be the `next` of an earlier page") from error


ROUTES: tuple[Route, ...] = (
    Route("GET", "/api/sessions", "read", get_summary(list_sessions), SessionsRequest, SessionList, list_sessions),
)
