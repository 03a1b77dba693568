"""How the command that serves comes by the instructions of agents."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from holdfast.events.log import Log
    from holdfast.instructions.library import Library


def library_of(log: "Log", *, wanted: bool, for_sample: bool = False) -> "Library | None":
    """None where neither the flag nor the configuration asks for it, and no sample needs one."""
    import os

    from holdfast.clock import new_ulid, system_clock
    from holdfast.errors import UserError
    from holdfast.runtime.instruction_settings import load_instructions

    configured = load_instructions(os.environ)
    if not (wanted or configured.enabled):
        return _passing(log) if for_sample else None
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


def _passing(log: "Log") -> "Library | None":
    """For a store that is gone at the end, and so is the key that it signs with."""
    import os

    from holdfast.clock import new_ulid, system_clock
    from holdfast.instructions.library import Library
    from holdfast.instructions.records import HasInstructions
    from holdfast.instructions.settings import InstructionSettings
    from holdfast.instructions.signatures import KEY_BYTES, DeploymentKey
    from holdfast.retrieval.meaning import missing_packages

    if not isinstance(log, HasInstructions):
        return None
    settings = InstructionSettings(encoder=None if missing_packages("wordllama") else "wordllama")
    key = DeploymentKey(os.urandom(KEY_BYTES))
    return Library(log.instructions, settings, key=key, clock=system_clock, new_id=new_ulid, warn=lambda line: None)
