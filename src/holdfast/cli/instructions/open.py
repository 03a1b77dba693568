"""Opens the instruction library for a command; says how to install the package that it needs for signatures."""

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from holdfast.cli.open_store import resolve_store_address
from holdfast.cli.options import convert_to_option_error
from holdfast.clock import system_clock
from holdfast.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.runtime.instructions.embedded import Library
    from holdfast.runtime.instructions.service_library import ServiceLibrary

KEY_VARIABLE = "HOLDFAST_KEY"
KEYRING_SERVICE = "holdfast"
SIGNING_PACKAGE = "cryptography"
MISSING_PACKAGE_HINT = "instructions need an extra package: pip install 'holdfast-context[instructions]'"
create_option = click.option("--create", is_flag=True, help="Create the store that --db names, if there is none.")
url_option = click.option(
    "--url", metavar="URL", help="Service that stores the instructions; its key is in HOLDFAST_KEY or the keyring."
)
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


def open_library_or_service(
    db: str | None,
    url: str | None,
    *,
    make: bool = False,
    create: bool = False,
    writable: bool = False,
    entity: str | None = None,
) -> "Library | ServiceLibrary":
    """The store, or the service that `url` names, which acts for the holder of the key."""
    if url is None:
        return open_library(db, make=make, create=create, writable=writable, entity=entity)
    if db or create:
        raise UserError("instructions are in a store or in a service: give --db or --url, not both")
    if entity:
        raise UserError("a service acts for the holder of the key; leave out --entity, or use that person's key")
    from holdfast.runtime.instructions.hook import check_service_address

    with explain_missing_package():
        from holdfast.runtime.instructions.service_library import ServiceLibrary
    with convert_to_option_error():
        address = check_service_address(url)
    return ServiceLibrary(address, key=find_service_key(url))


def find_service_key(url: str) -> str:
    """From the environment, or from the system's keyring if the package `keyring` is installed. Raises UserError."""
    from importlib import import_module
    from importlib.util import find_spec

    key = os.environ.get(KEY_VARIABLE)
    if not key and find_spec("keyring") is not None:
        try:
            key = import_module("keyring").get_password(KEYRING_SERVICE, url.rstrip("/"))
        except Exception as error:
            raise UserError(f"the keyring cannot be read: {type(error).__name__}; set {KEY_VARIABLE}") from error
    if not key:
        raise UserError(
            f"no key for {url}: set {KEY_VARIABLE}, or run `keyring set {KEYRING_SERVICE} {url.rstrip('/')}`"
        )
    return key
