"""The tools with which a model reads messages that a compaction replaced, and asks for a compaction."""

import re

from msgspec.structs import replace

from holdfast.compaction.working_set import COMPACT_TOOL
from holdfast.engine.compaction.compact import RECALL_TOOL
from holdfast.engine.compaction.history import groups_containing, read_logged_messages, render_messages
from holdfast.engine.tools.definition import Tool, ToolContext, ToolError, tool
from holdfast.events.log import EventLog
from holdfast.events.payloads.compaction import CompactionRequested

HISTORY_CHARACTERS_MAX = 24_000
RECALLED_MESSAGES_MAX = 40
REASON_CHARACTERS_MAX = 500
KEPT_ITEMS_MAX = 50
_RANGE = re.compile(r"m?(\d{1,9})(?:\s*(?:-|to|\u2013)\s*m?(\d{1,9}))?")


def parse_message_range(text: str) -> tuple[int, int] | None:
    """The first and last message of a range: `m12`, `12-20`, `m12 to m20`; None for any other text."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        return None
    first = int(match.group(1))
    return first, max(first, int(match.group(2) or first))


def recall_tool(log: EventLog) -> Tool:
    """A tool for any session on this log; the session id comes from the context of the call."""

    def recall_history(source: str, context: ToolContext) -> str:
        """Show in full what a line of the conversation's record is taken from.

        `source` is the id at the end of the line, such as m12, or a range such as m12-m20. A call is shown with its
        result. Use it before reading a file or running a command again whose output the record says was seen.
        """
        numbers = parse_message_range(source)
        if numbers is None:
            raise ToolError(f"{source!r} is no id such as m12, and no range such as m12-m20", kind="validation_error")
        first, last = numbers
        entries = read_logged_messages(log.read(context.session_id))
        groups = groups_containing(entries, first, min(last, first + RECALLED_MESSAGES_MAX - 1))
        if not groups:
            raise ToolError(f"there is no message {source} in this session", kind="not_found")
        return render_messages(entry for group in groups for entry in group if not entry.is_injected)

    # No confirmation: it shows only what was in the conversation before.
    recall = tool(recall_history, name=RECALL_TOOL)
    return replace(recall, needs_confirmation=False, output_characters_max=HISTORY_CHARACTERS_MAX)


def compact_tool() -> Tool:
    """A tool that asks for a compaction; the session carries it out before a later call, if that helps."""

    def compact_context(reason: str, keep: list[str], context: ToolContext) -> str:
        """Ask for older messages of this conversation to be replaced by a summary.

        Use it at a natural break, when the details of finished work are no longer needed. `reason` says why now. `keep`
        lists what has to stay in full: paths of files, ids of messages such as m12; other texts in it stay as notes.
        """
        if not reason.strip():
            raise ToolError("reason must say why now is a good moment", kind="validation_error")
        words = tuple(word.strip()[:REASON_CHARACTERS_MAX] for word in keep[:KEPT_ITEMS_MAX] if word.strip())
        context.record_event(CompactionRequested(reason.strip()[:REASON_CHARACTERS_MAX], words))
        return (
            "Older messages are replaced by a summary before the next request for which that is possible. If too "
            "little could be removed, nothing changes. The user sees it and can undo it."
        )

    # No confirmation: nothing outside the conversation changes, and the user can undo it.
    return replace(tool(compact_context, name=COMPACT_TOOL), needs_confirmation=False)
