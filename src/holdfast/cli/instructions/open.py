"""Opens the instruction library for a command, and defines the options that these commands share."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.clock import system_clock
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.runtime.instructions.embedded import Library

agent_option = click.option("--agent", default="main", show_default=True, help="Agent whose instructions to use.")


def resolve_store_address(db: str | None) -> str:
    from holdfast.runtime.config import load_config

    return db or load_config(os.environ, workspace=Path.cwd()).db_path


def has_store(db: str | None) -> bool:
    address = resolve_store_address(db)
    return "://" in address or Path(address).exists()


def open_library(
    db: str | None,
    *,
    make: bool = False,
    entity: str | None = None,
    accept_encoder: bool = False,
    certify_again: bool = False,
) -> "Library":
    """Open the library; only a command that writes (`make`) creates a missing store.

    A caller that invokes the command from Python can pass a clock as click's `obj`.
    """
    from holdfast.runtime.instructions.settings import load_instruction_config

    try:
        from holdfast.runtime.instructions.embedded import Library
    except ImportError as error:
        raise UserError("instructions need extra packages: pip install 'holdfast-context[instructions]'") from error
    address = resolve_store_address(db)
    if not make and not has_store(db):
        raise UserError(f"there is no store at {address!r}; check the path, or publish something first")
    configured = load_instruction_config(os.environ)
    clock = click.get_current_context().find_root().obj
    return Library(
        address,
        settings=configured.settings,
        key_path=configured.key_path,
        entity=entity,
        accept_encoder=accept_encoder,
        certify_again=certify_again,
        clock=clock if callable(clock) else system_clock,
        warn=lambda line: click.echo(line, err=True),
    )
