"""How a deployment keeps its instructions."""

from pathlib import Path

import msgspec

from holdfast.instructions.values import WAKE_REASONS
from holdfast.instructions.wake import WakeTrust


class InstructionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`root` has a folder for each agent; below it, and nowhere else, are the files of its path entries.

    Above `guaranteed_units_soft_max` of all agents together, publishing warns.
    """

    deployment: str = "local"
    root: Path | None = None
    wake: WakeTrust | None = None
    wake_reasons: tuple[str, ...] = WAKE_REASONS
    encoder: str | None = None
    use_floor: bool = True
    scaled_is_binding: bool = False
    guaranteed_units_soft_max: int = 50
