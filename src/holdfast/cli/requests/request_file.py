"""Shared by the commands that inspect a request file: reading it, pricing it, exiting with 2 on bad input."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from holdfast.cli.format import replace_unprintable
from holdfast.cli.open_store import load_configured_models
from holdfast.clock import system_clock
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.catalog.schema import Price
    from holdfast.ledger.requests.parse import ParsedRequest

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
