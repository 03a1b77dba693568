"""The registry of the built-in workspace tools."""

import os
from collections.abc import Mapping, Sequence

from holdfast.engine.builtin.commands import COMMAND_SECONDS_MAX, command_tool, without_secrets
from holdfast.engine.builtin.files import editing_tools, list_dir, read_file
from holdfast.engine.builtin.searching import searching_tool
from holdfast.engine.tools import Tool, tool
from holdfast.errors import UserError

NAMES = ("edit_file", "grep_files", "list_dir", "read_file", "run_command", "write_file")

# The tool's timeout is this much longer than a command's own limit, because a command that runs out of time gets
# a grace period to end before it is killed.
_MARGIN_SECONDS = 15


def builtin_tools(names: Sequence[str] = NAMES, *, environ: Mapping[str, str] = os.environ) -> tuple[Tool, ...]:
    """The tools of these names. Commands run with this environment, without variables that look like secrets."""
    if unknown := next((name for name in names if name not in NAMES), None):
        raise UserError(f"there is no built-in tool {unknown!r}; there are {', '.join(NAMES)}")
    write_file, edit_file = editing_tools()
    tools = (
        tool(edit_file, side_effects="write", paths=("path",)),
        tool(searching_tool(without_secrets(environ)), side_effects="read", paths=("path",)),
        tool(list_dir, side_effects="read", paths=("path",)),
        tool(read_file, side_effects="read", paths=("path",)),
        tool(command_tool(environ), side_effects="execute", timeout_seconds=COMMAND_SECONDS_MAX + _MARGIN_SECONDS),
        tool(write_file, side_effects="write", paths=("path",)),
    )
    return tuple(builtin for builtin in tools if builtin.spec.name in names)
