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
# Editors that are one tool take what to do as their command.
_EDITOR_COMMANDS: dict[str, CallKind] = {"view": "read", "create": "write", "str_replace": "write", "insert": "write"}
_EDITS = re.compile(r"edit|insert|replace|patch|append", re.IGNORECASE)


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
    is_edit: bool = False
    is_task_list: bool = False


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
        is_edit=_EDITS.search(call.name) is not None and command != "create",
        is_task_list=any(isinstance(arguments.get(name), list) for name in _TASKS),
    )


def _word(value: Json) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _kind(name: str, path: str, command: str, arguments: dict[str, Json]) -> CallKind:
    # MCP tools are offered as mcp__server__tool.
    plain = name.rpartition("__")[2]
    if path and command in _EDITOR_COMMANDS:
        return _EDITOR_COMMANDS[command]
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


# Shell tools report failures in the text of a result that is not marked as an error: first or last, never in between,
# where it would be the output of the command itself.
_EXIT = re.compile(r"\bexit(?:ed)?(?: with)? (?:code|status):? (\d{1,3})\b", re.IGNORECASE)


def is_failed_result(result: ToolResult) -> bool:
    """Whether the result is an error or reports a non-zero exit code."""
    return result.is_error or reports_exit_code(result_text(result))


def reports_exit_code(text: str) -> bool:
    """Whether the first line or one of the last two reports an exit code other than 0."""
    ends = (*text[:200].splitlines()[:1], *text[-400:].rstrip().splitlines()[-2:])
    return any(match.group(1) != "0" for line in ends if (match := _EXIT.search(line[:200])) is not None)


_FAILING = re.compile(
    r"^FAILED (\S+)|^--- FAIL: (\S+)|^test (\S+) \.\.\. FAILED|^[^\S\n]*[✕✗×] (.{3,120})$|^not ok \d+ - (.{3,120})$",
    re.MULTILINE,
)


_PASSING = re.compile(
    r"^[^\S\n]*--- PASS: (\S+)|^(\S+::\S+) PASSED|^test (\S+) \.\.\. ok$|^[^\S\n]*[✓✔√] (.{3,120})$", re.MULTILINE
)


def find_passing_tests(text: str) -> tuple[str, ...]:
    """The names of passed tests in the output of a test run, each once."""
    names = ("".join(filter(None, match.groups())).strip() for match in _PASSING.finditer(text))
    return tuple(dict.fromkeys(name for name in names if name))


def find_failing_tests(text: str) -> tuple[str, ...]:
    """The names of failed tests in the output of a test run, each once."""
    names = ("".join(filter(None, match.groups())).strip() for match in _FAILING.finditer(text))
    return tuple(dict.fromkeys(name for name in names if name))


RunState = Literal["passed", "failed", "ran"]
"""`ran` where neither can be shown: the exit code is that of another command, and the output has no result line."""

# Space at the start of a line ends with it: across lines, thousands of empty ones would take their square.
_FAILED_LINE = re.compile(
    r"^[^\S\n]*--- FAIL: |^FAIL\b|^FAILED\b|^test result: FAILED"
    r"|^[=\t\r ]*(?:\d+ \w+, )*\d+ (?:failed|errors?)\b.* in [\d.]+s"
    r"|^[^\S\n]*Tests?:? .*\b[1-9]\d* fail|^[^\S\n]*[1-9]\d* failing\b|^npm ERR!|^make(?:\[\d+\])?: \*\*\* "
    r"|^\[\S+\] ERROR task failed|^Traceback \(most recent call last\)",
    re.MULTILINE,
)
_PASSED_LINE = re.compile(
    r"^ok\s+\S+\s+(?:[\d.]+s|\(cached\))|^PASS$|^test result: ok|^[=\t\r ]*\d+ passed\b|^[^\S\n]*Tests:? +\d+ passed"
    r"|^[^\S\n]*\d+ passing\b|^0 issues\.$|^All checks passed|^Success: no issues found",
    re.MULTILINE,
)
# Commands that look at something: their exit code says what was found and not whether anything works.
_LOOKS = frozenset((
    "grep", "egrep", "rg", "ag", "ls", "cat", "head", "tail", "find", "wc", "echo", "printf", "pwd", "cd", "sed",
    "awk", "sort", "uniq", "cut", "tr", "diff", "stat", "file", "which", "type", "tree", "less", "jq", "xargs", "du",
    "df", "ps", "env", "date", "sleep", "true", "test", "[", "nl", "column", "basename", "dirname", "realpath",
    "readlink",
))  # fmt: skip
_LOOKS_GIT = frozenset((
    "status", "diff", "log", "show", "branch", "blame", "rev-parse", "ls-files", "ls-tree", "remote", "cat-file",
    "merge-base",
))  # fmt: skip
_LOOKS_GITHUB = frozenset(("view", "list", "diff", "checks", "status", "api"))
_WRAPPERS = ("time", "sudo", "env", "nohup", "npx", "command", "exec")
_PIPES_TO_END = ("tail", "tee", "cat")
_QUIET_OPTION = re.compile(
    r"^(?:-v+|-q+|-s|-x|--verbose|--quiet|-count=\d+|--count=\d+|--tb=\w+|--no-header|--color(?:=\w+)?)$"
)
_ASSIGNMENT = re.compile(r"^\w+=\S*$")
_REDIRECTION = re.compile(r"\s*(?:\d|&)?>{1,2}\s*(?:&\d|[^\s;|&<>]+)|\s*<\s*[^\s;|&<>]+")
_TESTS = re.compile(r"(?:^|[\s:/_-])(?:tests?|pytest|tox|nox|jest|vitest|rspec|check|spec|ci)(?:$|[\s:_-])")
_BUILDS = re.compile(r"(?:^|\s)(?:build|vet|compile|lint|typecheck|tsc|mypy|clippy|check)(?:$|\s)")
_FILTERED = re.compile(r"(?:^|\s)(?:--?run|-k|-t|--grep|--filter|--testNamePattern|-g)(?:$|[\s=])|::|\.\w{1,4}(?:$|\s)")
COMMAND_CHARACTERS_MAX = 4_000


