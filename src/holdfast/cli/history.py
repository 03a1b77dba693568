"""`holdfast history`: the original messages of a session, as the event log holds them."""

import click

from holdfast.cli.stores import found_session, open_configured


@click.command("history")
@click.argument("session_id", metavar="SESSION")
@click.option(
    "--range", "wanted", metavar="RANGE", help="Messages to show: m12 or 12-20. A tool call is shown with its result."
)
@click.option("--db", help="Store to use instead of the configured one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(session_id: str, wanted: str | None, db: str | None, as_json: bool) -> None:
    """Show the messages of a session with the numbers by which compaction summaries refer to them.

    Compacted messages are included.
    """
    import msgspec

    from holdfast.engine.builtin.recalling import numbers_in
    from holdfast.engine.history import groups_behind, logged
    from holdfast.engine.told import told
    from holdfast.errors import UserError
    from holdfast.events.payloads import LlmCallStarted
    from holdfast.ledger.wording import printable

    numbers = numbers_in(wanted) if wanted is not None else (1, 10**9)
    if numbers is None:
        raise UserError(f"{wanted!r} is not a range of messages; write m12 or 12-20")
    with open_configured(db) as log:
        session_id = found_session(log, session_id)
        events = list(log.read(session_id))
    passages = logged(events)
    if not passages and any(isinstance(event.payload, LlmCallStarted) for event in events):
        raise UserError(
            f"session {session_id!r} was recorded from another client or was pruned: the log has no messages of it"
        )
    selected = [passage for group in groups_behind(passages, *numbers) for passage in group]
    if not selected:
        last = passages[-1].number if passages else 0
        raise UserError(f"session {session_id!r} has no such messages; its last is m{last}")
    if as_json:
        rows = [
            {"number": entry.number, "role": entry.role, "layer": entry.layer, "content": entry.content}
            for entry in selected
        ]
        click.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())
        return
    for line in told(selected).split("\n"):
        click.echo(printable(line))
