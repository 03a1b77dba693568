"""`holdfast keys`: who may use the service."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.groups import Group

if TYPE_CHECKING:
    from holdfast.events.access import KeyRow


@click.group("keys", cls=Group)
def command() -> None:
    """Make, list and revoke keys of the service."""


_db = click.option("--db", metavar="URL", help="Store to use instead of the configured one.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@command.command("create")
@click.option("--scope", required=True, metavar="admin|read|gateway|agent:<id>", help="What the key opens.")
@click.option("--name", help="What to call it in lists.")
@click.option("--expires", metavar="30d|12h|2w|DATE", help="Until when it is valid; for ever if not said.")
@click.option("--entity", metavar="URI", help="Who its holder is, as the author of instructions; for admins.")
@click.option("--user", metavar="NAME", help="On whose account its calls through the gateway go.")
@click.option("--team", metavar="NAME", help="On which team's account they go.")
@_db
@_json
def create(
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
    """Make a key. It is shown this once; the store keeps nothing that could bring it back."""
    import secrets

    import msgspec

    from holdfast.cli.stores import open_records
    from holdfast.clock import system_clock
    from holdfast.service.access import make_key, on_account

    now = system_clock()
    until = None if expires is None else expiry_of(expires, now)
    made = make_key(scope, at=now, random_bytes=secrets.token_bytes, name=name, entity=entity, expires_at=until)
    row = on_account(made.row, user=user, team=team)
    with open_records(db) as (_, records):
        records.add_key(row)
    if as_json:
        click.echo(msgspec.json.encode({"id": made.row.id, "key": made.key, "scope": scope}).decode())
    else:
        click.echo(made.key)
        click.echo(f"key {made.row.id} of scope {scope}; it is not shown again", err=True)


@command.command("list")
@_db
@_json
def list_keys(db: str | None, as_json: bool) -> None:
    """All keys that were ever made, oldest first, without what they open doors with."""
    import msgspec

    from holdfast.cli.stores import open_records
    from holdfast.clock import system_clock
    from holdfast.service.access import state_of

    now = system_clock()
    with open_records(db) as (_, records):
        rows = records.all_keys()
    if as_json:
        told = [
            {name: value for name, value in msgspec.structs.asdict(row).items() if name != "digest"}
            | {"state": state_of(row, now)}
            for row in rows
        ]
        click.echo(msgspec.json.format(msgspec.json.encode(told)).decode())
        return
    if not rows:
        click.echo("No key was made yet; `holdfast keys create --scope admin` makes one.")
        return
    from holdfast.cli.tables import show_table

    headings = ("id", "scope", "name", "created", "expires", "state")
    show_table(headings, ((*_told(row), state_of(row, now)) for row in rows))


@command.command("revoke")
@click.argument("key_id")
@_db
def revoke(key_id: str, db: str | None) -> None:
    """Let a key open nothing any more, from now on."""
    from holdfast.cli.stores import open_records
    from holdfast.clock import system_clock
    from holdfast.errors import UserError

    with open_records(db) as (_, records):
        if not records.revoke_key(key_id, at=system_clock()):
            raise UserError(f"there is no valid key {key_id[:80]!r}; `holdfast keys list` shows all")
    click.echo(f"revoked key {key_id}")


def expiry_of(expires: str, now: float) -> float:
    """The time that is meant by 30d, 12h, 2w, or a day such as 2027-11-01."""
    from holdfast.cli.report import seconds_of
    from holdfast.errors import UserError

    try:
        meant = seconds_of(expires, now)
    except UserError as error:
        raise UserError(f"--expires takes 30d, 12h, 2w or a day such as 2027-11-01, not {expires[:40]!r}") from error
    # So long ago is so long from now on; a day is the day itself.
    return meant if "-" in expires else now + (now - meant)


def _told(row: "KeyRow") -> tuple[str, str, str, str, str]:
    return row.id, row.scope, row.name or "", _day(row.created_at), _day(row.expires_at)


def _day(at: float | None) -> str:
    import datetime

    return "" if at is None else datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M")
