"""Where a prompt starts to differ from the previous one, described without quoting its content."""

from typing import Literal

import msgspec

from holdfast.canonical.prompt import Place

MoveCause = Literal["clock", "id", "path", "order", "tool schema", "tool list", "removed", "text", "unknown"]
"""The likely reason why the bytes changed: `path` is a temporary path, `removed` is history that is missing."""


class Move(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first cacheable byte that differs, the section of the prompt it is in, and the likely cause.

    `diff` shows the surrounding lines with every letter replaced by x and every digit by 0.
    """

    byte: int
    place: Place | None = None
    cause: MoveCause = "unknown"
    detail: str = ""
    diff: tuple[str, ...] = ()
