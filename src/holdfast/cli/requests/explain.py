"""`holdfast explain`: the blocks of a request, its cache breakpoints, and what a change to each block would cost."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.format import format_count, print_json
from holdfast.cli.options import json_option
from holdfast.cli.requests.request_file import get_current_price, read_request_file
from holdfast.clock import system_clock
from holdfast.ledger.requests.format import format_usd_exact, strip_control_characters

if TYPE_CHECKING:
    from holdfast.ledger.requests.explain import ExplainedBlock, ExplainedBreakpoint, ExplainedLayer, RequestExplanation

ROWS_MAX = 60
_BREAKPOINT_HEADINGS = ("TTL", "reason", "prefix tokens", "each later read saves", "expected saving")


@click.command("explain")
@click.argument("request_file", metavar="REQUEST.json", type=click.Path(path_type=Path))
@click.option("--model", help="provider:name, if the body does not name it or to explain it for another model.")
@json_option
def command(request_file: Path, model: str | None, as_json: bool) -> None:
    """Show what a request consists of, where its cache breakpoints are, and what a change would cost."""
    from holdfast.ledger.requests.explain import explain_request
    from holdfast.runtime.padding import explain_padding

    request = read_request_file(request_file, model)
    explained = explain_request(
        request, get_current_price(request), padding=explain_padding(request, at=system_clock())
    )
    if as_json:
        print_json(explained)
        return
    _show(explained)


def _show(explained: "RequestExplanation") -> None:
    from holdfast.cli.tables import print_table

    click.echo(strip_control_characters(f"{explained.model} ({explained.detected_by}), cache: {explained.cache}"))
    floor = "" if explained.floor_tokens is None else f"; the floor is {explained.floor_tokens}"
    click.echo(f"{format_count(explained.tokens, 'token')}, estimated{floor}\n")
    change_headings = ("a change rewrites", "and costs")
    layer_headings = ("layer", "expected stability", "blocks", "tokens", *change_headings)
    print_table(layer_headings, map(_layer_row, explained.layers))
    click.echo("")
    headings = ("block", "section", "expected stability", "tokens", "digest", *change_headings)
    rows, left_out = _cut_middle(explained.blocks)
    print_table(headings, map(_block_row, rows))
    if left_out:
        click.echo(f"{left_out} blocks in the middle are not shown; --json has all")
    for title, breakpoints in (
        ("cache breakpoints", explained.breakpoints),
        ("cache breakpoints that Holdfast would add", explained.planned_breakpoints),
    ):
        if breakpoints:
            click.echo("")
            print_table((title, *_BREAKPOINT_HEADINGS), map(_breakpoint_row, breakpoints))
    if explained.padding or explained.notes:
        click.echo("")
    if explained.padding:
        click.echo(f"padding: {strip_control_characters(explained.padding)}")
    for note in explained.notes:
        click.echo(f"note: {strip_control_characters(note)}")


def _cut_middle(blocks: "tuple[ExplainedBlock, ...]") -> "tuple[tuple[ExplainedBlock, ...], int]":
    if len(blocks) <= ROWS_MAX:
        return blocks, 0
    half = ROWS_MAX // 2
    return blocks[:half] + blocks[-half:], len(blocks) - 2 * half


def _layer_row(layer: "ExplainedLayer") -> tuple[str, ...]:
    counts = (str(layer.blocks), str(layer.tokens), format_count(layer.rewritten_tokens, "token"))
    return layer.name, layer.stability, *counts, format_usd_exact(layer.rewritten_usd)


def _block_row(block: "ExplainedBlock") -> tuple[str, ...]:
    rewritten = (format_count(block.rewritten_tokens, "token"), format_usd_exact(block.rewritten_usd))
    return block.path, block.section, block.stability, str(block.tokens), block.digest, *rewritten


def _breakpoint_row(breakpoint: "ExplainedBreakpoint") -> tuple[str, ...]:
    saves = "nothing: below the floor" if breakpoint.is_below_floor else format_usd_exact(breakpoint.saving_usd)
    tokens, expected = str(breakpoint.prefix_tokens), format_usd_exact(breakpoint.expected_usd)
    return breakpoint.path, breakpoint.ttl, breakpoint.reason, tokens, saves, expected
