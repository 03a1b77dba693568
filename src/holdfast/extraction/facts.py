"""Extract facts from a conversation: requests, files, commands, errors, tasks and names, each with its message."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from holdfast.extraction.entities import (
    Entity,
    collapse_whitespace,
    error_signature,
    find_entities,
    find_error_lines,
    find_last_line,
    split_sentences,
)
from holdfast.extraction.tool_calls import (
    CallAction,
    PlannedTask,
    find_failing_tests,
    interpret_call,
    is_failed_result,
    result_text,
)
from holdfast.types.blocks import Block, Image, ToolResult, ToolUse, join_text_blocks
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.prompt import HistoryEntry

HALF_LIFE_ENTRIES = 30.0
"""After this many messages a mention's weight has halved."""

SPOKEN_WEIGHT = 3.0
"""The weight of a mention in user text, model text or tool arguments, relative to one in a tool result."""

MENTIONS_MAX = 10_000
FACTS_MAX = 500
"""Bounds the reader's memory in a long conversation: this many files, commands, errors, requests and steps each."""

CONSTRAINT_CHARACTERS_MAX = 400
DECISION_CHARACTERS_MAX = 300
DONE_STATUSES = ("completed", "done", "cancelled", "canceled", "deleted")
_Value = TypeVar("_Value")

_CONSTRAINT = re.compile(
    r"\b(never|always|must|do not|don't|dont|make sure|ensure|avoid|only use|prefer|should not|shouldn't|instead of)\b|"
    r"^(use|keep)\s",
    re.IGNORECASE,
)
_DECISION = re.compile(
    r"\b(decided|decision|instead of|rather than|going with|we'll use|we will use|chose|rejected|ruled out)\b",
    re.IGNORECASE,
)


class UserRequest(msgspec.Struct, frozen=True):
    """A user request; `is_answered` once the model has ended a turn after it."""

    number: int
    text: str
    is_answered: bool = False
    image_count: int = 0


class CitedText(msgspec.Struct, frozen=True):
    text: str
    number: int


class FileState(msgspec.Struct, frozen=True):
    """What was done with a file; `sha` is of the content last read whole, `numbers` are messages, newest last."""

    path: str
    reads: int = 0
    writes: int = 0
    is_deleted: bool = False
    sha: str = ""
    written_since_read: bool = False
    lines: tuple[tuple[int, int], ...] = ()
    numbers: tuple[int, ...] = ()
    at: int = 0


class CommandRun(msgspec.Struct, frozen=True):
    command: str
    times: int = 0
    is_failed: bool = False
    has_result: bool = False
    last_line: str = ""
    number: int = 0


class ErrorOccurrence(msgspec.Struct, frozen=True):
    """`resolved_in` is the message in which the same call succeeded, 0 if there is none."""

    line: str
    times: int
    number: int
    resolved_in: int = 0


class Mention(msgspec.Struct, frozen=True):
    entity: Entity
    score: float
    times: int
    number: int
    at: int


class ConversationFacts(msgspec.Struct, frozen=True):
    requests: tuple[UserRequest, ...] = ()
    constraints: tuple[CitedText, ...] = ()
    decisions: tuple[CitedText, ...] = ()
    questions: tuple[CitedText, ...] = ()
    tasks: tuple[tuple[PlannedTask, int], ...] = ()
    open_calls: tuple[tuple[CallAction, int], ...] = ()
    files: tuple[FileState, ...] = ()
    commands: tuple[CommandRun, ...] = ()
    failing_tests: tuple[CitedText, ...] = ()
    fixed_tests: int = 0
    errors: tuple[ErrorOccurrence, ...] = ()
    mentions: tuple[Mention, ...] = ()
    steps: tuple[CitedText, ...] = ()
    tools: tuple[tuple[str, int], ...] = ()
    current_work: CitedText | None = None
    messages: tuple[tuple[str, int], ...] = ()


