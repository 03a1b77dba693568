"""What the simulated model of `holdfast chat --simulate` says: it calls tools on plain words, and else repeats."""

import re
from collections.abc import Callable, Sequence

import msgspec

from holdfast.canonical.blocks import Message, Text, ToolResult, ToolUse, text_of
from holdfast.simulator.faults import DeliveryFault
from holdfast.simulator.script import ScriptedReply

SHOWN_CHARACTERS_MAX = 400
COUNT_MAX = 1_000
PAUSE_SECONDS = 0.05
"""Before each part of a long count, so that there is time to cancel it."""

WAYS = "read FILE, list DIR, search PATTERN, write FILE: TEXT, replace OLD by NEW in FILE, run COMMAND, count to N"

_CONTEXT = "<context layer="
_Arguments = Callable[[re.Match[str]], dict[str, str]]

_ORDERS: tuple[tuple[str, str, _Arguments], ...] = (
    (r"read\s+(\S+)", "read_file", lambda said: {"path": said[1]}),
    (r"list(?:\s+(\S+))?", "list_dir", lambda said: {"path": said[1] or "."}),
    (r"search\s+(.+)", "grep_files", lambda said: {"pattern": said[1]}),
    (r"write\s+([^\s:]+)\s*:\s*(.+)", "write_file", lambda said: {"path": said[1], "content": said[2] + "\n"}),
    (
        r"replace\s+(.+)\s+by\s+(.+)\s+in\s+(\S+)",
        "edit_file",
        lambda said: {"path": said[3], "old_text": said[1], "new_text": said[2]},
    ),
    (r"run\s+(.+)", "run_command", lambda said: {"command": said[1]}),
)


def offline_reply(messages: Sequence[Message]) -> ScriptedReply:
    """A call of a tool, what a tool has answered, a count that takes its time, or what was said."""
    newest = messages[-1].content if messages else ()
    results = [block for block in newest if isinstance(block, ToolResult)]
    # Behind the results of a turn that was cancelled stands what the person has said since.
    spoken = any(isinstance(block, Text) and not block.text.startswith(_CONTEXT) for block in newest)
    if results and not spoken:
        return _text("\n".join(_told(result) for result in results))
    said = _last_words(messages)
    if counted := re.fullmatch(r"count to (\d{1,6})", said, re.IGNORECASE):
        numbers = range(1, min(int(counted[1]), COUNT_MAX) + 1)
        slowly = DeliveryFault("drip", seconds=PAUSE_SECONDS)
        return ScriptedReply((Text(" ".join(map(str, numbers)) or "0"),), faults=(slowly,))
    for pattern, tool, arguments in _ORDERS:
        if order := re.fullmatch(pattern, said, re.IGNORECASE | re.DOTALL):
            call = ToolUse("", tool, msgspec.json.encode(arguments(order)).decode())
            return ScriptedReply((Text(f"I use {tool}."), call))
    return _text(f"You said: {_short(said)}\n\nThis is a simulated model. It understands: {WAYS}.")


def _text(text: str) -> ScriptedReply:
    return ScriptedReply((Text(text),))


def _told(result: ToolResult) -> str:
    said = text_of(tuple(block for block in result.content if isinstance(block, Text)))
    return f"{'That did not work' if result.is_error else 'The tool says'}: {_short(said)}"


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}…"


def _last_words(messages: Sequence[Message]) -> str:
    """What the person said last, without what the session has put in front of it."""
    said = (
        block.text.strip()
        for message in reversed(messages)
        if message.role == "user"
        for block in reversed(message.content)
        if isinstance(block, Text) and not block.text.startswith(_CONTEXT)
    )
    return next(said, "nothing")