class ShellCommand(msgspec.Struct, frozen=True):
    """A command line: its parts normalised, and whether its exit code is that of all parts."""

    parts: tuple[str, ...]
    is_exit_code_of_all: bool
    is_end_visible: bool
    only_looks: bool

    @property
    def runs_all_tests(self) -> bool:
        """Whether a part runs tests without selecting some of them."""
        return any(_TESTS.search(part) and not _FILTERED.search(part) for part in self.parts)


def parse_command(command: str) -> ShellCommand:
    """Split a command line at its operators, outside of quotation marks, and normalise each part."""
    text = command[:COMMAND_CHARACTERS_MAX]
    operators, pipelines = _split_command(text)
    parts, pipes = [], []
    for pipeline in pipelines:
        part = _normalize_part(pipeline[0])
        if part:
            parts.append(part)
        pipes += [word for piece in pipeline[1:] for word in piece.split()[:1]]
    # A here-document may hold anything; its command is compared as a whole.
    is_plain = "<<" not in text and operators <= {"&&"}
    is_piped = bool(pipes) and "pipefail" not in text
    return ShellCommand(
        parts=tuple(dict.fromkeys(parts)) or (" ".join(text.split()),),
        is_exit_code_of_all=is_plain and not is_piped,
        is_end_visible=is_plain and all(word in _PIPES_TO_END for word in pipes),
        only_looks=bool(parts) and all(map(_only_looks, parts)),
    )


def _split_command(text: str) -> tuple[set[str], list[list[str]]]:
    """The operators between pipelines, and each pipeline as its pieces."""
    operators: set[str] = set()
    pipelines, quote, start, at = [[""]], "", 0, 0
    while at < len(text):
        character = text[at]
        if quote:
            at += 2 if character == "\\" and quote == '"' else 1
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote, at = character, at + 1
        elif character == "\\":
            at += 2
        elif character in "|&;\n" and not (
            character == "&" and (text[at - 1 : at] == ">" or text[at + 1 : at + 2] == ">")
        ):
            operator = text[at : at + 2] if text[at : at + 2] in ("&&", "||") else character
            pipelines[-1][-1] = text[start:at]
            if operator == "|":
                pipelines[-1].append("")
            else:
                operators.add(operator)
                pipelines.append([""])
            at = start = at + len(operator)
        else:
            at += 1
    pipelines[-1][-1] = text[start:]
    kept = [pipeline for pipeline in pipelines if pipeline[0].strip()]
    # An operator at the very end, such as a line break, separates nothing.
    return (operators if len(kept) > 1 or "&" in operators else set()), kept


def _normalize_part(part: str) -> str:
    words = [word.strip("\"'") for word in _REDIRECTION.sub(" ", part).split()]
    while words and (words[0] in _WRAPPERS or _ASSIGNMENT.match(words[0])):
        words = words[1:]
    if words[:1] == ["timeout"]:
        words = words[2:]
    if words[:2] in (["uv", "run"], ["poetry", "run"]):
        words = words[2:]
    if len(words) > 2 and words[0].rpartition("/")[2].startswith("python") and words[1] == "-m":
        words = words[2:]
    if words[:1] == ["cd"]:
        return ""
    return " ".join(word.removeprefix("./").rstrip("/") for word in words if not _QUIET_OPTION.match(word))


def _only_looks(part: str) -> bool:
    words = part.split()
    if words[0] == "git":
        return next((word for word in words[1:] if not word.startswith("-")), "") in _LOOKS_GIT
    if words[0] == "gh":
        return not _LOOKS_GITHUB.isdisjoint(words[1:3])
    return words[0] in _LOOKS and not (words[0] == "sed" and "-i" in words)


def judge_run(command: ShellCommand, text: str, *, is_error: bool) -> RunState:
    """What the result shows about the command: its exit code, or the result lines of a test run in its output."""
    has_result_lines = not command.is_exit_code_of_all or any(map(_TESTS.search, command.parts))
    if is_error or reports_exit_code(text) or (has_result_lines and _FAILED_LINE.search(text)):
        return "failed"
    if command.is_exit_code_of_all:
        return "passed"
    return "passed" if command.is_end_visible and _PASSED_LINE.search(text) else "ran"


def find_failed_lines(text: str) -> list[str]:
    """The result lines of a test run or build that report a failure."""
    starts = (match.start() for match in _FAILED_LINE.finditer(text))
    return list(dict.fromkeys(text[start:].lstrip()[:200].splitlines()[0] for start in starts))


def find_covered_parts(failed: ShellCommand, later: ShellCommand) -> frozenset[str]:
    """The parts of a failed command that a later command ran too: the same, or everything that a test run implies."""
    covered = set(failed.parts) & set(later.parts)
    if later.runs_all_tests:
        covered |= {part for part in failed.parts if _TESTS.search(part) or _BUILDS.search(part)}
    return frozenset(covered)
