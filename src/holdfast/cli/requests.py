"""Commands that inspect a request file, and exit with 2 on bad input: explain, diff and doctor."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click
import msgspec

from holdfast.cli.format import format_count, print_json, replace_unprintable
from holdfast.cli.open_store import load_configured_models
from holdfast.cli.options import json_option
from holdfast.clock import system_clock
from holdfast.errors import HoldfastError
from holdfast.ledger.requests.format import format_difference, format_usd_exact, strip_control_characters

if TYPE_CHECKING:
    from holdfast.catalog.schema import Price
    from holdfast.ledger.cache.change_cause import VolatileString
    from holdfast.ledger.cache.prefix_diff import PrefixDifference, RequestComparison, SectionComparison
    from holdfast.ledger.requests.explain import ExplainedBlock, ExplainedBreakpoint, ExplainedLayer, RequestExplanation
    from holdfast.ledger.requests.parse import ParsedRequest
    from holdfast.runtime.doctor.probe import Instability, StabilityReport

FILE_BYTES_MAX = 32 * 1024 * 1024


class BadInputError(click.ClickException):
    """The input cannot be read or understood: exit status 2. Status 1 means that it was checked and has a problem."""

    exit_code = 2

    def show(self, file: IO[str] | None = None) -> None:
        click.echo(f"holdfast: {replace_unprintable(self.message)}", file=file, err=True)


@contextmanager
def convert_to_bad_input() -> Iterator[None]:
    """Turn every Holdfast error raised inside into BadInputError."""
    try:
        yield
    except HoldfastError as error:
        raise BadInputError(str(error)) from None


def read_request_file(path: Path, model: str | None) -> "ParsedRequest":
    """Read and decode a request file; every failure becomes a one-line BadInputError that names the file."""
    from holdfast.ledger.requests.parse import parse_request

    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror or error}") from None
    if len(raw) > FILE_BYTES_MAX:
        raise BadInputError(f"{path}: more than {FILE_BYTES_MAX} bytes; no provider accepts such a request")
    with convert_to_bad_input():
        models = load_configured_models()
    try:
        return parse_request(raw, model=model, models=models)
    except HoldfastError as error:
        raise BadInputError(f"{path}: {error}") from None


def get_current_price(request: "ParsedRequest") -> "Price | None":
    """Today's price of the request's model; None if the catalog has none."""
    from holdfast.catalog.lookup import price_at, utc_date

    if request.row is None or not request.row.prices:
        return None
    return price_at(request.row, utc_date(system_clock()), request.buffer.tokens_total)


ROWS_MAX = 60
_BREAKPOINT_HEADINGS = ("TTL", "prefix tokens", "each later read saves", "expected saving")


@click.command("explain")
@click.argument("request_file", metavar="REQUEST.json", type=click.Path(path_type=Path))
@click.option("--model", help="provider:name, if the body does not name it or to explain it for another model.")
@json_option
def explain(request_file: Path, model: str | None, as_json: bool) -> None:
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
    _show_explanation(explained)


def _show_explanation(explained: "RequestExplanation") -> None:
    from holdfast.cli.tables import print_table, print_text

    click.echo(strip_control_characters(f"{explained.model} ({explained.detected_by}), cache: {explained.cache}"))
    floor = "" if explained.floor_tokens is None else f"; the floor is {explained.floor_tokens}"
    click.echo(f"{format_count(explained.tokens, 'token')}, estimated{floor}\n")
    change_headings = ("a change rewrites", "and costs")
    layer_headings = ("layer", "expected stability", "blocks", "tokens", *change_headings)
    print_table(layer_headings, map(_layer_row, explained.layers))
    click.echo("")
    headings = ("block", "section", "expected stability", "tokens", "digest", *change_headings)
    rows, left_out = _cut_middle(explained.blocks)
    print_table(headings, map(_block_row, rows), spare=("digest", "section"))
    if left_out:
        click.echo(f"{left_out} blocks in the middle are not shown; --json has all")
    for title, breakpoints in (
        ("cache breakpoints", explained.breakpoints),
        ("cache breakpoints that Holdfast would add", explained.planned_breakpoints),
    ):
        if breakpoints:
            click.echo(f"\n{title}:")
            print_table(("block", *_BREAKPOINT_HEADINGS), map(_breakpoint_row, breakpoints))
            for breakpoint in breakpoints:
                print_text(strip_control_characters(f"{breakpoint.path}: {breakpoint.reason}"))
    if explained.padding or explained.notes:
        click.echo("")
    if explained.padding:
        print_text(f"padding: {strip_control_characters(explained.padding)}")
    for note in explained.notes:
        print_text(f"note: {strip_control_characters(note)}")


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
    return breakpoint.path, breakpoint.ttl, tokens, saves, expected


@click.command("diff")
@click.argument("before_file", metavar="A.json", type=click.Path(path_type=Path))
@click.argument("after_file", metavar="B.json", type=click.Path(path_type=Path))
@click.option("--model", help="provider:name, if the bodies do not name it.")
@json_option
def diff(before_file: Path, after_file: Path, model: str | None, as_json: bool) -> None:
    """Show the first cacheable byte at which request B differs from request A.

    Exit status: 0 if B's prompt starts with all of A's, 1 if the prefix broke, 2 on bad input.
    """
    from holdfast.ledger.cache.prefix_diff import compare_requests

    before, after = read_request_file(before_file, model), read_request_file(after_file, model)
    with convert_to_bad_input():
        comparison = compare_requests(before, after, get_current_price(before))
    if as_json:
        fields = {**msgspec.to_builtins(comparison), "tokens_lost": comparison.tokens_lost}
        print_json(fields)
    else:
        _show_comparison(comparison)
    if not comparison.is_prefix_unchanged:
        raise click.exceptions.Exit(1)


def _show_comparison(comparison: "RequestComparison") -> None:
    from holdfast.cli.tables import print_text

    result = "held" if comparison.is_prefix_unchanged else "broke"
    click.echo(f"{strip_control_characters(comparison.model)}: the prefix {result}")
    for changed in comparison.parameters:
        click.echo(f"{changed.name} changed: {changed.first_lost_section} and everything after it is lost")
    if comparison.difference:
        _show_difference(comparison.difference)
    for section in comparison.sections:
        click.echo(f"{section.section}: {_describe_section(section)}")
    print_text(
        f"{comparison.tokens_read} of {comparison.tokens_before} cached tokens (estimated) can still be read; "
        f"{comparison.tokens_lost} must be written again, for {format_usd_exact(comparison.lost_usd)} more"
    )
    for note in comparison.notes:
        print_text(f"note: {strip_control_characters(note)}")


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
def doctor(target: str, runs: int, model: str | None, as_json: bool) -> None:
    """Find what makes a prompt unstable. TARGET is module:function (which is run here) or a request file.

    Exit status: 0 if the prompt is stable, 1 if it is not, 2 on bad input.
    """
    if Path(target).exists() or ":" not in target:
        if not Path(target).exists():
            raise BadInputError(f"{target}: No such file or directory; write module:function for a function")
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
        from holdfast.cli.tables import print_text

        print_text("nothing in the tools, system prompt or first message looks likely to change between requests")
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
        _show_diagnosis(diagnosis)
    if diagnosis.findings:
        raise click.exceptions.Exit(1)


def _show_diagnosis(diagnosis: "StabilityReport") -> None:
    from holdfast.cli.tables import print_text

    verdict = "is unstable" if diagnosis.findings else "is stable"
    size = format_count(diagnosis.size_bytes, "byte")
    click.echo(f"{diagnosis.target} {verdict}: {format_count(diagnosis.runs, 'run')}, {size}")
    for finding in diagnosis.findings:
        print_text(f"{_where(finding)}: {finding.cause}: {finding.advice}")
        if finding.detail:
            click.echo(f"  {strip_control_characters(finding.detail)}")
        for sign, excerpt in zip("-+", finding.excerpts, strict=False):
            click.echo(f"  {sign}{strip_control_characters(excerpt)}")
    for note in diagnosis.notes:
        print_text(f"note: {strip_control_characters(note)}")


def _where(finding: "Instability") -> str:
    return f"byte {finding.byte}" + (f", {finding.path}" if finding.path else "")
