"""`holdfast certify`: verifies a stored session byte by byte and token by token."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.format import format_count, print_json
from holdfast.cli.open_store import load_configured_models, open_configured_store, resolve_session_id
from holdfast.cli.options import db_option, json_option
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.engine.certify import Certificate


@click.command("certify")
@click.argument("session_id", metavar="SESSION")
@db_option
@json_option
def command(session_id: str, db: str | None, as_json: bool) -> None:
    """Rebuild every request of a session from the log and compare it with what was sent.

    Exits with status 1 if a request is broken: it has different bytes, changes the prefix of the one before, or reads
    fewer cached tokens than were available. So it does if nothing can be certified because only digests were kept.
    """
    from holdfast.engine.certify import certify
    from holdfast.events.payloads.calls import LlmCallCompleted

    with open_configured_store(db) as log:
        session_id = resolve_session_id(log, session_id)
        certificates = tuple(certify(log.read(session_id), session_id, load_configured_models()))
        if not certificates and any(isinstance(event.payload, LlmCallCompleted) for event in log.read(session_id)):
            raise UserError(
                f"session {session_id!r} was pruned: its requests are no longer stored, so they cannot be checked"
            )
    failed = next((certificate for certificate in certificates if certificate.result != "certified"), None)
    failed = next((certificate for certificate in certificates if certificate.result == "broken"), failed)
    if as_json:
        print_json(certificates)
    else:
        _show(certificates, failed)
    if failed is not None:
        raise click.exceptions.Exit(1)


def _show(certificates: "tuple[Certificate, ...]", failed: "Certificate | None") -> None:
    from holdfast.cli.tables import print_table

    if certificates:
        headings = ("call", "extends", "prefix bytes", "expected read", "read", "result")
        print_table(headings, map(_row, certificates))
    if restarted := [str(certificate.call) for certificate in certificates if certificate.is_restarted]:
        # A simulated cache lives in its process. A chat keeps it for the next one, unless it is killed.
        click.echo(f"The simulated cache was lost with its process. First call of a new one: {', '.join(restarted)};")
        click.echo("for these, only the bytes were checked, not what was read.")
    if not certificates:
        click.echo("no request has been made yet, so there is nothing to check")
    elif failed is None:
        requests = format_count(len(certificates), "request")
        click.echo(f"{requests} certified: no prefix changed, and no cached tokens were missed")
    elif failed.result == "broken":
        click.echo(f"call {failed.call} is broken: {failed.violation}")
    else:
        count = sum(certificate.result == failed.result for certificate in certificates)
        click.echo(f"{format_count(count, 'request')} not certifiable: only digests were kept")


def _row(certificate: "Certificate") -> tuple[str, ...]:
    equal = f"call {certificate.equal_to_call}" if certificate.equal_to_call is not None else ""
    read = "" if certificate.read_tokens is None else str(certificate.read_tokens)
    result = f"{certificate.result}, restarted" if certificate.is_restarted else certificate.result
    tokens = (str(certificate.expected_read_tokens), read)
    return str(certificate.call), equal, str(certificate.prefix_bytes), *tokens, result
