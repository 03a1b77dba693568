"""`holdfast keys`: creates, lists and revokes the API keys of the service."""

import datetime

import click

from holdfast.cli.format import CommandGroup, print_json
from holdfast.cli.options import db_option, json_option
from holdfast.clock import system_clock
from holdfast.errors import UserError


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
    db: str | None,
    as_json: bool,
) -> None:
    """Create a key and print it once; the store keeps only a digest, from which it cannot be recovered."""
    import secrets

    import msgspec

    from holdfast.cli.open_store import open_store_with_records
    from holdfast.service.auth.keys import assign_account, make_key

    now = system_clock()
    expires_at = None if expires is None else parse_expiry(expires, now)
    created = make_key(scope, at=now, random_bytes=secrets.token_bytes, name=name, entity=entity, expires_at=expires_at)
    row = assign_account(created.row, user=user, team=team)
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
    """List all keys ever created, oldest first, without the secrets."""
    import msgspec

    from holdfast.cli.open_store import open_configured_store
    from holdfast.service.auth.keys import get_key_state

    now = system_clock()
    with open_configured_store(db) as log:
        rows = log.records.all_keys()
    if as_json:
        # The digest is left out: it identifies the key, and nothing outside the store needs it.
        document = [
            {name: value for name, value in msgspec.structs.asdict(row).items() if name != "digest"}
            | {"state": get_key_state(row, now)}
            for row in rows
        ]
        print_json(document)
        return
    if not rows:
        click.echo("There are no keys yet; `holdfast keys create --scope admin` creates one.")
        return
    from holdfast.cli.tables import print_table

    cells = (
        (row.id, row.scope, row.name or "", _day(row.created_at), _day(row.expires_at), get_key_state(row, now))
        for row in rows
    )
    print_table(("id", "scope", "name", "created", "expires", "state"), cells)


@command.command("revoke")
@click.argument("key_id")
@db_option
def revoke_key(key_id: str, db: str | None) -> None:
    """Revoke a key with immediate effect."""
    from holdfast.cli.open_store import open_store_with_records

    with open_store_with_records(db) as (_, records):
        if not records.revoke_key(key_id, at=system_clock()):
            raise UserError(f"no valid key has the id {key_id[:80]!r}; `holdfast keys list` shows all")
    click.echo(f"revoked key {key_id}")


def parse_expiry(expires: str, now: float) -> float:
    """The time, as seconds since the epoch, that 30d, 12h, 2w (from now) or a date such as 2027-11-01 stands for."""
    from holdfast.cli.costs.report import parse_time_option

    try:
        parsed = parse_time_option(expires, now)
    except UserError as error:
        raise UserError(f"--expires takes 30d, 12h, 2w or a date such as 2027-11-01, not {expires[:40]!r}") from error
    # seconds_of reads a duration as that long ago; mirror it around now. A date stays as it is.
    return parsed if "-" in expires else now + (now - parsed)


def _day(at: float | None) -> str:
    try:
        return "" if at is None else datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return f"second {at:g}"
