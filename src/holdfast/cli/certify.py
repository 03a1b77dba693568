"""`holdfast certify`: checks a stored session again, byte by byte and token by token."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.counts import counted
from holdfast.cli.stores import configured_models, found_session, open_configured

if TYPE_CHECKING:
    from holdfast.engine.certify import Certificate


@click.command("certify")
@click.argument("session_id", metavar="SESSION")
@click.option("--db", help="Store to use instead of the configured one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(session_id: str, db: str | None, as_json: bool) -> None:
    """Make every request of a session anew from the log and compare it with what was sent.

    Ends with 1 at the first request whose bytes are others, whose prefix moved, or that read less than was there.
    """
    import msgspec

    from holdfast.engine.certify import certify
    from holdfast.errors import UserError
    from holdfast.events.payloads import LlmCallCompleted

    with open_configured(db) as log:
        session_id = found_session(log, session_id)
        made = tuple(certify(log.read(session_id), session_id, configured_models()))
        if not made and any(isinstance(event.payload, LlmCallCompleted) for event in log.read(session_id)):
            raise UserError(
                f"session {session_id!r} was pruned: its calls are kept and what they sent is not, "
                "so nothing can be vouched for"
            )
    first = next((one for one in made if one.violation is not None), None)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(made)).decode())
    else:
        _show(made, first)
    if first is not None:
        raise click.exceptions.Exit(1)


def _show(made: "tuple[Certificate, ...]", first: "Certificate | None") -> None:
    from holdfast.cli.tables import show_table

    if made:
        show_table(("call", "equal to", "for bytes", "must read", "read", ""), map(_row, made))
    if restarted := [str(one.call) for one in made if one.restarted]:
        click.echo(f"A simulated cache ends with its process. First in a new one: call {', '.join(restarted)};")
        click.echo("there the same bytes were demanded, and not that they were read.")
    if not made:
        click.echo("no request was made yet, so there is nothing to vouch for")
    elif first is None:
        hold = "holds" if len(made) == 1 else "hold"
        click.echo(f"{counted(len(made), 'request')} {hold}: no byte moved, and everything was read that was there")
    else:
        click.echo(f"call {first.call} does not hold: {first.violation}")


def _row(one: "Certificate") -> tuple[str, ...]:
    equal = f"call {one.equal_to_call}" if one.equal_to_call is not None else ""
    read = "" if one.read_tokens is None else str(one.read_tokens)
    broken = "broken" if one.violation is not None else "holds, restarted" if one.restarted else "holds"
    return str(one.call), equal, str(one.prefix_bytes), str(one.expected_read_tokens), read, broken
