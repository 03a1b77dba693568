"""`holdfast models`: the models that the catalog knows, with their cache rules, prices, source and date."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.format import format_count, print_json
from holdfast.cli.open_store import load_configured_models
from holdfast.cli.options import json_option
from holdfast.clock import system_clock
from holdfast.errors import UserError

if TYPE_CHECKING:
    import datetime

    from holdfast.catalog.lookup import Models
    from holdfast.catalog.schema import Model

TERMINAL_ROWS_MAX = 100
"""A longer table scrolls its own beginning away; a pipe gets all rows."""


@click.command("models")
@click.option("--search", metavar="TEXT", help="Only models with all these words in their name, or `provider:name`.")
@click.option("--provider", metavar="NAME", help="Only models of this provider, such as openrouter or bedrock.")
@json_option
def command(search: str | None, provider: str | None, as_json: bool) -> None:
    """List models with cache rules and prices; without options, those whose rules were checked by hand.

    Prices are US dollars per million tokens on the standard tier. `~` marks cache rules that are assumed from the
    model's family or maker, `+` prices that rise for long prompts. A single match is shown with its source, as in JSON.
    """
    from holdfast.catalog.lookup import list_known_models, utc_date

    models, today = load_configured_models(), utc_date(system_clock())
    if search is None and provider is None:
        rows = list(models.values())
    else:
        known = list(list_known_models(models, provider and provider.lower()))
        if not known:
            providers = sorted({row.provider for row in list_known_models(models)})
            raise UserError(f"no model of the provider {provider!r} is known; use one of {', '.join(providers)}")
        words = (search or "").lower().split()
        rows = [row for row in known if all(word in row.id.lower() for word in words)]
        rows = rows or _resolve_exactly(search, models)
    if as_json:
        print_json([_describe(row, today) for row in rows])
    elif len(rows) == 1:
        _show_details(rows[0], today)
    else:
        _show_table(rows, today, is_whole=search is None and provider is None)


def _resolve_exactly(search: str | None, models: "Models") -> "list[Model]":
    """A name that no list contains but that a pattern matches, such as a dated snapshot or a Bedrock profile."""
    from holdfast.catalog.lookup import resolve_model

    provider, colon, name = (search or "").partition(":")
    if not (provider and name):
        hint = "" if colon else "; to look up the model of a request, write provider:name"
        raise UserError(f"no model matches{f' {search!r}' if search else ''}{hint}")
    return [resolve_model(provider, name, models)]


def _describe(row: "Model", today: "datetime.date") -> dict[str, object]:
    from holdfast.catalog.lookup import price_at

    return {
        "model": row.id,
        "cache": row.cache.kind,
        "floor_tokens": row.cache.tokens_min,
        "ttls_seconds": row.cache.ttls_seconds,
        "breakpoints_max": row.cache.breakpoints_max,
        "context_tokens_max": row.context_tokens_max,
        "output_tokens_max": row.output_tokens_max,
        "price": price_at(row, today, 0) if row.prices else None,
        "prices": row.prices,
        "assumed": row.assumed,
        "source": row.source,
        "checked_on": row.checked_on,
    }


def _show_table(rows: "Sequence[Model]", today: "datetime.date", *, is_whole: bool) -> None:
    from holdfast.catalog.price_list import load_price_list
    from holdfast.cli.tables import print_table

    shown = rows[:TERMINAL_ROWS_MAX] if sys.stdout.isatty() else rows
    headings = ("model", "input", "read", "write", "1h", "output", "floor", "TTLs", "checked")
    print_table(headings, (_table_row(row, today) for row in shown), spare=("checked", "1h"))
    if sys.stdout.isatty():
        click.echo("US dollars per million tokens; ~ is assumed, + rises with long prompts")
    if len(shown) < len(rows):
        click.echo(f"{format_count(len(rows) - len(shown), 'more model')}; narrow the list with --search TEXT")
    if is_whole:
        listed = load_price_list()
        count = sum(provider.count for provider in listed.providers.values())
        click.echo(
            f"{count:,} models of {len(listed.providers)} providers are priced by {listed.source} of {listed.dated};"
        )
        click.echo("--search TEXT and --provider NAME show them")


def _table_row(row: "Model", today: "datetime.date") -> tuple[str, ...]:
    rules = row.cache
    mark = "~" if "cache" in row.assumed else ""
    floor = "none" if rules.kind == "none" else f"{mark}{rules.tokens_min}"
    return (
        row.id,
        *_format_rates(row, today),
        floor,
        "/".join(rules.ttls_seconds),
        str(row.checked_on or ""),
    )


def _format_rates(row: "Model", today: "datetime.date") -> Iterable[str]:
    """Input, read, write, 1-hour write and output."""
    from holdfast.catalog.lookup import price_at

    if not row.prices:
        return ("unpriced", "", "", "", "")
    price = price_at(row, today, 0)
    longer = "+" if price_at(row, today, sys.maxsize).input != price.input else ""
    rates = (price.input, price.cache_read, price.cache_write_5m, price.cache_write_1h, price.output)
    return [f"{rate.normalize():f}{longer}" for rate in rates] if any(rates) else ("free", "", "", "", "")


def _show_details(row: "Model", today: "datetime.date") -> None:
    rules = row.cache
    rates = zip(("input", "cache read", "5m write", "1h write", "output"), _format_rates(row, today), strict=True)
    prices = ", ".join(f"{name} {rate}" for name, rate in rates if rate) if row.prices else "unpriced"
    ttls = ", ".join(f"{name} ({seconds} s)" for name, seconds in rules.ttls_seconds.items()) or "none known"
    breakpoints = f", at most {format_count(rules.breakpoints_max, 'breakpoint')}" if rules.breakpoints_max else ""
    floor = "" if rules.kind == "none" else f", floor {format_count(rules.tokens_min, 'token')}{breakpoints}"
    click.echo(row.id)
    click.echo(f"  prices   {prices}")
    click.echo(f"  cache    {rules.kind}{floor}")
    click.echo(f"  TTLs     {ttls}")
    click.echo(f"  limits   {row.context_tokens_max:,} tokens of context, {row.output_tokens_max:,} of output")
    click.echo(f"  assumed  {', '.join(row.assumed) or 'nothing'}")
    click.echo(f"  source   {row.source}")
    click.echo(f"  checked  {row.checked_on or 'never'}")
