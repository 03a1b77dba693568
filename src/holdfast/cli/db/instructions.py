"""Moves agents' instructions between stores of one deployment, for `holdfast db export` and `import`."""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from holdfast.cli.format import format_count
from holdfast.cli.instructions.open import explain_missing_package
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.runtime.instructions.settings import InstructionConfig
    from holdfast.stores.instructions.transfer import ImportedOwner, OwnerImporter
    from holdfast.stores.open import Store


def get_exported_deployment(log: "Store", *, content: bool) -> str:
    """The deployment whose instructions are exported.

    Raises UserError without --content, or if the store also holds instructions of another deployment.
    """
    if not content:
        raise UserError("instructions are content: export them with --content --instructions, or without them")
    here = _configured().settings.deployment
    other = log.instructions.other_deployment(here)
    if other is not None:
        raise UserError(
            f"the store has instructions of deployment {other[:80]!a}, but this deployment is {here!a}: "
            "set instructions.deployment in the home file, or export without them"
        )
    return here


def check_deployment(deployment: str, name: str) -> None:
    """Raise UserError if the file comes from another deployment."""
    here = _configured().settings.deployment
    if deployment != here:
        raise UserError(
            f"{name} has instructions of deployment {deployment[:80]!a}, but this deployment is {here!a}: "
            "import it there, or export it without --instructions"
        )


def open_instruction_intake(log: "Store") -> "OwnerImporter":
    from holdfast.stores.instructions.transfer import OwnerImporter

    configured = _configured()
    with explain_missing_package():
        from holdfast.instructions.context import InstructionContext
        from holdfast.instructions.units.signatures import load_deployment_key
        from holdfast.instructions.units.transfer import validate_imported_records
    # Do not create a key: a new one has signed nothing in the file, and would block restoring the original key.
    key = load_deployment_key(configured.key_path) if configured.key_path.exists() else None
    library = InstructionContext(log.instructions, configured.settings, key=key)
    return OwnerImporter(log.instructions, partial(validate_imported_records, library))


def summarize_imported_owners(owners: "Sequence[ImportedOwner]") -> Iterator[str]:
    """Lines that say what was imported for the owners of instructions."""
    if not owners:
        return
    existing = sum(owner.already_existed for owner in owners)
    already = f", {existing:,} of them already stored" if existing else ""
    added = format_count(sum(owner.added for owner in owners), "record")
    yield f"{format_count(len(owners), 'owner')} of instructions{already}: {added} added"
    if quarantined := sum(owner.quarantined for owner in owners):
        yield (
            f"{format_count(quarantined, 'unit')} quarantined: not signed by a key that this deployment knows; "
            "restore the key or register the signer, then write them again"
        )
    if left_out := sum(owner.dropped_approvals for owner in owners):
        yield f"{format_count(left_out, 'approval')} left out: not signed by a key that this deployment knows"


def _configured() -> "InstructionConfig":
    with explain_missing_package():
        from holdfast.runtime.instructions.settings import load_instruction_config
    return load_instruction_config(os.environ)
