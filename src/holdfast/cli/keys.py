"""`holdfast keys`: creates, lists and revokes the API keys of the service."""

import datetime
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.format import CommandGroup, print_json
from holdfast.cli.open_store import open_configured_store, open_store_with_records
from holdfast.cli.options import convert_to_option_error, db_option, json_option, parse_expiry
from holdfast.clock import system_clock
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.events.records import KeyRow, StoreRecords

_VIEWED = (
    "state",
    "spent_today_usd",
    "resets_at",
    "spent_month_usd",
    "month_resets_at",
    "spent_30_days_usd",
    "last_used",
)


@click.group("keys", cls=CommandGroup)
def command() -> None:
    """Create, list and revoke API keys of the service."""


@command.command("create")
@click.option("--scope", required=True, metavar="admin|read|gateway|agent:<id>", help="What the key may access.")
@click.option("--name", help="Name to show in lists.")
@click.option("--expires", metavar="30d|12h|2w|DATE", help="How long it is valid. Default: for ever.")
@click.option("--entity", metavar="URI", help="Entity of the holder as author of instructions; for admins.")
@click.option("--user", metavar="NAME", help="User to charge its gateway calls to.")
@click.option("--team", metavar="NAME", help="Team to charge its gateway calls to.")
@click.option("--budget-usd-day", type=float, metavar="USD", help="What its gateway calls may cost on a day (UTC).")
@click.option("--budget-usd-month", type=float, metavar="USD", help="What they may cost in a calendar month (UTC).")
@click.option(
    "--allow-model", "models", multiple=True, metavar="NAME", help="Model it may call, as claude-*; repeat it."
)
@click.option("--requests-a-minute", type=int, metavar="N", help="How many gateway calls it may make in a minute.")
@db_option
@json_option
def create_key(
    *,
    scope: str,
    name: str | None,
    expires: str | None,
    entity: str | None,
    user: str | None,
    team: str | None,
    budget_usd_day: float | None,
    budget_usd_month: float | None,
    models: tuple[str, ...],
    requests_a_minute: int | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Create a key and print it once; the store keeps only a digest, from which it cannot be recovered."""
    import secrets

    from holdfast.service.auth.keys import assign_account, assign_limits, make_key

    now = system_clock()
    expires_at = None if expires is None else parse_expiry(expires, now)
    with convert_to_option_error():
        created = make_key(
            scope, at=now, random_bytes=secrets.token_bytes, name=name, entity=entity, expires_at=expires_at
        )
        row = assign_account(created.row, user=user, team=team)
        row = assign_limits(
            row,
            budget_usd_a_day=budget_usd_day,
            requests_a_minute=requests_a_minute,
            budget_usd_a_month=budget_usd_month,
            models=models,
        )
    with open_store_with_records(db) as (_, records):
        records.add_key(row)
    if as_json:
        click.echo(msgspec.json.encode({"id": created.row.id, "key": created.key, "scope": scope}).decode())
    else:
        click.echo(created.key)
        click.echo(f"key {created.row.id} of scope {scope}; it is not shown again", err=True)


@command.command("list")
@db_option
@json_option
def list_keys(db: str | None, as_json: bool) -> None:
    """List all keys ever created, oldest first, without the secrets: whose they are, their limits and spending."""
    from holdfast.service.api.keys import make_key_views

    with open_configured_store(db) as log:
        rows = log.records.all_keys()
        views = make_key_views(rows, log, log.records.last_used_days(), system_clock())
    if as_json:
        # The digest is left out: it identifies the key, and nothing outside the store needs it.
        document = [
            {name: value for name, value in msgspec.structs.asdict(row).items() if name != "digest"}
            | {name: getattr(view, name) for name in _VIEWED}
            for row, view in zip(rows, views, strict=True)
        ]
        print_json(document)
        return
    if not rows:
        click.echo("There are no keys yet; `holdfast keys create --scope admin` creates one.")
        return
    from holdfast.cli.tables import print_table

    cells = (
        (
            row.id,
            row.scope,
            row.name or "",
            row.user_id or "",
            row.team_id or "",
            _format_spending(view.spent_today_usd, row.budget_usd_a_day),
            _format_spending(view.spent_month_usd, row.budget_usd_a_month),
            row.models or "all",
            "" if row.requests_a_minute is None else f"{row.requests_a_minute:,}/min",
            view.last_used or ("never" if row.scope == "gateway" else ""),
            _day(row.created_at),
            _day(row.expires_at),
            view.state,
        )
        for row, view in zip(rows, views, strict=True)
    )
    headings = ("id", "scope", "name", "user", "team", "spent today", "this month", "models", "rate", "last used")
    spare = ("models", "created", "expires", "rate", "scope", "this month")
    print_table((*headings, "created", "expires", "state"), cells, spare=spare)


@command.command("set")
@click.argument("key")
@click.option("--name", help="Name to show in lists.")
@click.option("--user", metavar="NAME", help="User to charge its gateway calls to.")
@click.option("--team", metavar="NAME", help="Team to charge its gateway calls to.")
@click.option("--budget-usd-day", type=float, metavar="USD", help="What its gateway calls may cost on a day (UTC).")
@click.option("--budget-usd-month", type=float, metavar="USD", help="What they may cost in a calendar month (UTC).")
@click.option(
    "--allow-model", "models", multiple=True, metavar="NAME", help="Model it may call, as claude-*; repeat it."
)
@click.option("--requests-a-minute", type=int, metavar="N", help="How many gateway calls it may make in a minute.")
@click.option("--no-limits", is_flag=True, help="Remove the limits that are not given here.")
@db_option
def set_key(
    *,
    key: str,
    name: str | None,
    user: str | None,
    team: str | None,
    budget_usd_day: float | None,
    budget_usd_month: float | None,
    models: tuple[str, ...],
    requests_a_minute: int | None,
    no_limits: bool,
    db: str | None,
) -> None:
    """Rename a key, or change its user, team and limits; what is not given stays. Gateways follow in ten seconds.

    KEY is an id or a name that only one key has, as in `holdfast keys list`.
    """
    from holdfast.service.api.keys import seed_spending
    from holdfast.service.auth.keys import assign_account, assign_limits, rename_key

    with open_configured_store(db, writable=True) as log:
        records = log.records
        row = _find_key(records, key)
        with convert_to_option_error():
            row = assign_account(rename_key(row, name or row.name), user=user or row.user_id, team=team or row.team_id)
            if no_limits:
                row = assign_limits(row, budget_usd_a_day=None, requests_a_minute=None)
            row = assign_limits(
                row,
                budget_usd_a_day=row.budget_usd_a_day if budget_usd_day is None else budget_usd_day,
                requests_a_minute=row.requests_a_minute if requests_a_minute is None else requests_a_minute,
                budget_usd_a_month=row.budget_usd_a_month if budget_usd_month is None else budget_usd_month,
                models=models or row.model_patterns,
            )
        seed_spending(row, log, records, system_clock())
        if not records.update_key(row):
            raise UserError(f"key {key[:80]!r} was revoked; create another with `holdfast keys create`")
    click.echo(f"changed key {row.id}")


@command.command("revoke")
@click.argument("key")
@db_option
def revoke_key(key: str, db: str | None) -> None:
    """Revoke a key with immediate effect.

    KEY is an id or a name that only one key has, as in `holdfast keys list`.
    """

    with open_configured_store(db, writable=True) as log:
        row = _find_key(log.records, key)
        if not log.records.revoke_key(row.id, at=system_clock()):
            raise UserError(f"key {key[:80]!r} was revoked before; `holdfast keys list` shows all")
    click.echo(f"revoked key {row.id}")


def _find_key(records: "StoreRecords", key: str) -> "KeyRow":
    """The key with this id, or the only one with this name that was not revoked."""
    row = records.key(key)
    if row is not None:
        return row
    named = [row for row in records.all_keys() if row.name == key and row.revoked_at is None]
    if len(named) > 1:
        raise UserError(
            f"{len(named)} keys have the name {key[:80]!r}; give the id: {', '.join(row.id for row in named)}"
        )
    if not named:
        raise UserError(f"no key has the id or name {key[:80]!r}; `holdfast keys list` shows all")
    return named[0]


def _format_spending(spent: float, budget: float | None) -> str:
    return f"${spent:.4f}" if budget is None else f"${spent:.4f} of ${budget:,.2f}"


def _day(at: float | None) -> str:
    try:
        return "" if at is None else datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return f"second {at:g}"
