"""`holdfast history`: the original messages of a session, as the event log holds them."""

import click

from holdfast.cli.format import print_json
from holdfast.cli.open_store import open_configured_store, resolve_session_id
from holdfast.cli.options import db_option, json_option
from holdfast.errors import UserError
from holdfast.ledger.requests.format import strip_control_characters


@click.command("history")
@click.argument("session_id", metavar="SESSION")
@click.option(
    "--range", "wanted", metavar="RANGE", help="Messages to show: m12 or 12-20. A tool call is shown with its result."
)
@db_option
@json_option
def command(session_id: str, wanted: str | None, db: str | None, as_json: bool) -> None:
    """Show the messages of a session with the numbers by which compaction summaries refer to them.

    Compacted messages are included.
    """
    from holdfast.engine.compaction.history import groups_containing, read_logged_messages, render_messages
    from holdfast.engine.tools.builtin.history import parse_message_range
    from holdfast.events.payloads.calls import LlmCallStarted

    numbers = parse_message_range(wanted) if wanted is not None else (1, 10**9)
    if numbers is None:
        raise UserError(f"{wanted!r} is not a range of messages; write m12 or 12-20")
    with open_configured_store(db) as log:
        session_id = resolve_session_id(log, session_id)
        events = list(log.read(session_id))
    entries = read_logged_messages(events)
    if not entries and any(isinstance(event.payload, LlmCallStarted) for event in events):
        raise UserError(
            f"session {session_id!r} was recorded from another client or was pruned: the log has no messages of it"
        )
    selected = [entry for group in groups_containing(entries, *numbers) for entry in group]
    if not selected:
        last = entries[-1].number if entries else 0
        raise UserError(f"session {session_id!r} has no such messages; its last is m{last}")
    if as_json:
        fields = ("number", "role", "layer", "content")
        print_json([{name: getattr(entry, name) for name in fields} for entry in selected], redact=False)
        return
    for line in render_messages(selected).split("\n"):
        click.echo(strip_control_characters(line))
