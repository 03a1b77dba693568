"""HTTP routes for keys: list, create, change and revoke them, with their limits and what they have spent."""

import datetime
import secrets
from typing import Annotated

import msgspec

from holdfast.errors import UserError
from holdfast.events.records import BudgetStore, KeyRow
from holdfast.gateway.key_limits import find_budget_reset
from holdfast.ledger.analytics.queries import GroupFilter, LedgerScope
from holdfast.ledger.money import to_picodollars
from holdfast.service.api.analytics_rows import to_json_usd
from holdfast.service.auth.keys import KeyState, assign_account, assign_limits, get_key_state, make_key, rename_key
from holdfast.service.context import AppContext
from holdfast.service.http.request_parsing import to_datetime, to_optional_datetime
from holdfast.service.http.routes import ApiError, EmptyRequest, Route, json_route, make_not_found_error
from holdfast.stores.event_log import DatabaseEventLog

DAY_SECONDS = 86_400
MONTH_DAYS = 30
KeyId = Annotated[str, msgspec.Meta(max_length=80)]


class KeyView(msgspec.Struct, frozen=True):
    """A key without its secret. Spending is that of the ledger, `last_used` the day of its last gateway call.

    Budgets reset at midnight UTC, `resets_at`, and on the first of a month, `month_resets_at`. `models` are patterns;
    without one, all models are allowed.
    """

    id: str
    scope: str
    name: str | None
    user: str | None
    team: str | None
    state: KeyState
    created_at: datetime.datetime
    expires_at: datetime.datetime | None
    last_used: str | None
    budget_usd_a_day: float | None
    requests_a_minute: int | None
    spent_today_usd: float
    spent_30_days_usd: float
    resets_at: datetime.datetime
    budget_usd_a_month: float | None
    spent_month_usd: float
    month_resets_at: datetime.datetime
    models: tuple[str, ...]


class KeyList(msgspec.Struct, frozen=True):
    """Oldest first."""

    keys: tuple[KeyView, ...]


class CreatedKey(msgspec.Struct, frozen=True):
    """`key` is the whole key; it is not stored and not shown again."""

    id: str
    key: str
    scope: str


class CreateKeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scope: str
    name: str | None = None
    user: str | None = None
    team: str | None = None
    expires_in_days: Annotated[int, msgspec.Meta(ge=1, le=3_660)] | None = None
    budget_usd_a_day: float | None = None
    requests_a_minute: int | None = None
    budget_usd_a_month: float | None = None
    models: tuple[str, ...] = ()


class ChangeKeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of these are replaced: null removes a name, a user, a team or a limit, an empty list allows all models."""

    key_id: KeyId
    name: str | None = None
    user: str | None = None
    team: str | None = None
    budget_usd_a_day: float | None = None
    requests_a_minute: int | None = None
    budget_usd_a_month: float | None = None
    models: tuple[str, ...] = ()


class RevokeKeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key_id: KeyId


class RevokedKey(msgspec.Struct, frozen=True):
    id: str
    revoked_at: datetime.datetime


def list_keys(context: AppContext, request: EmptyRequest) -> KeyList:
    """All keys ever created, without secrets: scope, user, team, limits, spending, last use."""
    return KeyList(
        make_key_views(context.records.all_keys(), context.log, context.records.last_used_days(), context.clock())
    )


def make_key_views(
    rows: tuple[KeyRow, ...], log: DatabaseEventLog, last_used: dict[str, str], now: float
) -> tuple[KeyView, ...]:
    """The rows with what was spent with each key; simulated calls count, as they do for budgets."""
    midnight = now // DAY_SECONDS * DAY_SECONDS
    today = _sum_by_key(log, LedgerScope(since=midnight, until=now + 1, simulated=True))
    recent = _sum_by_key(log, LedgerScope(since=now - MONTH_DAYS * DAY_SECONDS, until=now + 1, simulated=True))
    month = _sum_by_key(log, LedgerScope(since=_find_month_start(now), until=now + 1, simulated=True))
    return tuple(
        KeyView(
            id=row.id,
            scope=row.scope,
            name=row.name,
            user=row.user_id,
            team=row.team_id,
            state=get_key_state(row, now),
            created_at=to_datetime(row.created_at),
            expires_at=to_optional_datetime(row.expires_at),
            last_used=last_used.get(row.id),
            budget_usd_a_day=row.budget_usd_a_day,
            requests_a_minute=row.requests_a_minute,
            spent_today_usd=today.get(row.id, 0.0),
            spent_30_days_usd=recent.get(row.id, 0.0),
            resets_at=to_datetime(midnight + DAY_SECONDS),
            budget_usd_a_month=row.budget_usd_a_month,
            spent_month_usd=month.get(row.id, 0.0),
            month_resets_at=to_datetime(find_budget_reset(now, monthly=True)),
            models=row.model_patterns,
        )
        for row in rows
    )


def _find_month_start(now: float) -> float:
    return to_datetime(now).replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()


def _sum_by_key(log: DatabaseEventLog, scope: LedgerScope) -> dict[str, float]:
    groups = log.analytics_queries().groups("gateway_key", scope)
    return {str(group.name): to_json_usd(group.amounts.spent_usd) for group in groups if group.name}


def create_key(context: AppContext, request: CreateKeyRequest) -> CreatedKey:
    """Create a key, with a user, a team and limits; the secret is in this response and nowhere else."""
    now = context.clock()
    days = request.expires_in_days
    try:
        created = make_key(
            request.scope,
            at=now,
            random_bytes=secrets.token_bytes,
            name=request.name,
            expires_at=None if days is None else now + days * DAY_SECONDS,
        )
        row = _assign(created.row, request)
    except UserError as error:
        raise ApiError(422, "invalid_key_fields", str(error)) from error
    context.records.add_key(row)
    return CreatedKey(row.id, created.key, row.scope)


def _assign(row: KeyRow, request: CreateKeyRequest | ChangeKeyRequest) -> KeyRow:
    row = assign_account(row, user=request.user, team=request.team)
    return assign_limits(
        row,
        budget_usd_a_day=request.budget_usd_a_day,
        requests_a_minute=request.requests_a_minute,
        budget_usd_a_month=request.budget_usd_a_month,
        models=request.models,
    )


def update_key(context: AppContext, request: ChangeKeyRequest) -> KeyView:
    """Rename a key, or change its user, team and limits; gateways follow within ten seconds."""
    row, now = context.records.key(request.key_id), context.clock()
    if row is None:
        raise make_not_found_error("key", request.key_id)
    try:
        row = _assign(rename_key(row, request.name), request)
    except UserError as error:
        raise ApiError(422, "invalid_key_fields", str(error)) from error
    seed_spending(row, context.log, context.records, now)
    if not context.records.update_key(row):
        raise ApiError(409, "key_revoked", "this key was revoked; create another")
    return make_key_views((row,), context.log, context.records.last_used_days(), now)[0]


def seed_spending(row: KeyRow, log: DatabaseEventLog, budgets: BudgetStore, now: float) -> None:
    """What was spent this month before a key had a budget counts for the budget too."""
    if row.budget_usd_a_day is not None or row.budget_usd_a_month is not None:
        scope = LedgerScope(since=_find_month_start(now), until=now + 1, simulated=True)
        for group in log.analytics_queries().groups("day", scope, GroupFilter(gateway_key=row.id)):
            budgets.seed_budget(row.id, str(group.name), to_picodollars(group.amounts.spent_usd))


def revoke_key(context: AppContext, request: RevokeKeyRequest) -> RevokedKey:
    """Revoke a key: at once for the service, within ten seconds for gateways."""
    now = context.clock()
    if not context.records.revoke_key(request.key_id, at=now):
        raise make_not_found_error("key", request.key_id)
    return RevokedKey(request.key_id, to_datetime(now))


def _needing_a_key(route: Route) -> Route:
    # Whoever can reach the service before the first key exists must not be able to lock the others out by creating it.
    return msgspec.structs.replace(route, keyless=False)


ROUTES: tuple[Route, ...] = (
    json_route("GET", "/api/keys", list_keys, rule="admin"),
    _needing_a_key(json_route("POST", "/api/keys", create_key, rule="admin")),
    _needing_a_key(json_route("PUT", "/api/keys/{key_id}", update_key, rule="admin", error_statuses=(404, 409))),
    _needing_a_key(json_route("DELETE", "/api/keys/{key_id}", revoke_key, rule="admin", error_statuses=(404,))),
)
