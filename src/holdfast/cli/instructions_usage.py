"""`holdfast instructions usage`: which units were used, as the agent says and as its trace shows."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.counts import counted
from holdfast.cli.instructions_opened import agent_option, db_option, json_option, opened, print_json

if TYPE_CHECKING:
    from holdfast.instructions.trace import Trace
    from holdfast.instructions.values import Detected
    from holdfast.instructions.watching import UsageSeen
    from holdfast.runtime.library import Library


@click.command("usage")
@click.argument("audit_token", required=False)
@click.option("--used", multiple=True, metavar="UNIT", help="A unit that was applied.")
@click.option("--missed", multiple=True, metavar="UNIT", help="A unit that was needed and not loaded.")
@click.option("--trace", type=click.Path(path_type=Path), help="See it by what the agent did: a .jsonl file of it.")
@click.option("--session", "session_id", metavar="ID", help="See it by what was done in a session of the store.")
@click.option("--keep", is_flag=True, help="Put on record what the trace shows; once for each recall.")
@agent_option
@db_option
@json_option
def usage(
    *,
    audit_token: str | None,
    used: tuple[str, ...],
    missed: tuple[str, ...],
    trace: Path | None,
    session_id: str | None,
    keep: bool,
    agent: str,
    db: str | None,
    as_json: bool,
) -> None:
    """Say which units of a recall were used, and which were missed; once.

    With --trace or --session, see it by what the agent did after the recall, beside what it says of itself; without a
    token, of every recall of the agent whose answer stands there. A trace is lines of steps
    ({"type": "said", "text"}, {"type": "called", "tool", "arguments"}, {"type": "shown", "text", "tool"}),
    recorded conversations, or a transcript of Claude Code.
    """
    from holdfast.errors import UserError

    looks = trace is not None or session_id is not None
    if audit_token is None and (used or missed or not looks):
        raise UserError("say of which recall: name its audit token, or what the agent did by --trace or --session")
    if keep and not looks:
        raise UserError("--keep is for what a trace shows: name it by --trace or --session")
    with opened(db) as library:
        if audit_token is not None and (used or missed or not looks):
            library.submit_usage(audit_token, used=used, missed=missed)
        steps = _steps(library, trace, session_id) if looks else ()
        seen: tuple[UsageSeen, ...] = ()
        if looks and audit_token is not None:
            seen = (library.usage_seen(audit_token, steps, keep=keep),)
        elif looks:
            seen = library.usages_seen(steps, agent=agent, keep=keep)
    if not looks:
        click.echo("on record")
    elif not seen:
        raise UserError(f"no recall of {agent[:80]!a} has its answer in this trace; name its audit token")
    elif as_json:
        print_json(seen)
    else:
        _show(seen, of=len(steps))


def _steps(library: "Library", trace: Path | None, session_id: str | None) -> "Trace":
    from holdfast.errors import UserError
    from holdfast.runtime.recorded_steps import read_trace

    if trace is not None and session_id is not None:
        raise UserError("there is one trace at a time: leave out --trace or --session")
    if trace is not None:
        return read_trace(trace)
    found = library.session_trace(session_id or "")
    if not found:
        raise UserError(f"nothing was said in a session {session_id!r} of this store; see `holdfast sessions list`")
    return found


def _show(seen: "tuple[UsageSeen, ...]", *, of: int) -> None:
    from holdfast.cli.tables import show_table

    for one in seen:
        click.echo(f"{one.audit_token} {' '.join(one.intent.split())[:40]!r}")
        by_name = {found.name: found for found in one.detected}
        names = dict.fromkeys((*one.loaded, *(one.said_used or ()), *(one.said_missed or ()), *by_name))
        show_table(
            ("unit", "loaded", "said", "detected"),
            [(name, _place(one, name), _said(one, name), _evidence(one, by_name.get(name))) for name in names],
        )
        click.echo("")
    kept = sum(one.kept for one in seen)
    rest = "" if kept == len(seen) else "; --keep puts the others on record"
    click.echo(f"{counted(len(seen), 'recall')} by {counted(of, 'step')}, {kept} on record{rest}")


def _place(seen: "UsageSeen", name: str) -> str:
    return str(seen.loaded.index(name) + 1) if name in seen.loaded else "-"


def _said(seen: "UsageSeen", name: str) -> str:
    if seen.said_used is None or seen.said_missed is None:
        return "nothing yet"
    return "used" if name in seen.said_used else "missed" if name in seen.said_missed else "-"


def _evidence(seen: "UsageSeen", found: "Detected | None") -> str:
    if found is None:
        return "-"
    places = ", ".join(f"{one.kind} (step {one.step})" for one in found.evidence)
    return f"{'used' if found.name in seen.loaded else 'missed'}: {places}"
