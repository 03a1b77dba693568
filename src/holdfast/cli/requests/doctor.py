"""`holdfast doctor`: finds what makes a prompt differ from run to run, in a function or a request file."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.format import format_count, print_json
from holdfast.cli.options import json_option
from holdfast.cli.requests.request_file import convert_to_bad_input, get_current_price, read_request_file
from holdfast.ledger.requests.format import format_usd_exact, strip_control_characters

if TYPE_CHECKING:
    from holdfast.ledger.cache.change_cause import VolatileString
    from holdfast.runtime.doctor.probe import Instability, StabilityReport


@click.command("doctor")
@click.argument("target")
@click.option(
    "--runs",
    type=click.IntRange(2, 20),
    default=3,
    show_default=True,
    help="How often to repeat checks that depend on chance.",
)
@click.option("--model", help="provider:name, if a request file does not name it.")
@json_option
def command(target: str, runs: int, model: str | None, as_json: bool) -> None:
    """Find what makes a prompt unstable. TARGET is module:function (which is run here) or a request file.

    Exit status: 0 if the prompt is stable, 1 if it is not, 2 on bad input.
    """
    if Path(target).exists() or ":" not in target:
        _check_file(Path(target), model, as_json)
    else:
        _check_function(target, runs, as_json)


def _check_file(path: Path, model: str | None, as_json: bool) -> None:
    from holdfast.ledger.cache.change_cause import find_volatile_strings

    request = read_request_file(path, model)
    strings = find_volatile_strings(request, get_current_price(request))
    if as_json:
        print_json({"target": str(path), "volatile": strings})
    elif not strings:
        click.echo("nothing in the tools, system prompt or first message looks likely to change between requests")
    else:
        _show_strings(strings)
    if strings:
        raise click.exceptions.Exit(1)


def _show_strings(strings: "tuple[VolatileString, ...]") -> None:
    for string in strings:
        click.echo(f"{string.path}, byte {string.byte}: {string.kind}: {strip_control_characters(string.excerpt)}")
        rewritten = f"{format_count(string.rewritten_tokens, 'token')} (estimated)"
        click.echo(
            f"  if it differs in the next request, {rewritten} "
            f"must be written again, for {format_usd_exact(string.rewritten_usd)} more"
        )


def _check_function(target: str, runs: int, as_json: bool) -> None:
    from holdfast.runtime.doctor.probe import TargetRunner, diagnose_target

    with convert_to_bad_input():
        diagnosis = diagnose_target(TargetRunner(target, os.environ), runs=runs)
    if as_json:
        print_json(diagnosis)
    else:
        _show(diagnosis)
    if diagnosis.findings:
        raise click.exceptions.Exit(1)


def _show(diagnosis: "StabilityReport") -> None:
    verdict = "is unstable" if diagnosis.findings else "is stable"
    size = format_count(diagnosis.size_bytes, "byte")
    click.echo(f"{diagnosis.target} {verdict}: {format_count(diagnosis.runs, 'run')}, {size}")
    for finding in diagnosis.findings:
        click.echo(f"{_where(finding)}: {finding.cause}: {finding.advice}")
        if finding.detail:
            click.echo(f"  {strip_control_characters(finding.detail)}")
        for sign, excerpt in zip("-+", finding.excerpts, strict=False):
            click.echo(f"  {sign}{strip_control_characters(excerpt)}")
    for note in diagnosis.notes:
        click.echo(f"note: {strip_control_characters(note)}")


def _where(finding: "Instability") -> str:
    return f"byte {finding.byte}" + (f", {finding.path}" if finding.path else "")
