"""`holdfast instructions usage`: which units were used, as the agent reports it and as its trace shows."""

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
@click.option(
    "--trace", type=click.Path(path_type=Path), help="Detect usage from a .jsonl trace of what the agent did."
)
@click.option("--session", "session_id", metavar="ID", help="Detect usage from a stored session.")
@click.option("--keep", is_flag=True, help="Record what the trace shows, once per recall.")
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
    """Report which units of a recall were used and which were missed. This is possible once per recall.

    With --trace or --session, usage is detected from what the agent did after the recall and shown beside its own
    report; without a token, for every recall of the agent whose result is in the trace. A trace is JSON lines of steps
    ({"type": "said", "text"}, {"type": "called", "tool", "arguments"}, {"type": "shown", "text", "tool"}),
    recorded conversations, or a Claude Code transcript.
    """
    from holdfast.errors import UserError

    has_trace = trace is not None or session_id is not None
    if audit_token is None and (used or missed or not has_trace):
        raise UserError("which recall? Give its audit token, or what the agent did with --trace or --session")
    if keep and not has_trace:
        raise UserError("--keep records what a trace shows: give one with --trace or --session")
    with opened(db) as library:
        if audit_token is not None and (used or missed or not has_trace):
            library.submit_usage(audit_token, used=used, missed=missed)
        steps = _steps(library, trace, session_id) if has_trace else ()
        detected: tuple[UsageSeen, ...] = ()
        if has_trace and audit_token is not None:
            detected = (library.usage_seen(audit_token, steps, keep=keep),)
        elif has_trace:
            detected = library.usages_seen(steps, agent=agent, keep=keep)
    if not has_trace:
        click.echo("recorded")
    elif not detected:
        raise UserError(f"the trace has no result of a recall of {agent[:80]!a}; give the audit token")
    elif as_json:
        print_json(detected)
    else:
        _show(detected, step_count=len(steps))


def _steps(library: "Library", trace: Path | None, session_id: str | None) -> "Trace":
    from holdfast.errors import UserError
    from holdfast.runtime.recorded_steps import read_trace

    if trace is not None and session_id is not None:
        raise UserError("give only one of --trace and --session")
    if trace is not None:
        return read_trace(trace)
    steps = library.session_trace(session_id or "")
    if not steps:
        raise UserError(f"this store has no messages of session {session_id!r}; see `holdfast sessions list`")
    return steps


def _show(usages: "tuple[UsageSeen, ...]", *, step_count: int) -> None:
    from holdfast.cli.tables import show_table

    for usage in usages:
        click.echo(f"{usage.audit_token} {' '.join(usage.intent.split())[:40]!r}")
        by_name = {unit.name: unit for unit in usage.detected}
        names = dict.fromkeys((*usage.loaded, *(usage.said_used or ()), *(usage.said_missed or ()), *by_name))
        show_table(
            ("unit", "loaded", "reported", "detected"),
            [
                (name, _load_position(usage, name), _reported(usage, name), _evidence(usage, by_name.get(name)))
                for name in names
            ],
        )
        click.echo("")
    recorded = sum(usage.kept for usage in usages)
    rest = "" if recorded == len(usages) else "; --keep records the others"
    click.echo(f"{counted(len(usages), 'recall')} in {counted(step_count, 'step')}, {recorded} recorded{rest}")


def _load_position(usage: "UsageSeen", name: str) -> str:
    return str(usage.loaded.index(name) + 1) if name in usage.loaded else "-"


def _reported(usage: "UsageSeen", name: str) -> str:
    if usage.said_used is None or usage.said_missed is None:
        return "not yet"
    return "used" if name in usage.said_used else "missed" if name in usage.said_missed else "-"


def _evidence(usage: "UsageSeen", unit: "Detected | None") -> str:
    if unit is None:
        return "-"
    places = ", ".join(f"{evidence.kind} (step {evidence.step})" for evidence in unit.evidence)
    return f"{'used' if unit.name in usage.loaded else 'missed'}: {places}"
