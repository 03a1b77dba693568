"""Shared by the commands that inspect a request file: reading it, pricing it, exiting with 2 on bad input."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.format import replace_unprintable
from holdfast.clock import system_clock
from holdfast.errors import HoldfastError
from holdfast.ledger.requests.format import format_usd_exact as format_usd_exact
from holdfast.ledger.requests.format import strip_control_characters as strip_control_characters

if TYPE_CHECKING:
    from holdfast.catalog.schema import Price
    from holdfast.ledger.requests.parse import ParsedRequest

FILE_BYTES_MAX = 32 * 1024 * 1024


class BadInputError(click.ClickException):
    """The input cannot be read or understood: exit status 2. Status 1 means that it was checked and has a problem."""

    exit_code = 2

    def show(self, file: object = None) -> None:
        click.echo(f"holdfast: {replace_unprintable(self.message)}", err=True)


@contextmanager
def convert_to_bad_input() -> Iterator[None]:
    """Turn every Holdfast error raised inside into BadInput."""
    try:
        yield
    except HoldfastError as error:
        raise BadInputError(str(error)) from None


def read_request_file(path: Path, model: str | None) -> "ParsedRequest":
    """Read and decode a request file; every failure becomes a one-line BadInput that names the file."""
    from holdfast.catalog.lookup import apply_model_overrides, shipped_models
    from holdfast.ledger.requests.parse import parse_request
    from holdfast.runtime.config import load_config

    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror or error}") from None
    if len(raw) > FILE_BYTES_MAX:
        raise BadInputError(
            f"{path}: the file has more than {FILE_BYTES_MAX} bytes; no provider accepts such a request"
        )
    with convert_to_bad_input():
        models = apply_model_overrides(shipped_models(), load_config(os.environ, workspace=Path.cwd()).models)
    try:
        return parse_request(raw, model=model, models=models)
    except HoldfastError as error:
        raise BadInputError(f"{path}: {error}") from None


def get_current_price(request: "ParsedRequest") -> "Price | None":
    """Today's price of the request's model; None if the catalog has none."""
    from holdfast.catalog.lookup import price_at, utc_date

    row = request.row
    if row is None or not row.prices:
        return None
    return price_at(row, utc_date(system_clock()), request.buffer.tokens_total)
