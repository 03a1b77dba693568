"""The replies of the simulated model in `holdfast chat --simulate`: simple commands call tools, the rest is echoed."""

import re
from collections.abc import Callable, Sequence

import msgspec

from holdfast.canonical.blocks import Message, Text, ToolResult, ToolUse, text_of
from holdfast.simulator.faults import DeliveryFault
from holdfast.simulator.script import ScriptedReply

SHOWN_CHARACTERS_MAX = 400
COUNT_MAX = 1_000
PAUSE_SECONDS = 0.05
"""Delay before each chunk of `count to N`, which leaves the user time to try cancelling."""

WAYS = "read FILE, list DIR, search PATTERN, write FILE: TEXT, replace OLD by NEW in FILE, run COMMAND, count to N"

_CONTEXT = "<context layer="
_Arguments = Callable[[re.Match[str]], dict[str, str]]

_ORDERS: tuple[tuple[str, str, _Arguments], ...] = (
    (r"read\s+(\S+)", "read_file", lambda match: {"path": match[1]}),
    (r"list(?:\s+(\S+))?", "list_dir", lambda match: {"path": match[1] or "."}),
    (r"search\s+(.+)", "grep_files", lambda match: {"pattern": match[1]}),
    (r"write\s+([^\s:]+)\s*:\s*(.+)", "write_file", lambda match: {"path": match[1], "content": match[2] + "\n"}),
    (
        r"replace\s+(.+)\s+by\s+(.+)\s+in\s+(\S+)",
        "edit_file",
        lambda match: {"path": match[3], "old_text": match[1], "new_text": match[2]},
    ),
    (r"run\s+(.+)", "run_command", lambda match: {"command": match[1]}),
)


def offline_reply(messages: Sequence[Message]) -> ScriptedReply:
    """Reply with a tool call, the result of one, a slow count, or an echo of the user's message."""
    newest = messages[-1].content if messages else ()
    results = [block for block in newest if isinstance(block, ToolResult)]
    # After a cancelled turn, the newest message holds both its tool results and the user's next text: answer the text.
    has_user_text = any(isinstance(block, Text) and not block.text.startswith(_CONTEXT) for block in newest)
    if results and not has_user_text:
        return _text("\n".join(_describe_result(result) for result in results))
    text = _last_user_text(messages)
    if count := re.fullmatch(r"count to (\d{1,6})", text, re.IGNORECASE):
        numbers = range(1, min(int(count[1]), COUNT_MAX) + 1)
        slowly = DeliveryFault("drip", seconds=PAUSE_SECONDS)
        return ScriptedReply((Text(" ".join(map(str, numbers)) or "0"),), faults=(slowly,))
    for pattern, tool, arguments in _ORDERS:
        if order := re.fullmatch(pattern, text, re.IGNORECASE | re.DOTALL):
            call = ToolUse("", tool, msgspec.json.encode(arguments(order)).decode())
            return ScriptedReply((Text(f"I use {tool}."), call))
    return _text(f"You said: {_short(text)}\n\nThis is a simulated model. It understands: {WAYS}.")


def _text(text: str) -> ScriptedReply:
    return ScriptedReply((Text(text),))


def _describe_result(result: ToolResult) -> str:
    text = text_of(tuple(block for block in result.content if isinstance(block, Text)))
    return f"{'That did not work' if result.is_error else 'The tool says'}: {_short(text)}"


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}…"


def _last_user_text(messages: Sequence[Message]) -> str:
    """The user's last text, without the context blocks that the session injects before it."""
    texts = (
        block.text.strip()
        for message in reversed(messages)
        if message.role == "user"
        for block in reversed(message.content)
        if isinstance(block, Text) and not block.text.startswith(_CONTEXT)
    )
    return next(texts, "nothing")
