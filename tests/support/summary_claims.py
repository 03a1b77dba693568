"""Checks every claim of a summary against the log, without using the code that extracted it.

`find_false_claims` returns the lines that the messages do not support. It reads tool calls with rules of its own:
splitting command lines with `shlex`, and tools by the words in their names.
"""

import json
import re
import shlex
from collections.abc import Sequence

import msgspec

from holdfast.compaction.models import Summary, SummaryLine
from holdfast.types.blocks import Text, ToolResult, ToolUse, join_text_blocks
from holdfast.types.prompt import HistoryEntry

_CLIENT = re.compile(
    r"<(system-reminder|local-command-caveat|local-command-stdout|local-command-stderr|command-message|bash-input|"
    r"bash-stdout|bash-stderr|task-notification|user-prompt-submit-hook|ide_opened_file|ide_selection|"
    r"environment_context|user_instructions|environment_details)>.*?</\1>",
    re.DOTALL,
)
_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
_TYPED = re.compile(r"</?(?:command-name|command-args|user_query|task|feedback)>")
_CLIENT_START = (
    "[Request interrupted",
    "Base directory for this skill",
    "Caveat: The messages below",
    "Operation stopped",
)
_CUT = re.compile(r" \[cut: [\d,]+ more characters in m\d+\]$")
_MISSING = re.compile(r"not exist|n't exist|no such file|enoent|not found|cannot find", re.IGNORECASE)
_FAILED_OUTPUT = re.compile(
    r"^\s*--- FAIL|^FAIL\b|^FAILED |^npm ERR!|^make.*: \*\*\* |ERROR task failed|^Traceback \(|^test result: FAILED"
    r"|\b[1-9]\d* (?:failed|failing)\b",
    re.MULTILINE,
)
_PASSED_OUTPUT = re.compile(
    r"^ok\s|^PASS$|\b\d+ pass(?:ed|ing)\b|^test result: ok|^0 issues|checks passed|no issues", re.M
)
_EXIT_CODE = re.compile(r"exit(?:ed with)? (?:code|status):? ([1-9]\d*)", re.IGNORECASE)
_TEST_WORD = re.compile(r"test|tests|pytest|tox|jest|vitest|check|spec|ci")
_SELECTS = ("-run", "--run", "-k", "-t", "--grep", "--filter", "-g")
_PATHS = ("file_path", "path", "notebook_path", "filename", "file", "target_file", "filepath", "absolute_path")


class FalseClaim(msgspec.Struct, frozen=True):
    line: SummaryLine
    reason: str


class LoggedCall(msgspec.Struct, frozen=True):
    """A tool call and its result, if the log has one; `text` has no text that the client added."""

    number: int
    order: int
    name: str
    arguments: dict[str, object]
    has_result: bool = False
    text: str = ""
    is_error: bool = False
    result_number: int = 0
    result_order: int = 0

    @property
    def command(self) -> str:
        value = next(
            (self.arguments[key] for key in ("command", "cmd", "script", "commands") if key in self.arguments), ""
        )
        return " ".join(map(str, value)) if isinstance(value, list) else str(value)

    @property
    def path(self) -> str:
        return str(next((self.arguments[key] for key in _PATHS if self.arguments.get(key)), ""))

    @property
    def was_run(self) -> bool:
        return self.has_result and not self.text.lstrip().startswith(
            ("The user doesn't want", "[Request interrupted", "<tool_use_error>Sibling", "<tool_use_error>Cancelled")
        )


def fold(text: str) -> str:
    return " ".join(text.split())


def find_false_claims(summary: Summary, entries: Sequence[HistoryEntry]) -> list[FalseClaim]:
    """The lines of a summary that the covered messages do not support."""
    log = _Log(entries)
    checks = {
        "scope": log.check_scope, "tools": log.check_tools, "goal": log.check_request, "asks": log.check_request,
        "constraints": log.check_request, "pending": log.check_pending, "questions": log.check_question,
        "decisions": log.check_decision, "files": log.check_file, "commands": log.check_command,
        "tests": log.check_test, "errors": log.check_error, "names": log.check_names,
        "current": log.check_reply, "timeline": log.check_reply,
    }  # fmt: skip
    return [FalseClaim(line, reason) for line in summary.lines if (reason := checks[line.section](line))]


