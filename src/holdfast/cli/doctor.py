"""`holdfast doctor`: what makes a prompt differ from run to run, in a function or in a request file."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.counts import counted

if TYPE_CHECKING:
    from holdfast.ledger.volatility import VolatileString
    from holdfast.runtime.probing import Diagnosis, Finding


@click.command("doctor")
@click.argument("target")
@click.option("--runs", type=click.IntRange(2, 20), default=3, show_default=True, help="How often chances are tried.")
@click.option("--model", help="provider:name, where a request file does not tell.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(target: str, runs: int, model: str | None, as_json: bool) -> None:
    """Find what makes a prompt unstable. TARGET is module:function, run here, or a request file.

    Ends with 0 where it is stable, with 1 where it is not, with 2 on bad input.
    """
    if Path(target).exists() or ":" not in target:
        _look_at_file(Path(target), model, as_json)
    else:
        _look_at_function(target, runs, as_json)


def _look_at_file(path: Path, model: str | None, as_json: bool) -> None:
    import msgspec

    from holdfast.cli.requests import price_now, read_request_file
    from holdfast.ledger.volatility import volatile_strings

    request = read_request_file(path, model)
    found = volatile_strings(request, price_now(request))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode({"target": str(path), "volatile": found})).decode())
    elif not found:
        click.echo("nothing in tools, system prompt and first message looks as if it changed between requests")
    else:
        _show_strings(found)
    if found:
        raise click.exceptions.Exit(1)


def _show_strings(found: "tuple[VolatileString, ...]") -> None:
    from holdfast.cli.requests import dollars, printable

    for one in found:
        click.echo(f"{one.path}, byte {one.byte}: {one.what}: {printable(one.shown)}")
        again = f"{counted(one.rewritten_tokens, 'token')} (estimated)"
        click.echo(
            f"  in the next request it may be another; then {again} "
            f"are written again, for {dollars(one.rewritten_usd)} more"
        )


def _look_at_function(target: str, runs: int, as_json: bool) -> None:
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
