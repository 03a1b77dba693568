"""Opens the instruction library for a command; says how to install the package that it needs for signatures."""

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from holdfast.cli.open_store import resolve_store_address
from holdfast.clock import system_clock
from holdfast.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.runtime.instructions.embedded import Library

SIGNING_PACKAGE = "cryptography"
MISSING_PACKAGE_HINT = "instructions need an extra package: pip install 'holdfast-context[instructions]'"
create_option = click.option("--create", is_flag=True, help="Create the store that --db names, if there is none.")
agent_option = click.option("--agent", default="main", show_default=True, help="Agent whose instructions to use.")


@contextmanager
def explain_missing_package() -> "Iterator[None]":
    """Say how to install the package that signs units; any other missing module is a bug and is raised as it is."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != SIGNING_PACKAGE:
            raise
        raise UserError(MISSING_PACKAGE_HINT) from error


def open_library(
    db: str | None,
    *,
    make: bool = False,
    create: bool = False,
    writable: bool = False,
    entity: str | None = None,
    accept_encoder: bool = False,
    certify_again: bool = False,
) -> "Library":
    """Open the library. A command that changes it asks for `writable`; `make` also creates a missing store.

    A store that `db` names is created only with `create`: the name may be a typing error. A caller that invokes the
    command from Python can pass a clock as click's `obj`.
    """
    from holdfast.runtime.instructions.settings import load_instruction_config

    with explain_missing_package():
        from holdfast.runtime.instructions.embedded import Library
    address, exists = resolve_store_address(db or None)
    if not exists and make and db and not create:
        raise UserError(f"there is no store at {address!r}; check the path, or create it with --create")
    if not (make or exists):
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
        read_only=not (make or writable),
        clock=clock if callable(clock) else system_clock,
        warn=lambda line: click.echo(line, err=True),
    )
