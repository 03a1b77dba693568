"""`holdfast instructions coverage` and `encoder`: how well units are found, and by what."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.counts import counted
from holdfast.cli.instructions_opened import agent_option, db_option, json_option, opened, print_json

NOTHING = "words and links alone"
AGENTS_SHOWN_MAX = 10
MENDING = "mend their triggers (`holdfast instructions check FOLDER` names the units), or use it all the same: --accept"

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.instructions.comparing import CoverageDiff, Measured
    from holdfast.instructions.values import FailedProbe


@click.command("coverage")
@agent_option
@db_option
@click.option("--against", metavar="VERSION", help="Say what is different from this version of the manifest.")
@json_option
def coverage(agent: str, db: str | None, against: str | None, as_json: bool) -> None:
    """Ask for each unit in other words than its intents, as publishing does; end with 1 where too few find one.

    With --against, end with 1 where a unit is found by fewer than in that version.
    """
    with opened(db) as library:
        found = library.coverage(agent) if against is None else library.coverage_diff(against, agent=agent)
    if isinstance(found, tuple):
        passed = all(one.coverage.passed for one in found)
        told: dict[str, object] = {"passed": passed, "units": [one.coverage for one in found]}
    else:
        passed = found.passed
        told = {"passed": passed, "diff": found}
    if as_json:
        print_json(told)
    elif isinstance(found, tuple):
        _show(found)
    else:
        _show_diff(found)
    if not passed:
        raise click.exceptions.Exit(1)


@click.command("encoder")
@db_option
@click.option("--accept", is_flag=True, help="Use the configured one from now on, even where manifests fail with it.")
@json_option
def encoder(db: str | None, accept: bool, as_json: bool) -> None:
    """Show which encoder is configured and which is in use; end with 1 where it is not the same.

    Another encoder is measured with every manifest, and used from then on if all pass. Where one fails, mend its
    triggers, or accept that its units are found less often. A service goes over to it when it starts again.
    """
    with opened(db, accept_encoder=accept, certify_again=True) as library:
        told = library.encoder
    used = not told.failing or accept
    if as_json:
        print_json(told)
    else:
        click.echo(f"configured: {told.configured or NOTHING}")
        click.echo(f"in use:     {told.in_use or NOTHING}{' (from now on)' if told.switched else ''}")
        if told.failing:
            agents = ", ".join(told.failing[:AGENTS_SHOWN_MAX])
            more = "" if len(told.failing) <= AGENTS_SHOWN_MAX else ", ..."
            click.echo(f"with the configured one {counted(len(told.failing), 'manifest')} failed: {agents}{more}")
            click.echo("accepted; a service takes it when it starts again" if accept else MENDING)
    if not used:
        raise click.exceptions.Exit(1)


def _show(found: "Sequence[Measured]") -> None:
    for one in found:
        asked = counted(len(one.asked), "paraphrase")
        share = _percent(one.coverage.coverage_pct)
        click.echo(f"{'ok  ' if one.coverage.passed else 'FAIL'} {one.coverage.unit}: {share} of {asked}")
        _show_failures("       {query} finds {found}", one.coverage.failures)


def _show_diff(diff: "CoverageDiff") -> None:
    click.echo(f"{diff.earlier_version} as it was published, and {diff.later_version} as it is now")
    click.echo(f"encoder: {diff.embedding_model_version}")
    same = 0
    for one in diff.units:
        if one.verdict == "same" and not (one.found or one.lost or one.failing):
            same += 1
            continue
        shares = {"new": _percent(one.after), "gone": f"was {_percent(one.before)}"}
        share = shares.get(one.verdict, f"{_percent(one.before)} -> {_percent(one.after)}")
        click.echo(f"{one.verdict:<7} {one.unit}: {share}")
        for query in one.found:
            click.echo(f"  + {query!r} finds it now")
        _show_failures("  - {query} finds {found} now", one.lost)
        _show_failures("  ! {query} is new and finds {found}", one.failing)
    if same:
        click.echo(f"{counted(same, 'unit')} as before")


def _show_failures(line: str, failures: "Sequence[FailedProbe]") -> None:
    for one in failures:
        click.echo(line.format(query=repr(one.query), found=one.taken_by or "nothing"))


def _percent(share: float | None) -> str:
    return "not known" if share is None else f"{share:.0%}"
