"""Options that many commands share."""

import datetime
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from holdfast.errors import UserError

UNIT_SECONDS = {"h": 3_600, "d": 86_400, "w": 604_800}
Command = TypeVar("Command", bound=Callable[..., Any] | click.Command)


class OptionValueError(UserError):
    """A value has not the form that its option takes: exit status 2, as for what click itself rejects."""


@contextmanager
def convert_to_option_error() -> Iterator[None]:
    """Turn a UserError about a value, which a lower layer checks, into OptionValueError."""
    try:
        yield
    except UserError as error:
        raise OptionValueError(str(error)) from error


db_option = click.option("--db", metavar="URL", help="Store to use instead of the configured one: a path or a URL.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
host_option = click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")


def port_option(default: int) -> Callable[[Command], Command]:
    help_text = "Port; 0 picks a free one."
    return click.option("--port", type=click.IntRange(0, 65535), default=default, show_default=True, help=help_text)


def workspace_option(help_text: str) -> Callable[[Command], Command]:
    folder = click.Path(exists=True, file_okay=False)
    return click.option("--workspace", type=folder, default=".", show_default="this folder", help=help_text)


def parse_time_option(since: str, now: float, *, option: str = "--since") -> float:
    """The time, as seconds since the epoch, that `7d`, `12h`, `2w` (ago) or a date such as 2026-11-01 means.

    A date or time without an offset is in UTC.
    """
    if (seconds := _parse_duration(since)) is not None:
        return now - seconds
    try:
        time = datetime.datetime.fromisoformat(since)
    except ValueError as error:
        message = f"{option} takes 7d, 12h, 2w or a date such as 2026-11-01, not {since[:40]!r}"
        raise OptionValueError(message) from error
    return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()


def parse_expiry(expires: str, now: float) -> float:
    """The time, as seconds since the epoch, that 30d, 12h, 2w (from now) or a date such as 2027-11-01 stands for."""
    if (seconds := _parse_duration(expires)) is not None:
        return now + seconds
    try:
        return parse_time_option(expires, now)
    except OptionValueError as error:
        message = f"--expires takes 30d, 12h, 2w or a date such as 2027-11-01, not {expires[:40]!r}"
        raise OptionValueError(message) from error


def split_pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise OptionValueError(f"{option} {text[:80]!a} is not NAME=VALUE")
    return name, value


def _parse_duration(text: str) -> int | None:
    """The seconds in `7d`, `12h` or `2w`; None for any other text."""
    count, unit = text[:-1], text[-1:]
    is_duration = unit in UNIT_SECONDS and count.isascii() and count.isdigit() and len(count) < 6
    return int(count) * UNIT_SECONDS[unit] if is_duration else None
