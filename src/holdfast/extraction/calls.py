"""What a tool call does, as its name and its arguments tell: which file, which command, which list of tasks.

Tools are known by what they take and not by whose they are; what fits nothing is a call like any other.
"""

import re
from typing import Literal

import msgspec

from holdfast.canonical.blocks import Block, Json, Text, ToolResult, ToolUse

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


class Task(msgspec.Struct, frozen=True):
    text: str
    status: str = ""


class Action(msgspec.Struct, frozen=True):
    """One call as it is understood; `lines` are those it asked for, by their first and last, 0 for an open end."""

    kind: CallKind
    tool: str
    path: str = ""
    command: str = ""
    pattern: str = ""
    lines: tuple[int, int] | None = None
    tasks: tuple[Task, ...] = ()
    task_id: str = ""
    texts: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes two calls the same attempt."""
        return self.kind, self.path or self.pattern, self.command


def action_of(call: ToolUse) -> Action:
    """Never fails: arguments that cannot be read are those of a call that says nothing."""
    try:
        read = msgspec.json.decode(call.arguments_json[:ARGUMENTS_CHARACTERS_MAX])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        read = None
    given: dict[str, Json] = read if isinstance(read, dict) else {}
    path, command = _text_in(given, _PATHS), _text_in(given, _COMMANDS)
    return Action(
        kind=_kind(call.name, path, command, given),
        tool=call.name,
        path=path,
        command=command,
        pattern=_text_in(given, _PATTERNS),
        lines=_lines(given),
        tasks=_tasks(given),
        task_id=_word(given.get("taskId", given.get("task_id", given.get("id")))),
        texts=_texts(given),
    )


def _word(value: Json) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _kind(name: str, path: str, command: str, given: dict[str, Json]) -> CallKind:
    plain = name.rpartition("__")[2]
    for kind, pattern in _BY_NAME:
        if pattern.search(plain) and (kind not in ("read", "write", "delete") or path):
            return kind
    if command:
        return "run"
    return "read" if path and not given.keys() - set(_PATHS) else "other"


def _text_in(given: dict[str, Json], names: tuple[str, ...]) -> str:
    for name in names:
        value = given.get(name)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
            return " ".join(part for part in value if isinstance(part, str))
    return ""


def _lines(given: dict[str, Json]) -> tuple[int, int] | None:
    for first, last in _OFFSETS:
        start, end = given.get(first), given.get(last)
        if isinstance(start, int) and not isinstance(start, bool):
            stop = end if isinstance(end, int) and not isinstance(end, bool) else 0
            return start, start + stop - 1 if first == "offset" and stop else stop
    return None


def _tasks(given: dict[str, Json]) -> tuple[Task, ...]:
    for name in _TASKS:
        listed = given.get(name)
        if isinstance(listed, list):
            return tuple(task for one in listed if (task := _task(one)) is not None)
    task = _task(given) if "status" in given or "subject" in given else None
    return (task,) if task is not None else ()


def _task(value: Json) -> Task | None:
    if isinstance(value, str):
        return Task(value) if value.strip() else None
    if not isinstance(value, dict):
        return None
    return Task(_text_in(value, _TASK_TEXT), _word(value.get("status")))


def _texts(value: Json, depth: int = 0) -> tuple[str, ...]:
    """Every text in the arguments, as it was before it became JSON."""
    if isinstance(value, str):
        return (value,)
    if depth > 8:
        return ()
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return tuple(text for one in inner for text in _texts(one, depth + 1))


def result_text(result: ToolResult) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, Text))


def plain_text(content: tuple[Block, ...]) -> str:
    """Everything that blocks say to a model in words, calls and results included."""
    parts = []
    for block in content:
        if isinstance(block, Text):
            parts.append(block.text)
        elif isinstance(block, ToolUse):
            parts += [block.name, *action_of(block).texts]
        elif isinstance(block, ToolResult):
            parts.append(result_text(block))
    return "\n".join(parts)


_EXIT = re.compile(r"\bexit (?:code|status):? (\d{1,3})\b", re.IGNORECASE)


def failed(result: ToolResult) -> bool:
    """Whether the call came to nothing, as far as its result tells."""
    if result.is_error:
        return True
    found = _EXIT.search(result_text(result)[:2_000])
    return found is not None and found.group(1) != "0"


_FAILING = re.compile(
    r"^FAILED (\S+)|^--- FAIL: (\S+)|^test (\S+) \.\.\. FAILED|^[^\S\n]*[✕✗×] (.{3,120})$|^not ok \d+ - (.{3,120})$",
    re.MULTILINE,
)


def failing_tests(text: str) -> tuple[str, ...]:
    """The tests that a run says have failed, each once."""
    found = ("".join(filter(None, match.groups())).strip() for match in _FAILING.finditer(text))
    return tuple(dict.fromkeys(name for name in found if name))
