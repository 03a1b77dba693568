"""Interpret tool calls by name and arguments: which file, which command, which task list.

Tools are recognised by their arguments and not by their vendor; a call that fits no pattern has kind `other`.
"""

import re
from typing import Literal

import msgspec

from holdfast.types.blocks import Block, Json, Text, ToolResult, ToolUse

CallKind = Literal["read", "write", "delete", "run", "search", "plan", "other"]
ARGUMENTS_CHARACTERS_MAX = 400_000
_PATHS = ("file_path", "path", "notebook_path", "filename", "file", "target_file", "filepath", "absolute_path")
_COMMANDS = ("command", "cmd", "script", "commands")
_PATTERNS = ("pattern", "query", "regex", "glob", "search", "url")
_OFFSETS = (("offset", "limit"), ("start_line", "end_line"), ("line_start", "line_end"))
_TASKS = ("todos", "tasks", "items", "plan")
_TASK_TEXT = ("content", "subject", "title", "step", "text", "description", "activeForm")

_BY_NAME: tuple[tuple[CallKind, re.Pattern[str]], ...] = (
    ("plan", re.compile(r"to_?do|^task(create|update|list)?$|update_plan|task_?(create|update)", re.IGNORECASE)),
    ("delete", re.compile(r"delete_?file|remove_?file|^delete$|^rm$", re.IGNORECASE)),
    ("search", re.compile(r"grep|glob|search|find|list_?dir|^ls$", re.IGNORECASE)),
    ("write", re.compile(r"write|edit|create|insert|replace|patch|append", re.IGNORECASE)),
    ("read", re.compile(r"read|open|view|cat$|fetch|get_?file", re.IGNORECASE)),
)


class PlannedTask(msgspec.Struct, frozen=True):
    text: str
    status: str = ""


class CallAction(msgspec.Struct, frozen=True):
    """An interpreted call; `lines` are the first and last requested line, 0 for an open end."""

    kind: CallKind
    tool: str
    path: str = ""
    command: str = ""
    pattern: str = ""
    lines: tuple[int, int] | None = None
    tasks: tuple[PlannedTask, ...] = ()
    task_id: str = ""
    texts: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal for two calls that attempt the same thing."""
        return self.kind, self.path or self.pattern, self.command


def interpret_call(call: ToolUse) -> CallAction:
    """Never fails: arguments that cannot be parsed are treated as empty."""
    try:
        decoded = msgspec.json.decode(call.arguments_json[:ARGUMENTS_CHARACTERS_MAX])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        decoded = None
    arguments: dict[str, Json] = decoded if isinstance(decoded, dict) else {}
    path, command = _text_in(arguments, _PATHS), _text_in(arguments, _COMMANDS)
    return CallAction(
        kind=_kind(call.name, path, command, arguments),
        tool=call.name,
        path=path,
        command=command,
        pattern=_text_in(arguments, _PATTERNS),
        lines=_lines(arguments),
        tasks=_tasks(arguments),
        task_id=_word(arguments.get("taskId", arguments.get("task_id", arguments.get("id")))),
        texts=_texts(arguments),
    )


def _word(value: Json) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _kind(name: str, path: str, command: str, arguments: dict[str, Json]) -> CallKind:
    # MCP tools are offered as mcp__server__tool.
    plain = name.rpartition("__")[2]
    for kind, pattern in _BY_NAME:
        if pattern.search(plain) and (kind not in ("read", "write", "delete") or path):
            return kind
    if command:
        return "run"
    return "read" if path and not arguments.keys() - set(_PATHS) else "other"


def _text_in(arguments: dict[str, Json], names: tuple[str, ...]) -> str:
    for name in names:
        value = arguments.get(name)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
            return " ".join(part for part in value if isinstance(part, str))
    return ""


def _lines(arguments: dict[str, Json]) -> tuple[int, int] | None:
    for first, last in _OFFSETS:
        start, end = arguments.get(first), arguments.get(last)
        if isinstance(start, int) and not isinstance(start, bool):
            stop = end if isinstance(end, int) and not isinstance(end, bool) else 0
            # offset/limit is a start and a count, the other pairs are first and last line.
            return start, start + stop - 1 if first == "offset" and stop else stop
    return None


def _tasks(arguments: dict[str, Json]) -> tuple[PlannedTask, ...]:
    for name in _TASKS:
        items = arguments.get(name)
        if isinstance(items, list):
            return tuple(task for item in items if (task := _task(item)) is not None)
    task = _task(arguments) if "status" in arguments or "subject" in arguments else None
    return (task,) if task is not None else ()


def _task(value: Json) -> PlannedTask | None:
    if isinstance(value, str):
        return PlannedTask(value) if value.strip() else None
    if not isinstance(value, dict):
        return None
    return PlannedTask(_text_in(value, _TASK_TEXT), _word(value.get("status")))


def _texts(value: Json, depth: int = 0) -> tuple[str, ...]:
    """Every string in the arguments, unescaped."""
    if isinstance(value, str):
        return (value,)
    if depth > 8:
        return ()
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return tuple(text for element in inner for text in _texts(element, depth + 1))


def result_text(result: ToolResult) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, Text))


def extract_plain_text(content: tuple[Block, ...]) -> str:
    """All text in the blocks, including tool calls and results."""
    parts = []
    for block in content:
        if isinstance(block, Text):
            parts.append(block.text)
        elif isinstance(block, ToolUse):
            parts += [block.name, *interpret_call(block).texts]
        elif isinstance(block, ToolResult):
            parts.append(result_text(block))
    return "\n".join(parts)


# Shell tools report failures in the text of a result that is not marked as an error.
_EXIT = re.compile(r"\bexit (?:code|status):? (\d{1,3})\b", re.IGNORECASE)


def is_failed_result(result: ToolResult) -> bool:
    """Whether the result is an error or reports a non-zero exit code."""
    if result.is_error:
        return True
    match = _EXIT.search(result_text(result)[:2_000])
    return match is not None and match.group(1) != "0"


_FAILING = re.compile(
    r"^FAILED (\S+)|^--- FAIL: (\S+)|^test (\S+) \.\.\. FAILED|^[^\S\n]*[✕✗×] (.{3,120})$|^not ok \d+ - (.{3,120})$",
    re.MULTILINE,
)


def find_failing_tests(text: str) -> tuple[str, ...]:
    """The names of failed tests in the output of a test run, each once."""
    names = ("".join(filter(None, match.groups())).strip() for match in _FAILING.finditer(text))
    return tuple(dict.fromkeys(name for name in names if name))
