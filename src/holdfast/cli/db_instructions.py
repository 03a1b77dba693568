"""How `holdfast db` carries what agents are told from one store of a deployment to another."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from holdfast.cli.counts import counted
from holdfast.cli.instructions import SIGNING
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.runtime.instruction_settings import Instructions
    from holdfast.stores.instructions_lines import ImportedOwner, Intake
    from holdfast.stores.open import Store


def exporting_deployment(log: "Store", *, content: bool) -> str:
    """Whose instructions are exported. Raises UserError where that cannot be said of all of them."""
    from holdfast.instructions.records import HasInstructions

    if not content:
        raise UserError("instructions are content: export them with --content --instructions, or without them")
    here = _configured().settings.deployment
    other = log.instructions.other_deployment(here) if isinstance(log, HasInstructions) else None
    if other is not None:
        raise UserError(
            f"the store has instructions of deployment {other[:80]!a}, and this one is {here!a}: "
            "set instructions.deployment in the home file, or export without them"
        )
    return here


def check_deployment(deployment: str, name: str) -> None:
    """Raises UserError for a file of another deployment."""
    here = _configured().settings.deployment
    if deployment != here:
        raise UserError(
            f"{name} has instructions of deployment {deployment[:80]!a}, and this one is {here!a}: "
            "import it there, or export it without --instructions"
        )


def intake_of(log: "Store") -> "Intake":
    from holdfast.clock import new_ulid, system_clock
    from holdfast.instructions.records import HasInstructions
    from holdfast.stores.instructions_lines import Intake

    if not isinstance(log, HasInstructions):
        raise UserError("instructions are kept in a SQLite file or in PostgreSQL: name one with --db")
    configured = _configured()
    with _with_package():
        from holdfast.instructions.library import Library
        from holdfast.instructions.signatures import deployment_key
        from holdfast.instructions.taking_in import judged
    library = Library(
        log.instructions,
        configured.settings,
        # None is made: it could have signed nothing of what comes, and the one to be restored would find it there.
        key=deployment_key(configured.key_path) if configured.key_path.exists() else None,
        clock=system_clock,
        new_id=new_ulid,
        warn=lambda line: None,
    )
    return Intake(log.instructions, partial(judged, library))


class OwnersTold:
    """What became of the owners of an export, in a few lines."""

    def __init__(self) -> None:
        self._owners: list[ImportedOwner] = []

    def add(self, one: "ImportedOwner") -> None:
        self._owners.append(one)

    def lines(self) -> Iterator[str]:
        if not self._owners:
            return
        added = sum(one.added for one in self._owners)
        here = sum(one.was_here for one in self._owners)
        quarantined = sum(one.quarantined for one in self._owners)
        left_out = sum(one.left_out for one in self._owners)
        told = f"{counted(len(self._owners), 'owner')} of instructions"
        yield told + (f", {here:,} of them here already" if here else "") + f": {counted(added, 'record')} added"
        if quarantined:
            yield (
                f"{counted(quarantined, 'unit')} quarantined: no key that is known here has signed them; "
                "restore the key or register the signer, and write them again"
            )
        if left_out:
            yield f"{counted(left_out, 'approval')} left out: signed by no key that is known here"


def _configured() -> "Instructions":
    with _with_package():
        from holdfast.runtime.instruction_settings import load_instructions
    return load_instructions(os.environ)


@contextmanager
def _with_package() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != SIGNING:
            raise
        raise UserError("instructions need their package: pip install 'holdfast[instructions]'") from error
