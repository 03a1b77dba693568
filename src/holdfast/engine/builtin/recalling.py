"""The tool with which a model reads messages that a compaction replaced by a summary."""

import re

import msgspec

from holdfast.engine.compacting import RECALL_TOOL
from holdfast.engine.context import ToolContext
from holdfast.engine.history import groups_behind, logged
from holdfast.engine.told import told
from holdfast.engine.tools import Tool, ToolError, tool
from holdfast.events.log import Log

OUTPUT_CHARACTERS_MAX = 24_000
MESSAGES_MAX = 40
_RANGE = re.compile(r"m?(\d{1,9})(?:\s*(?:-|to|\u2013)\s*m?(\d{1,9}))?")


def numbers_in(text: str) -> tuple[int, int] | None:
    """The first and last message of a range: `m12`, `12-20`, `m12 to m20`; None for any other text."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        return None
    first = int(match.group(1))
    return first, max(first, int(match.group(2) or first))


def recall_tool(log: Log) -> Tool:
    """A tool for any session on this log; the session id comes from the context of the call."""

    def recall_history(source: str, context: ToolContext) -> str:
        """Show in full what a line of the conversation's record is taken from.

        `source` is the id at the end of the line, such as m12, or a range such as m12-m20. A call is shown with its
        result. Use it before reading a file or running a command again whose output the record says was seen.
        """
        numbers = numbers_in(source)
        if numbers is None:
            raise ToolError(f"{source!r} is no id such as m12, and no range such as m12-m20", kind="validation_error")
        first, last = numbers
        entries = logged(log.read(context.session_id))
        groups = groups_behind(entries, first, min(last, first + MESSAGES_MAX - 1))
        if not groups:
            raise ToolError(f"there is no message {source} in this session", kind="not_found")
        return told(entry for group in groups for entry in group if not entry.injected)

    # No confirmation: it shows only what was in the conversation before.
    recall = tool(recall_history, name=RECALL_TOOL)
    return msgspec.structs.replace(recall, asks=False, output_characters_max=OUTPUT_CHARACTERS_MAX)
