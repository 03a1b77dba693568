"""`holdfast instructions coverage` and `encoder`: how reliably units are found, and with which encoder."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.format import format_count, print_json
from holdfast.cli.instructions.open import agent_option, open_library, open_library_or_service, url_option
from holdfast.cli.options import db_option, json_option

NO_ENCODER = "words and links only"
AGENTS_SHOWN_MAX = 10
FAILING_ADVICE = (
    "fix their triggers (`holdfast instructions check FOLDER` names the units), or pass --accept to use it anyway"
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.instructions.coverage.compare import CoverageDiff, MeasuredUnit
    from holdfast.instructions.models import FailedProbe


@click.command("coverage")
@agent_option
@db_option
@url_option
@click.option("--against", metavar="VERSION", help="Compare with this version of the manifest.")
@json_option
def coverage(*, agent: str, db: str | None, url: str | None, against: str | None, as_json: bool) -> None:
    """Query each unit with paraphrases of its intents, as publishing does.

    Exits with status 1 if too few paraphrases find a unit; with --against, if fewer find it than in that version.
    """
    with open_library_or_service(db, url) as library:
        result = library.coverage(agent) if against is None else library.coverage_diff(against, agent=agent)
    if isinstance(result, tuple):
        passed = all(measured.coverage.passed for measured in result)
        document: dict[str, object] = {"passed": passed, "units": [measured.coverage for measured in result]}
    else:
        passed = result.passed
        document = {"passed": passed, "diff": result}
    if as_json:
        print_json(document)
    elif isinstance(result, tuple):
        _show(result)
    else:
        _show_diff(result)
    if not passed:
        raise click.exceptions.Exit(1)


@click.command("encoder")
@db_option
@click.option("--accept", is_flag=True, help="Use the configured encoder from now on, even if manifests fail with it.")
@json_option
def encoder(db: str | None, accept: bool, as_json: bool) -> None:
    """Show which encoder is configured and which is in use; exit with status 1 if they differ.

    A newly configured encoder is measured against every manifest and used from then on if all pass. If one fails, fix
    its triggers or accept that its units are found less often. A service switches when it restarts.
    """
    with open_library(db, writable=True, accept_encoder=accept, certify_again=True) as library:
        status = library.encoder
    is_used = not status.failing_agents or accept
    if as_json:
        print_json(status)
    else:
        click.echo(f"configured: {status.configured or NO_ENCODER}")
        click.echo(f"in use:     {status.active or NO_ENCODER}{' (from now on)' if status.is_switched else ''}")
        if status.failing_agents:
            agents = ", ".join(status.failing_agents[:AGENTS_SHOWN_MAX])
            more = "" if len(status.failing_agents) <= AGENTS_SHOWN_MAX else ", ..."
            failing = format_count(len(status.failing_agents), "manifest")
            click.echo(f"{failing} failed with the configured encoder: {agents}{more}")
            click.echo("accepted; a service switches when it restarts" if accept else FAILING_ADVICE)
    if not is_used:
        raise click.exceptions.Exit(1)


def _show(units: "Sequence[MeasuredUnit]") -> None:
    for unit in units:
        paraphrases = format_count(len(unit.queries), "paraphrase")
        share = _percent(unit.coverage.coverage_pct)
        click.echo(f"{'ok  ' if unit.coverage.passed else 'FAIL'} {unit.coverage.unit}: {share} of {paraphrases}")
        _show_failures("       {query} finds {found}", unit.coverage.failures)


def _show_diff(diff: "CoverageDiff") -> None:
    click.echo(f"{diff.earlier_version} as published, compared with {diff.later_version} as it is now")
    click.echo(f"encoder: {diff.embedding_model_version}")
    same = 0
    for unit in diff.units:
        if unit.verdict == "same" and not (unit.newly_found or unit.newly_missed or unit.failing):
            same += 1
            continue
        shares = {"new": _percent(unit.after), "gone": f"was {_percent(unit.before)}"}
        share = shares.get(unit.verdict, f"{_percent(unit.before)} -> {_percent(unit.after)}")
        click.echo(f"{unit.verdict:<7} {unit.unit}: {share}")
        for query in unit.newly_found:
            click.echo(f"  + {query!r} finds it now")
        _show_failures("  - {query} finds {found} now", unit.newly_missed)
        _show_failures("  ! {query} is new and finds {found}", unit.failing)
    if same:
        click.echo(f"{format_count(same, 'unit')} unchanged")


def _show_failures(line: str, failures: "Sequence[FailedProbe]") -> None:
    for failure in failures:
        click.echo(line.format(query=repr(failure.query), found=failure.found_instead or "nothing"))


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.0%}"