class _Log:
    def __init__(self, entries: Sequence[HistoryEntry]) -> None:
        self.entries = {entry.number: entry for entry in entries if not entry.is_injected}
        self.calls: list[LoggedCall] = []
        places: dict[str, int] = {}
        results = 0
        for entry in self.entries.values():
            for block in entry.content:
                if isinstance(block, ToolUse):
                    places[block.id] = len(self.calls)
                    self.calls.append(LoggedCall(entry.number, len(self.calls), block.name, _arguments(block)))
                elif isinstance(block, ToolResult) and block.tool_use_id in places:
                    text = _REMINDER.sub("", "\n".join(part.text for part in block.content if isinstance(part, Text)))
                    place, results = places[block.tool_use_id], results + 1
                    self.calls[place] = msgspec.structs.replace(
                        self.calls[place],
                        has_result=True,
                        text=text,
                        is_error=block.is_error,
                        result_number=entry.number,
                        result_order=results,
                    )

    def human_words(self, number: int) -> str:
        """What a person typed in a message."""
        entry = self.entries.get(number)
        if entry is None or entry.role != "user":
            return ""
        text = join_text_blocks(entry.content)
        return "" if text.lstrip().startswith(_CLIENT_START) else fold(_TYPED.sub(" ", _CLIENT.sub("", text)))

    def reply(self, number: int) -> str:
        entry = self.entries.get(number)
        return fold(join_text_blocks(entry.content)) if entry is not None and entry.role == "assistant" else ""

    def check_scope(self, line: SummaryLine) -> str:
        roles = ["tool" if any(isinstance(b, ToolResult) for b in e.content) else e.role for e in self.entries.values()]
        counts = ", ".join(f"{roles.count(role)} {role}" for role in sorted(set(roles)))
        return "" if line.text == f"{len(roles)} messages compacted ({counts})." else "the counts differ"

    def check_tools(self, line: SummaryLine) -> str:
        return "" if line.text == ", ".join(sorted({call.name for call in self.calls})) else "other tools were called"

    def check_request(self, line: SummaryLine) -> str:
        quote = fold(_CUT.sub("", line.text))
        return "" if quote in self.human_words(line.sources[0]) else "not what a person typed there"

    def check_reply(self, line: SummaryLine) -> str:
        return "" if _quote(line.text) in self.reply(line.sources[0]) else "not what the assistant said there"

    def check_question(self, line: SummaryLine) -> str:
        later = [number for number in self.entries if number > line.sources[0] and self.human_words(number)]
        return "the user has replied" if later else self.check_reply(line)

    def check_decision(self, line: SummaryLine) -> str:
        number = line.sources[0]
        match = re.match(r"Asked in m(\d+): (.*) The user answered: (.*)$", _quote(line.text))
        if match is None:
            said = _quote(line.text) in self.reply(number) or _quote(line.text) in self.human_words(number)
            return "" if said else "nobody said this there"
        asked = int(match.group(1))
        between = [other for other in self.entries if asked < other < number and self.human_words(other)]
        is_true = match.group(2) in self.reply(asked) and match.group(3) in self.human_words(number) and not between
        return "" if is_true else "not asked or not answered so"

    def check_pending(self, line: SummaryLine) -> str:
        if line.text.startswith("call without a result: "):
            open_calls = [call for call in self.calls if call.number == line.sources[0] and not call.has_result]
            return "" if open_calls else "every call of the message has a result"
        status, _, text = line.text.partition(": ")
        return "" if (_quote(text), status) in self._tasks() else "the newest list says otherwise"

    def _tasks(self) -> set[tuple[str, str]]:
        """Open tasks, cut as a line of a summary may be."""
        tasks: dict[str, tuple[str, str]] = {}
        for call in self.calls:
            items = next(
                (v for k in ("todos", "tasks", "items", "plan") if isinstance(v := call.arguments.get(k), list)), None
            )
            if items is not None and re.search("to_?do|plan|task", call.name, re.IGNORECASE):
                tasks = {f"list {at}": _task(item) for at, item in enumerate(items)}
            elif re.search("task", call.name, re.IGNORECASE) and (
                "subject" in call.arguments or "status" in call.arguments
            ):
                id = str(call.arguments.get("taskId", call.arguments.get("task_id", "")))
                reported = re.search(r"task #?(\d+)", call.text, re.IGNORECASE)
                key = id or (reported.group(1) if reported else f"new {call.order}")
                before = tasks.get(key, ("", ""))
                text, status = _task(call.arguments)
                tasks[key] = text or before[0], status or before[1]
        prefixes = set[tuple[str, str]]()
        for text, status in tasks.values():
            prefixes |= {(text[:length].rstrip(), status or "open") for length in range(len(text) + 1)}
        return prefixes

    def check_file(self, line: SummaryLine) -> str:
        path, _, claims = line.text.rpartition(": ")
        counts = {"read": 0, "written": 0, "edited": 0}
        is_missing = is_deleted = False
        read_in = changed_in = 0
        for call in sorted(self.calls, key=lambda call: call.result_order):
            kind = _file_action(call)
            if call.path != path or not call.was_run or not kind:
                continue
            if call.is_error:
                is_missing |= kind == "read" and _MISSING.search(call.text) is not None
                continue
            is_missing = False
            is_deleted = kind == "deleted"
            if kind != "deleted":
                counts[kind] += 1
                read_in = call.number if kind == "read" else read_in
                changed_in = call.number if kind != "read" else changed_in
        expected = {f"{kind} x{count}" for kind, count in counts.items() if count}
        expected |= {"not found"} if is_missing else set()
        expected |= {"deleted"} if is_deleted else set()
        expected |= {"changed since read"} if changed_in > read_in > 0 and not is_deleted else set()
        claimed = set(re.sub(r" \(lines [^)]*\)", "", claims).split(", "))
        return "" if claimed == expected else f"the log shows {', '.join(sorted(expected)) or 'nothing'}"

    def check_command(self, line: SummaryLine) -> str:
        shown, state = _split_state(line.text)
        runs = [run for run in self._runs(line.sources[0]) if fold(run.command).startswith(_quote(shown))]
        if not runs:
            return "no such command there"
        if state == "passed":
            return "" if any(_has_passed(run) for run in runs) else "it was not shown to pass"
        if state == "failing":
            if not any(_has_failed(run) for run in runs):
                return "it did not fail"
            return "" if any(not self._passes_later(run) for run in runs) else "it passed later"
        return "" if state == "ran" else f"unknown state {state}"

    def _runs(self, number: int) -> list[LoggedCall]:
        return [call for call in self.calls if call.number == number and call.command and call.was_run]

    def _passes_later(self, failed: LoggedCall) -> bool:
        needed = set(_commands_in(failed.command))
        for run in self.calls:
            if run.result_number > failed.result_number and run.command and run.was_run and _has_passed(run):
                commands = _commands_in(run.command)
                needed -= set(commands)
                if any(_runs_all_tests(words) for words in commands):
                    needed = {words for words in needed if not any(map(_TEST_WORD.fullmatch, words[:3]))}
        return not needed

    def check_test(self, line: SummaryLine) -> str:
        name = _quote(line.text.removeprefix("failing: "))
        failed = [run for run in self._runs(line.sources[0]) if any(name in text for text in _failed_lines(run.text))]
        if not failed:
            return "no run there reports it as failed"
        for run in self.calls:
            if run.result_number > failed[0].result_number and run.command and run.was_run:
                if re.search(
                    rf"--- PASS: {re.escape(name)}\b|{re.escape(name)} PASSED|[✓✔] {re.escape(name)}", run.text
                ):
                    return "it passed later"
                if _has_passed(run) and any(map(_runs_all_tests, _commands_in(run.command))):
                    return "all tests passed later"
        return ""

    def check_error(self, line: SummaryLine) -> str:
        calls = [call for call in self.calls if call.number == line.sources[0] and call.was_run]
        for call in calls:
            shown = _quote(line.text.partition(": ")[0])[:40]
            error = next((text for text in map(fold, call.text.splitlines()) if text and text[:60] in line.text), "")
            if not error or (shown not in fold(f"{call.name} {call.path}") and shown not in fold(call.command)):
                continue
            if re.match(r"--- PASS|ok |PASS", error):
                return "the line reports success"
            if call.command and _has_failed(call) and not self._passes_later(call):
                return ""
            if not call.command and call.is_error and not self._succeeds_later(call):
                return ""
        return "no call there failed with this line, or it succeeded later"

    def _succeeds_later(self, failed: LoggedCall) -> bool:
        return any(
            call.result_number > failed.result_number
            and not call.is_error
            and call.was_run
            and call.name == failed.name
            for call in self.calls
            if call.path == failed.path and call.path
        )

    def check_names(self, line: SummaryLine) -> str:
        number = line.sources[0]
        parts = [self.reply(number), self.human_words(number)]
        entry = self.entries.get(number)
        if entry is not None and entry.role == "user":
            parts += [text for block in entry.content if isinstance(block, ToolResult) for text in _texts(block)]
        for call in self.calls:
            if number in (call.number, call.result_number):
                parts += [call.text, call.name, *_strings(call.arguments)]
        text = fold("\n".join(parts))
        missing = [name for name in line.text.split(", ") if fold(name) not in text]
        return f"not in the message: {missing[0]}" if missing else ""


