"""`holdfast doctor`: finds what makes a prompt differ from run to run, in a function or a request file."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.counts import counted

if TYPE_CHECKING:
    from holdfast.ledger.volatility import VolatileString
    from holdfast.runtime.probing import Diagnosis, Finding


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
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(target: str, runs: int, model: str | None, as_json: bool) -> None:
    """Find what makes a prompt unstable. TARGET is module:function (which is run here) or a request file.

    Exit status: 0 if the prompt is stable, 1 if it is not, 2 on bad input.
    """
    if Path(target).exists() or ":" not in target:
        _check_file(Path(target), model, as_json)
    else:
        _check_function(target, runs, as_json)


def _check_file(path: Path, model: str | None, as_json: bool) -> None:
    import msgspec

    from holdfast.cli.requests import price_now, read_request_file
    from holdfast.ledger.volatility import volatile_strings

    request = read_request_file(path, model)
    strings = volatile_strings(request, price_now(request))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode({"target": str(path), "volatile": strings})).decode())
    elif not strings:
        click.echo("nothing in the tools, system prompt or first message looks likely to change between requests")
    else:
        _show_strings(strings)
    if strings:
        raise click.exceptions.Exit(1)


def _show_strings(strings: "tuple[VolatileString, ...]") -> None:
    from holdfast.cli.requests import dollars, printable

    for string in strings:
        click.echo(f"{string.path}, byte {string.byte}: {string.what}: {printable(string.shown)}")
        rewritten = f"{counted(string.rewritten_tokens, 'token')} (estimated)"
        click.echo(
            f"  if it differs in the next request, {rewritten} "
            f"must be written again, for {dollars(string.rewritten_usd)} more"
        )


def _check_function(target: str, runs: int, as_json: bool) -> None:
    import os

    import msgspec

    from holdfast.cli.requests import bad_input
    from holdfast.runtime.probing import Prober, diagnose

    with bad_input():
        diagnosis = diagnose(Prober(target, os.environ), runs=runs)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(diagnosis)).decode())
    else:
        _show(diagnosis)
    if diagnosis.findings:
        raise click.exceptions.Exit(1)


def _show(diagnosis: "Diagnosis") -> None:
    from holdfast.cli.requests import printable

    verdict = "is unstable" if diagnosis.findings else "is stable"
    click.echo(
        f"{diagnosis.target} {verdict}: {counted(diagnosis.runs, 'run')}, {counted(diagnosis.size_bytes, 'byte')}"
    )
    for finding in diagnosis.findings:
        click.echo(f"{_where(finding)}: {finding.cause}: {finding.advice}")
        if finding.detail:
            click.echo(f"  {printable(finding.detail)}")
        for sign, excerpt in zip("-+", finding.excerpts, strict=False):
            click.echo(f"  {sign}{printable(excerpt)}")
    for note in diagnosis.notes:
        click.echo(f"note: {printable(note)}")


def _where(finding: "Finding") -> str:
    return f"byte {finding.byte}" + (f", {finding.path}" if finding.path else "")
