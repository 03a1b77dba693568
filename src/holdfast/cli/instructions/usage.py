"""`holdfast instructions usage` and `shadow`: which units agents used, and whether recall would suffice."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.format import format_count, print_json
from holdfast.cli.instructions.open import agent_option, open_library, open_library_or_service, url_option
from holdfast.cli.options import db_option, json_option
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.instructions.models import DetectedUnit
    from holdfast.instructions.usage.detect import UsageComparison
    from holdfast.instructions.usage.shadow import ShadowReport
    from holdfast.instructions.usage.trace import Trace
    from holdfast.runtime.instructions.embedded import Library


@click.command("shadow")
@agent_option
@db_option
@url_option
@click.option("--days", type=click.IntRange(1, 3650), default=30, show_default=True)
@json_option
def shadow(*, agent: str, db: str | None, url: str | None, days: int, as_json: bool) -> None:
    """Check whether lazy recall would have sufficed in the shadow turns of the current manifest.

    Exits with status 1 if not. Turns are recorded by `recall --shadow` and `usage`, by a session with
    `for_session(shadow=True)`, or over HTTP.
    """
    with open_library_or_service(db, url) as library:
        report = library.shadow_report(agent, days=days)
    if as_json:
        print_json({"passed": report.passed, "report": report})
    else:
        _show_shadow(report)
    if not report.passed:
        raise click.exceptions.Exit(1)


def _show_shadow(report: "ShadowReport") -> None:
    from holdfast.instructions.usage.shadow import COVERAGE_MIN

    turns = format_count(report.turns, "turn")
    click.echo(f"{turns} in shadow mode with {report.manifest_version}, {report.reported_turns} with reported usage")
    click.echo(f"coverage: {_percent(report.coverage)} (at least {COVERAGE_MIN:.0%})")
    of_eager = f"{report.lazy_tokens} of {report.eager_tokens} per turn"
    click.echo(f"tokens: {_percent(report.share)}, {of_eager} (below {report.share_max:.0%})")
    click.echo(f"regressions: {len(report.regressions)} (none allowed)")
    for regression in report.regressions:
        click.echo(f"  {regression.intent[:200]!r} without {', '.join(regression.missing_units)}")
    for name, times in report.missed_units.items():
        click.echo(f"missed: {name}, {format_count(times, 'time')}")
    if report.passed:
        click.echo("lazy recall would have sufficed")
    for shortfall in report.shortfalls:
        click.echo(f"not yet: {shortfall}")


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"


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
    ({"type": "text", "text"}, {"type": "tool_call", "tool", "arguments"}, {"type": "tool_result", "text", "tool"}),
    recorded conversations, or a Claude Code transcript.
    """
    has_trace = trace is not None or session_id is not None
    if audit_token is None and (used or missed or not has_trace):
        raise UserError("which recall? Give its audit token, or what the agent did with --trace or --session")
    if keep and not has_trace:
        raise UserError("--keep records what a trace shows: give one with --trace or --session")
    submits = audit_token is not None and (used or missed or not has_trace)
    with open_library(db, writable=keep or bool(submits)) as library:
        if audit_token is not None and submits:
            library.submit_usage(audit_token, used=used, missed=missed)
        steps = _steps(library, trace, session_id) if has_trace else ()
        detected: tuple[UsageComparison, ...] = ()
        if has_trace and audit_token is not None:
            detected = (library.detect_usage(audit_token, steps, keep=keep),)
        elif has_trace:
            detected = library.detect_all_usage(steps, agent=agent, keep=keep)
    if not has_trace:
        click.echo("recorded")
    elif not detected:
        raise UserError(f"the trace has no result of a recall of {agent[:80]!a}; give the audit token")
    elif as_json:
        print_json(detected)
    else:
        _show(detected, step_count=len(steps))


def _steps(library: "Library", trace: Path | None, session_id: str | None) -> "Trace":
    from holdfast.runtime.instructions.traces import read_trace_file

    if trace is not None and session_id is not None:
        raise UserError("give only one of --trace and --session")
    if trace is not None:
        return read_trace_file(trace)
    steps = library.session_trace(session_id or "")
    if not steps:
        raise UserError(f"this store has no messages of session {session_id!r}; see `holdfast sessions list`")
    return steps


def _show(usages: "tuple[UsageComparison, ...]", *, step_count: int) -> None:
    from holdfast.cli.tables import print_table

    for usage in usages:
        click.echo(f"{usage.audit_token} {' '.join(usage.intent.split())[:40]!r}")
        by_name = {unit.name: unit for unit in usage.detected}
        names = dict.fromkeys((*usage.loaded, *(usage.reported_used or ()), *(usage.reported_missed or ()), *by_name))
        print_table(
            ("unit", "loaded", "reported", "detected"),
            [
                (name, _load_position(usage, name), _reported(usage, name), _evidence(usage, by_name.get(name)))
                for name in names
            ],
        )
        click.echo("")
    recorded = sum(usage.is_stored for usage in usages)
    rest = "" if recorded == len(usages) else "; --keep records the others"
    click.echo(
        f"{format_count(len(usages), 'recall')} in {format_count(step_count, 'step')}, {recorded} recorded{rest}"
    )


def _load_position(usage: "UsageComparison", name: str) -> str:
    return str(usage.loaded.index(name) + 1) if name in usage.loaded else "-"


def _reported(usage: "UsageComparison", name: str) -> str:
    if usage.reported_used is None or usage.reported_missed is None:
        return "not yet"
    return "used" if name in usage.reported_used else "missed" if name in usage.reported_missed else "-"


def _evidence(usage: "UsageComparison", unit: "DetectedUnit | None") -> str:
    if unit is None:
        return "-"
    places = ", ".join(f"{evidence.kind} (step {evidence.step})" for evidence in unit.evidence)
    return f"{'used' if unit.name in usage.loaded else 'missed'}: {places}"
