"""Confines the built-in tools to the folders that a call may access."""

import contextlib
from collections.abc import Iterator

from holdfast.engine.context import ToolContext
from holdfast.engine.tools import ToolError
from holdfast.sources.confined import EscapeError, PathError, Roots, locate, opened_place


def roots_of_call(context: ToolContext) -> Roots:
    """The folders that a call may access. Raises ToolError for a session without a workspace."""
    if context.roots is None:
        raise ToolError("This session has no workspace.", kind="permission_denied")
    return context.roots


@contextlib.contextmanager
def placed(
    context: ToolContext, path: str, *, writing: bool = False, make_folders: bool = False
) -> Iterator[tuple[int, str]]:
    """The open folder of a path and the name in it. Raises ToolError, whose message the model reads."""
    try:
        located = locate(roots_of_call(context), path, writing=writing)
        with opened_place(located, make_folders=make_folders) as place:
            yield place
    except EscapeError as error:
        raise ToolError(f"The path is refused: {error}.", kind="permission_denied") from None
    except PathError as error:
        raise ToolError(f"{error}.") from None