def extract_facts(entries: Sequence[HistoryEntry]) -> ConversationFacts:
    """Facts from user, model and tool text; injected context and thinking are ignored."""
    reader = FactsReader()
    for entry in entries:
        reader.read(entry)
    return reader.facts()


class FactsReader:
    """Reads history entries one by one, in order; `facts` may be called at any time.

    Memory is bounded however long a conversation is: the latest facts are kept, and the highest-ranked names.
    """

    def __init__(self) -> None:
        self.at = -1
        self.first_unanswered = 0
        self.number = 0
        self.requests: list[UserRequest] = []
        self.constraints: dict[str, CitedText] = {}
        self.decisions: dict[str, CitedText] = {}
        self.question: CitedText | None = None
        self.tasks: dict[str, tuple[PlannedTask, int]] = {}
        self.calls: dict[str, tuple[CallAction, int]] = {}
        self.files: dict[str, FileState] = {}
        self.commands: dict[str, CommandRun] = {}
        self.failing_tests: dict[str, CitedText] = {}
        self.failed_once: set[str] = set()
        self.errors: dict[str, ErrorOccurrence] = {}
        self.errors_of: dict[tuple[str, str, str], set[str]] = {}
        self.mentions: dict[Entity, Mention] = {}
        self.steps: list[CitedText] = []
        self.tools: Counter[str] = Counter()
        self.current_work: CitedText | None = None
        self.messages: Counter[str] = Counter()

    def copy(self) -> "FactsReader":
        other = FactsReader()
        for name, value in vars(self).items():
            setattr(other, name, value.copy() if isinstance(value, dict | list | set) else value)
        other.errors_of = {key: signs.copy() for key, signs in self.errors_of.items()}
        return other

    def read(self, entry: HistoryEntry) -> None:
        self.at += 1
        if entry.is_injected:
            return
        self.number = entry.number
        results = [block for block in entry.content if isinstance(block, ToolResult)]
        role = "tool" if results else entry.role
        self.messages[role] += 1
        for result in results:
            self._read_result(result)
            self.number = entry.number
        text = join_text_blocks(entry.content)
        if entry.role == "assistant":
            self._read_reply(text, entry.content)
        elif text.strip() or not results:
            self._read_request(text, entry.content)
        self._trim()

    def _trim(self) -> None:
        """Trim only when twice the limit is reached, so that the cost per entry stays constant on average."""
        _drop_oldest(self.files)
        _drop_oldest(self.commands)
        _drop_oldest(self.decisions)
        _drop_oldest(self.failing_tests)
        # The first constraints usually describe the task as a whole.
        _drop_oldest(self.constraints, keep_first=4)
        if _drop_oldest(self.errors):
            remaining = {key: {sign for sign in signs if sign in self.errors} for key, signs in self.errors_of.items()}
            self.errors_of = {key: signs for key, signs in remaining.items() if signs}
        if len(self.steps) > 2 * FACTS_MAX:
            del self.steps[:-FACTS_MAX]
        # The first request is the goal and is never dropped.
        if self.first_unanswered > 2 * FACTS_MAX:
            del self.requests[1 : self.first_unanswered - FACTS_MAX]
            self.first_unanswered = FACTS_MAX + 1
        if len(self.mentions) > 2 * MENTIONS_MAX:
            ranked = sorted(self.mentions.values(), key=self._rank)
            self.mentions = {mention.entity: mention for mention in ranked[:MENTIONS_MAX]}

    def _read_request(self, text: str, content: Sequence[Block]) -> None:
        others = sum(isinstance(block, Image) for block in content)
        self.requests.append(UserRequest(self.number, text, image_count=others))
        # Whatever the model asked last, the user has now replied.
        self.question = None
        for sentence in split_sentences(text):
            if len(sentence) <= CONSTRAINT_CHARACTERS_MAX and _CONSTRAINT.search(sentence):
                self.constraints.setdefault(collapse_whitespace(sentence).lower(), CitedText(sentence, self.number))
        self._add_mentions(text, SPOKEN_WEIGHT)

    def _read_reply(self, text: str, content: Sequence[Block]) -> None:
        calls = [block for block in content if isinstance(block, ToolUse)]
        if text.strip():
            self.current_work = CitedText(text, self.number)
            self._add_mentions(text, SPOKEN_WEIGHT)
            for sentence in split_sentences(text):
                if len(sentence) <= DECISION_CHARACTERS_MAX and _DECISION.search(sentence):
                    self.decisions.pop(collapse_whitespace(sentence).lower(), None)
                    self.decisions[collapse_whitespace(sentence).lower()] = CitedText(sentence, self.number)
        for call in calls:
            self._read_call(call)
        if not calls:
            for index in range(self.first_unanswered, len(self.requests)):
                self.requests[index] = msgspec.structs.replace(self.requests[index], is_answered=True)
            self.first_unanswered = len(self.requests)
            questions = [sentence_text for sentence_text in split_sentences(text)[-3:] if sentence_text.endswith("?")]
            self.question = CitedText(questions[-1], self.number) if questions else None
        self.steps.append(CitedText(_step(text, calls), self.number))

    def _read_call(self, call: ToolUse) -> None:
        action = interpret_call(call)
        self.tools[call.name] += 1
        self.calls[call.id] = action, self.number
        for text in action.texts:
            self._add_mentions(text, SPOKEN_WEIGHT)
        if action.kind == "run" and action.command:
            self._add_mention(Entity("command", collapse_whitespace(action.command)[:160]), SPOKEN_WEIGHT)
            before = self.commands.pop(action.command, CommandRun(action.command))
            self.commands[action.command] = msgspec.structs.replace(before, times=before.times + 1, number=self.number)
        if action.kind == "plan":
            self._update_tasks(action)

    def _update_tasks(self, action: CallAction) -> None:
        if len(action.tasks) != 1 or not action.task_id:
            if len(action.tasks) > 1:
                self.tasks.clear()
            for task in action.tasks:
                self.tasks[task.text] = task, self.number
            return
        (task,) = action.tasks
        listed = [name for name, (existing, _) in self.tasks.items() if existing.text]
        # Task tools that update by id count tasks from 1 in the order of creation.
        position = int(action.task_id) - 1 if action.task_id.isdigit() else -1
        name = listed[position] if not task.text and 0 <= position < len(listed) else task.text
        if name:
            existing = self.tasks.get(name, (PlannedTask(name), 0))[0]
            self.tasks[name] = PlannedTask(existing.text or name, task.status or existing.status), self.number

    def _read_result(self, result: ToolResult) -> None:
        text = result_text(result)
        # Attribute a result to the message of its call: both are one group, and the call says what it is.
        action, self.number = self.calls.pop(result.tool_use_id, (CallAction("other", result.name), self.number))
        is_failed = is_failed_result(result)
        self._add_mentions(text, 1.0)
        if action.path:
            self._update_file(action, text, is_failed)
        if action.command in self.commands:
            run = self.commands[action.command]
            self.commands[action.command] = msgspec.structs.replace(
                run, is_failed=is_failed, has_result=True, last_line=find_last_line(text, 120), number=self.number
            )
        self._update_tests(action, text, is_failed)
        self._update_errors(action, text, is_failed)

    def _update_file(self, action: CallAction, text: str, is_failed: bool) -> None:
        change = msgspec.structs.replace
        file = self.files.pop(action.path, FileState(action.path))
        file = change(file, numbers=(*file.numbers[-2:], self.number), at=self.at)
        if not is_failed and action.kind == "read":
            lines = file.lines if action.lines is None else (*file.lines[-3:], action.lines)
            sha = sha256_hex(text.encode("utf-8", "surrogatepass"))[:8] if action.lines is None else file.sha
            file = change(file, reads=file.reads + 1, sha=sha, lines=lines, written_since_read=False, is_deleted=False)
        elif not is_failed and action.kind == "write":
            file = change(file, writes=file.writes + 1, written_since_read=True, is_deleted=False)
        elif not is_failed and action.kind == "delete":
            file = change(file, is_deleted=True)
        self.files[action.path] = file

    def _update_tests(self, action: CallAction, text: str, is_failed: bool) -> None:
        if action.kind != "run":
            return
        names = find_failing_tests(text)
        for name in names:
            self.failing_tests.setdefault(name, CitedText(name, self.number))
        self.failed_once.update(names)
        # A test run that succeeds without naming a failure means that everything that failed before passes now.
        if not names and not is_failed and re.search(r"\btest", action.command):
            self.failing_tests.clear()

    def _update_errors(self, action: CallAction, text: str, is_failed: bool) -> None:
        lines = find_error_lines(text) if is_failed or action.kind == "run" else []
        if not lines and is_failed:
            lines = [line for line in [find_last_line(text, 200)] if line]
        # The same call succeeded: every error that it reported before counts as resolved.
        if not is_failed and not lines:
            for resolved_sign in self.errors_of.pop(action.key, ()):
                error = self.errors.get(resolved_sign)
                if error is not None:
                    self.errors[resolved_sign] = msgspec.structs.replace(error, resolved_in=self.number)
        # One noisy result must not push out the errors of all others.
        for line in lines[:8]:
            sign = error_signature(line)
            before = self.errors.pop(sign, None)
            self.errors[sign] = ErrorOccurrence(line, before.times + 1 if before else 1, self.number)
            self.errors_of.setdefault(action.key, set()).add(sign)

    def _add_mentions(self, text: str, weight: float) -> None:
        for entity in dict.fromkeys(find_entities(text)):
            self._add_mention(entity, weight)

    def _add_mention(self, entity: Entity, weight: float) -> None:
        existing = self.mentions.get(entity)
        score, times = (self._score(existing), existing.times) if existing else (0.0, 0)
        self.mentions[entity] = Mention(entity, score + weight, times + 1, self.number, self.at)

    def _score(self, mention: Mention) -> float:
        """The mention's score with the decay since it was last seen: score * 0.5 ** (age / half-life)."""
        return mention.score * float(0.5 ** ((self.at - mention.at) / HALF_LIFE_ENTRIES))

    def _rank(self, mention: Mention) -> tuple[float, str, str]:
        return -self._score(mention), mention.entity.kind, mention.entity.text

    def facts(self) -> ConversationFacts:
        ranked = sorted(self.mentions.values(), key=self._rank)
        mentions = (msgspec.structs.replace(mention, score=self._score(mention)) for mention in ranked)
        return ConversationFacts(
            requests=tuple(self.requests),
            constraints=tuple(self.constraints.values()),
            decisions=tuple(self.decisions.values()),
            questions=(self.question,) if self.question else (),
            tasks=tuple(task for task in self.tasks.values() if task[0].text),
            open_calls=tuple(self.calls.values()),
            files=tuple(sorted(self.files.values(), key=lambda file: -file.at)),
            commands=tuple(reversed(self.commands.values())),
            failing_tests=tuple(self.failing_tests.values()),
            fixed_tests=len(self.failed_once - self.failing_tests.keys()),
            errors=tuple(reversed(self.errors.values())),
            mentions=tuple(mentions),
            steps=tuple(self.steps),
            tools=tuple(sorted(self.tools.items())),
            current_work=self.current_work,
            messages=tuple(sorted(self.messages.items())),
        )


def _drop_oldest(values: dict[str, _Value], *, keep_first: int = 0) -> bool:
    """Trim to FACTS_MAX once there are twice as many; whether it did."""
    if len(values) <= 2 * FACTS_MAX:
        return False
    for key in list(values)[keep_first : len(values) - FACTS_MAX]:
        del values[key]
    return True


def _step(text: str, calls: Sequence[ToolUse]) -> str:
    """One line on what the model did: its tool calls, or else its text."""
    actions = []
    for call in calls:
        action = interpret_call(call)
        actions.append(collapse_whitespace(f"{call.name} {action.path or action.command or action.pattern}"[:300]))
    return "; ".join(actions) if actions else collapse_whitespace(text[:600])
