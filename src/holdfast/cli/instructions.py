"""How the command that serves comes by the instructions of agents."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from holdfast.events.log import Log
    from holdfast.instructions.library import Library


def library_of(log: "Log", *, wanted: bool) -> "Library | None":
    """None where neither the flag nor the configuration asks for it."""
    import os

    from holdfast.clock import new_ulid, system_clock
    from holdfast.errors import UserError
    from holdfast.runtime.instruction_settings import load_instructions

    configured = load_instructions(os.environ)
    if not (wanted or configured.enabled):
        return None
    from holdfast.instructions.certifying import activate_encoder
    from holdfast.instructions.library import Library
    from holdfast.instructions.records import HasInstructions
    from holdfast.instructions.signatures import deployment_key
    from holdfast.retrieval.meaning import ENCODERS, missing_packages

    if not isinstance(log, HasInstructions):
        raise UserError("instructions are kept in a SQLite file or in PostgreSQL: name one with --db")
    library = Library(
        log.instructions,
        configured.settings,
        key=deployment_key(configured.key_path),
        clock=system_clock,
        new_id=new_ulid,
        warn=lambda line: click.echo(line, err=True),
    )
    usable = tuple(one for one in ENCODERS if not missing_packages(one))
    failed = activate_encoder(library, usable)
    if failed:
        click.echo(
            f"the encoder stays as it was: with the new one {len(failed)} manifests fail, such as that of {failed[0]}",
            err=True,
        )
    return library