def _texts(block: ToolResult) -> list[str]:
    return [part.text for part in block.content if isinstance(part, Text)]


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for element in inner for text in _strings(element)]


def _arguments(call: ToolUse) -> dict[str, object]:
    try:
        decoded = json.loads(call.arguments_json)
    except (ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _task(item: object) -> tuple[str, str]:
    if not isinstance(item, dict):
        return fold(str(item)), ""
    names = ("content", "subject", "title", "step", "text", "description", "activeForm")
    return fold(str(next((item[name] for name in names if item.get(name)), ""))), str(item.get("status") or "")


def _quote(text: str) -> str:
    return fold(text.removesuffix("…"))


def _file_action(call: LoggedCall) -> str:
    name, verb = call.name.lower().rpartition("__")[2], str(call.arguments.get("command", ""))
    if verb in ("view", "create", "str_replace", "insert"):
        return {"view": "read", "create": "written"}.get(verb, "edited")
    if re.search("to_?do|plan|task|grep|glob|search|find|list", name) or (call.command and "file" not in name):
        return ""
    for kind, words in (
        ("deleted", "delete|remove"),
        ("edited", "edit|insert|replace|patch|append"),
        ("written", "write|create"),
        ("read", "read|open|view|cat$|fetch|get_?file"),
    ):
        if re.search(words, name):
            return kind
    return "read" if set(call.arguments) <= set(_PATHS) else ""


def _split_state(text: str) -> tuple[str, str]:
    for state in ("passed", "ran", "failing"):
        if text.endswith(f": {state}"):
            return text.removesuffix(f": {state}"), state
    shown, _, _ = text.rpartition(": failing; ")
    return shown, "failing" if shown else ""


def _pieces(command: str) -> list[list[str]]:
    """The command line as words, split at operators; operators are kept as words of their own."""
    try:
        lexer = shlex.shlex(
            command.replace("\\\n", " ").replace("2>&1", " ").replace("\n", " ; "), posix=True, punctuation_chars="|&;"
        )
        lexer.whitespace_split, lexer.commenters = True, ""
        words = list(lexer)
    except ValueError:
        return [[command]]
    pieces: list[list[str]] = [[]]
    for word in words:
        if word and set(word) <= set("|&;"):
            pieces += [[word], []]
        else:
            pieces[-1].append(word)
    return [piece for piece in pieces if piece]


def _commands_in(command: str) -> list[tuple[str, ...]]:
    """The commands of a line without directory, environment, redirection, verbosity and pipes."""
    commands, is_piped = [], False
    for piece in _pieces(command):
        if set(piece[0]) <= set("|&;"):
            is_piped = piece[0] == "|"
            continue
        words = [word for word in piece if not re.fullmatch(r"\d?>.*|/dev/null|-v+|-q+|-count=\d+|--verbose", word)]
        while words and re.fullmatch(r"\w+=.*|time|sudo|env|npx|uv|run|poetry", words[0]):
            words = words[1:]
        words = words[2:] if words[:1] == ["timeout"] else words
        words = words[2:] if len(words) > 2 and "python" in words[0] and words[1] == "-m" else words
        if words and not is_piped and words[0] != "cd":
            commands.append(tuple(word.removeprefix("./").rstrip("/") for word in words))
    return commands


def _runs_all_tests(words: tuple[str, ...]) -> bool:
    is_test = any(part and _TEST_WORD.fullmatch(part) for word in words[:3] for part in re.split(r"[:_-]", word))
    selects = any(word.startswith(_SELECTS) or "::" in word or re.search(r"\.\w{1,4}$", word) for word in words)
    return is_test and not selects


def _has_failed(run: LoggedCall) -> bool:
    return run.is_error or _EXIT_CODE.search(run.text) is not None or _FAILED_OUTPUT.search(run.text) is not None


def _has_passed(run: LoggedCall) -> bool:
    """An exit code of 0 that is the command's own, or output that says so; and no output that reports a failure."""
    operators = {piece[0] for piece in _pieces(run.command) if set(piece[0]) <= set("|&;")}
    if run.is_error or re.match(r"\W*exit code:? [1-9]", run.text, re.IGNORECASE):
        return False
    is_own_code = operators <= {"&&"} or ("pipefail" in run.command and operators <= {"&&", "|"})
    if is_own_code and not re.search(r"\b(test|pytest|check|ci)\b", run.command):
        return True
    if _FAILED_OUTPUT.search(run.text):
        return False
    return is_own_code or _PASSED_OUTPUT.search(run.text) is not None


def _failed_lines(text: str) -> list[str]:
    return re.findall(r"^(?:FAILED|\s*--- FAIL:|test .*FAILED|\s*[✕✗×]|not ok).*$", text, re.MULTILINE)
