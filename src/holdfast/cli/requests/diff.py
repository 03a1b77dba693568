"""`holdfast diff`: where the second of two requests breaks the prefix of the first, and what that costs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.format import print_json
from holdfast.cli.options import json_option
from holdfast.cli.requests.request_file import convert_to_bad_input, get_current_price, read_request_file
from holdfast.ledger.requests.format import format_difference, format_usd_exact, strip_control_characters

if TYPE_CHECKING:
    from holdfast.ledger.cache.prefix_diff import PrefixDifference, RequestComparison, SectionComparison


@click.command("diff")
@click.argument("before_file", metavar="A.json", type=click.Path(path_type=Path))
@click.argument("after_file", metavar="B.json", type=click.Path(path_type=Path))
@click.option("--model", help="provider:name, if the bodies do not name it.")
@json_option
def command(before_file: Path, after_file: Path, model: str | None, as_json: bool) -> None:
    """Show the first cacheable byte at which request B differs from request A.

    Exit status: 0 if B's prompt starts with all of A's, 1 if the prefix broke, 2 on bad input.
    """
    import msgspec

    from holdfast.ledger.cache.prefix_diff import compare_requests

    before, after = read_request_file(before_file, model), read_request_file(after_file, model)
    with convert_to_bad_input():
        comparison = compare_requests(before, after, get_current_price(before))
    if as_json:
        fields = {**msgspec.to_builtins(comparison), "tokens_lost": comparison.tokens_lost}
        print_json(fields)
    else:
        _show(comparison)
    if not comparison.is_prefix_unchanged:
        raise click.exceptions.Exit(1)


def _show(comparison: "RequestComparison") -> None:
    result = "held" if comparison.is_prefix_unchanged else "broke"
    click.echo(f"{strip_control_characters(comparison.model)}: the prefix {result}")
    for changed in comparison.parameters:
        click.echo(f"{changed.name} changed: {changed.first_lost_section} and everything after it is lost")
    if comparison.difference:
        _show_difference(comparison.difference)
    for section in comparison.sections:
        click.echo(f"{section.section}: {_describe_section(section)}")
    click.echo(
        f"{comparison.tokens_read} of {comparison.tokens_before} cached tokens (estimated) can still be read; "
        f"{comparison.tokens_lost} must be written again, for {format_usd_exact(comparison.lost_usd)} more"
    )
    for note in comparison.notes:
        click.echo(f"note: {strip_control_characters(note)}")


def _show_difference(difference: "PrefixDifference") -> None:
    click.echo(format_difference(difference, after="B"))
    for line in difference.diff:
        click.echo(f"  {strip_control_characters(line)}")


def _describe_section(section: "SectionComparison") -> str:
    if section.is_unchanged:
        return "still cached"
    return (
        "lost" if not section.blocks_unchanged else f"lost from block {section.blocks_unchanged} of {section.blocks} on"
    )
