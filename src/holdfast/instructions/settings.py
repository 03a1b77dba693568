"""Settings of a deployment's instructions."""

from pathlib import Path

import msgspec

from holdfast.instructions.models import WAKE_REASONS
from holdfast.instructions.recall.wake_token import WakeIssuer


class InstructionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`root` has one folder per agent; path entries may only name files below it.

    With `audit_required`, a recall whose audit record cannot be written fails; without, it has no audit token.
    Publishing warns above `guaranteed_units_soft_max` guaranteed units across all agents.
    """

    deployment: str = "local"
    root: Path | None = None
    wake: WakeIssuer | None = None
    wake_reasons: tuple[str, ...] = WAKE_REASONS
    encoder: str | None = None
    use_floor: bool = True
    audit_required: bool = False
    scaled_is_binding: bool = False
    guaranteed_units_soft_max: int = 50
