"""Options that many commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any] | click.Command)
db_option = click.option("--db", metavar="URL", help="Store to use instead of the configured one: a path or a URL.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
host_option = click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")


def port_option(default: int) -> Callable[[Command], Command]:
    help_text = "Port; 0 picks a free one."
    return click.option("--port", type=click.IntRange(0, 65535), default=default, show_default=True, help=help_text)


def workspace_option(help_text: str) -> Callable[[Command], Command]:
    folder = click.Path(exists=True, file_okay=False)
    return click.option("--workspace", type=folder, default=".", show_default="this folder", help=help_text)
