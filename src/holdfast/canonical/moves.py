"""Where a prompt leaves the one before, and what that looks like, without a word of what it says."""

from typing import Literal

import msgspec

from holdfast.canonical.prompt import Place

MoveCause = Literal["clock", "id", "path", "order", "tool schema", "tool list", "removed", "text", "unknown"]
"""What most likely made the bytes others: `path` is one of a temporary folder, `removed` is history that is gone."""


class Move(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first cacheable byte that differs, the part of the prompt it stands in, and the likely cause.

    `diff` shows the lines around it with every letter as x and every digit as 0.
    """

    byte: int
    place: Place | None = None
    cause: MoveCause = "unknown"
    detail: str = ""
    diff: tuple[str, ...] = ()
