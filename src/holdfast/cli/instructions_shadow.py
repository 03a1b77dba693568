"""`holdfast instructions shadow`: whether lazy recall would have sufficed in turns that had all instructions."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.counts import counted
from holdfast.cli.instructions_opened import agent_option, db_option, json_option, opened, print_json

if TYPE_CHECKING:
    from holdfast.instructions.shadowing import ShadowReport


@click.command("shadow")
@agent_option
@db_option
@click.option("--days", type=click.IntRange(1, 3650), default=30, show_default=True)
@json_option
def shadow(agent: str, db: str | None, days: int, as_json: bool) -> None:
    """Check whether lazy recall would have sufficed in the shadow turns of the current manifest.

    Exits with status 1 if not. Turns are recorded by `recall --shadow` and `usage`, by a session with
    `for_session(shadow=True)`, or over HTTP.
    """
    with opened(db) as library:
        report = library.shadow_report(agent, days=days)
    if as_json:
        print_json({"passed": report.passed, "report": report})
    else:
        _show(report)
    if not report.passed:
        raise click.exceptions.Exit(1)


def _show(report: "ShadowReport") -> None:
    from holdfast.instructions.shadowing import COVERAGE_MIN

    turns = counted(report.turns, "turn")
    click.echo(f"{turns} in shadow mode with {report.manifest_version}, {report.told} with reported usage")
    click.echo(f"coverage: {_percent(report.coverage)} (at least {COVERAGE_MIN:.0%})")
    of_eager = f"{report.lazy_tokens} of {report.eager_tokens} per turn"
    click.echo(f"tokens: {_percent(report.share)}, {of_eager} (below {report.share_max:.0%})")
    click.echo(f"regressions: {len(report.regressions)} (none allowed)")
    for regression in report.regressions:
        click.echo(f"  {regression.intent[:200]!r} without {', '.join(regression.without)}")
    for name, times in report.missed_units.items():
        click.echo(f"missed: {name}, {counted(times, 'time')}")
    if report.passed:
        click.echo("lazy recall would have sufficed")
    for shortfall in report.shortfalls:
        click.echo(f"not yet: {shortfall}")


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"
