"""Extract facts from a conversation: requests, files, commands, errors, tasks and names, each with its message."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import TypeVar

import msgspec

from holdfast.extraction.entities import (
    Entity,
    collapse_whitespace,
    error_signature,
    find_distinct_entities,
    find_error_lines,
    find_last_line,
    reports_success,
    split_sentences,
)
from holdfast.extraction.tool_calls import (
    CallAction,
    PlannedTask,
    RunState,
    ShellCommand,
    find_covered_parts,
    find_failed_lines,
    find_failing_tests,
    find_passing_tests,
    interpret_call,
    judge_run,
    parse_command,
    result_text,
)
from holdfast.extraction.user_text import (
    extract_user_words,
    find_prose_sentences,
    is_answer,
    is_consent,
    is_correction,
    remove_element,
    was_not_run,
)
from holdfast.types.blocks import Block, Image, ToolResult, ToolUse, join_text_blocks
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
ERRORS_PER_CALL_MAX = 4
DONE_STATUSES = ("completed", "done", "cancelled", "canceled", "deleted")
_Value = TypeVar("_Value")

_CONSTRAINT = re.compile(
    r"\b(never|always|must|do not|don't|dont|make sure|ensure|avoid|only use|prefer|should not|shouldn't|instead of)\b|"
    r"^(use|keep)\s",
    re.IGNORECASE,
)
_REPORT = re.compile(r"\b(?:i|we|it|they|you|that|this) (?:do not|don't|dont|shouldn't|should not)\b", re.IGNORECASE)
_DECISION = re.compile(
    r"\b(decided|decision|instead of|rather than|going with|go with|we'll|we will|chose|rejected|ruled out|keep)\b",
    re.IGNORECASE,
)
_DECIDED = re.compile(r"\b(?:we|i)(?:'ve| have)? (?:decided|chose|rejected|ruled out|agreed)\b", re.IGNORECASE)
_REASON = re.compile(
    r"\b(because|since|so that|otherwise|due to|to avoid|in order to|which means|that way|the reason)\b|, (?:as|so) ",
    re.IGNORECASE,
)
_NOT_FOUND = re.compile(
    r"does not exist|doesn't exist|no such file|ENOENT|file not found|cannot find the (?:file|path)|: not found$",
    re.IGNORECASE | re.MULTILINE,
)
_TASK_NUMBER = re.compile(r"\btask #?(\d{1,6})\b", re.IGNORECASE)


class UserRequest(msgspec.Struct, frozen=True):
    """What the user said; `is_answered` once the model has ended a turn after it.

    `is_consent` messages ask for nothing new; `is_correction` ones take back or restrict what was asked before.
    """

    number: int
    text: str
    is_answered: bool = False
    image_count: int = 0
    is_consent: bool = False
    is_correction: bool = False


class CitedText(msgspec.Struct, frozen=True):
    text: str
    number: int


class FileState(msgspec.Struct, frozen=True):
    """What was done with a file by calls that succeeded; `numbers` are messages, newest last.

    `writes` counts all changes, of which `edits` replaced a part. `is_missing` is what the newest call on it reported.
    `read_in` and `written_in` are the messages of the newest calls that did so.
    """

    path: str
    reads: int = 0
    writes: int = 0
    edits: int = 0
    is_deleted: bool = False
    is_missing: bool = False
    read_in: int = 0
    written_in: int = 0
    lines: tuple[tuple[int, int], ...] = ()
    numbers: tuple[int, ...] = ()
    at: int = 0


class CommandRun(msgspec.Struct, frozen=True):
    """A command and its newest result. `failing` has the parts that failed and have not been seen passing since.

    `only_looks` commands, such as `ls` and `git status`, show something and change or check nothing.
    """

    command: str
    times: int = 0
    state: RunState = "ran"
    has_result: bool = False
    last_line: str = ""
    number: int = 0
    failing: frozenset[str] = frozenset()
    only_looks: bool = False

    @property
    def is_failed(self) -> bool:
        return self.state == "failed"


class ErrorOccurrence(msgspec.Struct, frozen=True):
    """`resolved_in` is the message in which the same call or command succeeded, 0 if there is none."""

    line: str
    times: int
    number: int
    resolved_in: int = 0
    call: str = ""


class Mention(msgspec.Struct, frozen=True, gc=False):
    """A name or value, last seen in message `number`; `score` is its score then, at the reader's position `at`.

    `rank` orders mentions at any later position: the score halves every HALF_LIFE_ENTRIES entries, so at position t
    it is score * 2 ** ((at - t) / half-life), whose logarithm is log2(score) + at / half-life, less the same for all.
    There are thousands of mentions, so the garbage collector does not track them; none is in a reference cycle.
    """

    entity: Entity
    score: float
    times: int
    number: int
    at: int
    rank: float


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


def count_requests(entries: Iterable[HistoryEntry]) -> int:
    """How many entries are user requests, without extracting any other fact."""
    return sum(entry.role != "assistant" and _find_request(entry) is not None for entry in entries)


def _find_request(entry: HistoryEntry) -> tuple[str, int] | None:
    """What the user said in an entry, and the number of images; None if it is injected, or holds results alone or
    text of a client alone."""
    text = join_text_blocks(entry.content)
    if entry.is_injected or (not text.strip() and any(isinstance(block, ToolResult) for block in entry.content)):
        return None
    words = extract_user_words(text)
    images = sum(isinstance(block, Image) for block in entry.content)
    return None if not words and text.strip() and not images else (words, images)


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
        self.failing_tests: dict[str, tuple[CitedText, tuple[str, ...]]] = {}
        self.failed_once: set[str] = set()
        self.errors: dict[str, ErrorOccurrence] = {}
        self.errors_of: dict[str, set[str]] = {}
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
        if entry.role == "assistant":
            self._read_reply(join_text_blocks(entry.content), entry.content)
        elif (request := _find_request(entry)) is not None:
            self._read_request(*request)
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
            kept = islice(rank_mentions(self.mentions.values()), MENTIONS_MAX)
            self.mentions = {mention.entity: mention for mention in kept}

    def _read_request(self, words: str, images: int) -> None:
        self.requests.append(
            UserRequest(
                self.number,
                words,
                image_count=images,
                is_consent=not images and is_consent(words),
                is_correction=len(self.requests) > 0 and is_correction(words),
            )
        )
        if self.question is not None and is_answer(words):
            question = f"Asked in m{self.question.number}: {collapse_whitespace(self.question.text)}"
            self._add_decision(f"{question} The user answered: {collapse_whitespace(words)}")
        # Whatever the model asked last, the user has now replied.
        self.question = None
        for sentence in find_prose_sentences(words):
            if len(sentence) <= CONSTRAINT_CHARACTERS_MAX and _is_constraint(sentence):
                self.constraints.setdefault(collapse_whitespace(sentence).lower(), CitedText(sentence, self.number))
            self._add_reasoned_decision(sentence)
        self._add_mentions(words, SPOKEN_WEIGHT)

    def _add_reasoned_decision(self, sentence: str) -> None:
        """A sentence that says what was decided, or gives a reason for it; announcements of a next step do neither."""
        if len(sentence) > DECISION_CHARACTERS_MAX or sentence.endswith(("?", ":")):
            return
        if _DECIDED.search(sentence) or (_DECISION.search(sentence) and _REASON.search(sentence)):
            self._add_decision(sentence)

    def _add_decision(self, text: str) -> None:
        key = collapse_whitespace(text).lower()
        self.decisions.pop(key, None)
        self.decisions[key] = CitedText(text, self.number)

    def _read_reply(self, text: str, content: Sequence[Block]) -> None:
        calls = [block for block in content if isinstance(block, ToolUse)]
        if text.strip():
            self.current_work = CitedText(text, self.number)
            self._add_mentions(text, SPOKEN_WEIGHT)
            for sentence in find_prose_sentences(text):
                self._add_reasoned_decision(sentence)
        for call in calls:
            self._read_call(call)
        if not calls:
            for index in range(self.first_unanswered, len(self.requests)):
                self.requests[index] = msgspec.structs.replace(self.requests[index], is_answered=True)
            self.first_unanswered = len(self.requests)
            questions = [sentence_text for sentence_text in split_sentences(text)[-3:] if sentence_text.endswith("?")]
            self.question = CitedText(questions[-1], self.number) if questions else None
            self.steps.append(CitedText(collapse_whitespace(text[:600]), self.number))

    def _read_call(self, call: ToolUse) -> None:
        action = interpret_call(call)
        self.tools[call.name] += 1
        self.calls[call.id] = action, self.number
        for text in action.texts:
            self._add_mentions(text, SPOKEN_WEIGHT)
        if action.kind == "run" and action.command:
            self._add_mention(Entity("command", collapse_whitespace(action.command)[:160]), SPOKEN_WEIGHT)
        if action.kind == "plan":
            self._update_tasks(action)

    def _update_tasks(self, action: CallAction) -> None:
        """A list replaces the list before; a single task is added, or changes the one that has its id."""
        if action.is_task_list:
            self.tasks = {f"#{index}": (task, self.number) for index, task in enumerate(action.tasks)}
            return
        for task in action.tasks:
            key = f"id {action.task_id}" if action.task_id else task.text
            existing = self.tasks.get(key, (PlannedTask(""), 0))[0]
            self.tasks[key] = PlannedTask(task.text or existing.text, task.status or existing.status), self.number

    def _name_task(self, action: CallAction, text: str) -> None:
        """Task tools report the id of a new task in its result."""
        is_new = action.kind == "plan" and not action.is_task_list and not action.task_id and len(action.tasks) == 1
        match = _TASK_NUMBER.search(text[:400]) if is_new else None
        if match is not None and (created := self.tasks.pop(action.tasks[0].text, None)) is not None:
            self.tasks[f"id {match.group(1)}"] = created

    def _read_result(self, result: ToolResult) -> None:
        text = remove_element(result_text(result), "system-reminder")
        # Attribute a result to the message of its call: both are one group, and the call says what it is.
        action, self.number = self.calls.pop(result.tool_use_id, (CallAction("other", result.name), self.number))
        if was_not_run(text):
            return
        self._add_mentions(text, 1.0)
        self._name_task(action, text)
        if action.path and action.kind in ("read", "write", "delete"):
            self._update_file(action, text, result.is_error)
        if action.kind == "run" and action.command:
            self._update_command(action, text, is_error=result.is_error)
        else:
            self._update_call_errors(action, text, result.is_error)

    def _update_file(self, action: CallAction, text: str, is_failed: bool) -> None:
        change = msgspec.structs.replace
        is_missing = is_failed and _NOT_FOUND.search(text[:2_000]) is not None
        if is_failed and not is_missing and action.path not in self.files:
            return
        file = self.files.pop(action.path, FileState(action.path))
        file = change(file, numbers=(*file.numbers[-2:], self.number), at=self.at)
        if is_missing and action.kind == "read":
            file = change(file, is_missing=True)
        elif not is_failed and action.kind == "read":
            lines = file.lines if action.lines is None else (*file.lines[-3:], action.lines)
            file = change(file, reads=file.reads + 1, lines=lines, read_in=self.number)
            file = change(file, is_deleted=False, is_missing=False)
        elif not is_failed and action.kind == "write":
            file = change(file, writes=file.writes + 1, edits=file.edits + action.is_edit, written_in=self.number)
            file = change(file, is_deleted=False, is_missing=False)
        elif not is_failed and action.kind == "delete":
            file = change(file, is_deleted=True, is_missing=False)
        self.files[action.path] = file

    def _update_command(self, action: CallAction, text: str, *, is_error: bool) -> None:
        parsed = parse_command(action.command)
        state = judge_run(parsed, text, is_error=is_error)
        before = self.commands.pop(action.command, CommandRun(action.command))
        self.commands[action.command] = CommandRun(
            action.command,
            times=before.times + 1,
            state=state,
            has_result=True,
            last_line=find_last_line(text, 120),
            number=self.number,
            failing=frozenset(parsed.parts) if state == "failed" else frozenset(),
            only_looks=parsed.only_looks,
        )
        if parsed.only_looks:
            return
        self._supersede_failures(action.command, parsed, state)
        self._resolve_errors(action.command)
        if state == "failed":
            last_line = [find_last_line(text, 200)] if is_error else []
            self._add_errors(action.command, find_error_lines(text) or find_failed_lines(text) or last_line)
        self._update_tests(parsed, text)

    def _supersede_failures(self, newest: str, parsed: ShellCommand, state: RunState) -> None:
        """What ran again, however it was written before, is known by its newest result alone."""
        for command, run in self.commands.items():
            if run.failing and command != newest:
                earlier = parse_command(command)
                ran_again = parsed.parts if state == "failed" else find_covered_parts(earlier, parsed)
                failing = run.failing.difference(ran_again)
                self.commands[command] = msgspec.structs.replace(run, failing=failing)
                if not failing:
                    self._resolve_errors(command)

    def _update_tests(self, parsed: ShellCommand, text: str) -> None:
        names = find_failing_tests(text)
        for name in find_passing_tests(text):
            self.failing_tests.pop(name, None)
        # The same tests ran again, or all of them: only those that this run names still fail.
        for name, (_, parts) in list(self.failing_tests.items()):
            if parsed.runs_all_tests or set(parts) <= set(parsed.parts):
                del self.failing_tests[name]
        for name in names:
            self.failing_tests[name] = CitedText(name, self.number), parsed.parts
        self.failed_once.update(names)

    def _update_call_errors(self, action: CallAction, text: str, is_failed: bool) -> None:
        """Errors of other calls; one is resolved as soon as the same call succeeds."""
        # A search that fails has found nothing, and a file that is missing is listed with the files.
        call = f"{action.tool} {action.path or action.pattern}".strip()
        if not is_failed:
            self._resolve_errors(call)
        elif action.kind != "search" and not (action.path and _NOT_FOUND.search(text[:2_000])):
            self._add_errors(call, (find_error_lines(text) or [find_last_line(text, 200)])[:1])

    def _add_errors(self, call: str, lines: Sequence[str]) -> None:
        # One noisy result must not push out the errors of all others.
        for line in lines[:ERRORS_PER_CALL_MAX]:
            if line and not reports_success(line):
                sign = error_signature(line)
                before = self.errors.pop(sign, None)
                times = before.times + 1 if before else 1
                self.errors[sign] = ErrorOccurrence(line, times, self.number, call=call)
                self.errors_of.setdefault(call, set()).add(sign)

    def _resolve_errors(self, call: str) -> None:
        for sign in self.errors_of.pop(call, ()):
            error = self.errors.get(sign)
            if error is not None and error.call == call:
                self.errors[sign] = msgspec.structs.replace(error, resolved_in=self.number)

    def _add_mentions(self, text: str, weight: float) -> None:
        for entity in find_distinct_entities(text):
            self._add_mention(entity, weight)

    def _add_mention(self, entity: Entity, weight: float) -> None:
        existing = self.mentions.get(entity)
        score, times = weight, 1
        if existing:
            # The score has decayed since the mention was last seen.
            score += existing.score * 0.5 ** ((self.at - existing.at) / HALF_LIFE_ENTRIES)
            times += existing.times
        rank = math.log2(score) + self.at / HALF_LIFE_ENTRIES
        self.mentions[entity] = Mention(entity, score, times, self.number, self.at, rank)

    def facts(self) -> ConversationFacts:
        return ConversationFacts(
            requests=tuple(self.requests),
            constraints=tuple(self.constraints.values()),
            decisions=tuple(self.decisions.values()),
            questions=(self.question,) if self.question else (),
            tasks=tuple(task for task in self.tasks.values() if task[0].text),
            open_calls=tuple(self.calls.values()),
            files=tuple(sorted(self.files.values(), key=lambda file: -file.at)),
            commands=tuple(reversed(self.commands.values())),
            failing_tests=tuple(test for test, _ in self.failing_tests.values()),
            fixed_tests=len(self.failed_once - self.failing_tests.keys()),
            errors=tuple(reversed(self.errors.values())),
            mentions=tuple(self.mentions.values()),
            steps=tuple(self.steps),
            tools=tuple(sorted(self.tools.items())),
            current_work=self.current_work,
            messages=tuple(sorted(self.messages.items())),
        )


def rank_mentions(mentions: Iterable[Mention]) -> Iterator[Mention]:
    """All mentions, highest score first, those of equal score by kind and text.

    Lazy, because thousands have the same score and a summary has room for the first few hundred.
    """
    by_rank = sorted(mentions, key=attrgetter("rank"), reverse=True)
    for _, run in groupby(by_rank, key=attrgetter("rank")):
        yield from sorted(run, key=_kind_and_text)


def _kind_and_text(mention: Mention) -> tuple[str, str]:
    return mention.entity.kind, mention.entity.text


def _is_constraint(sentence: str) -> bool:
    """Whether a sentence says how to work; questions and reports ("I don't see it") do not."""
    return not sentence.endswith("?") and not _REPORT.search(sentence) and _CONSTRAINT.search(sentence) is not None


def _drop_oldest(values: dict[str, _Value], *, keep_first: int = 0) -> bool:
    """Trim to FACTS_MAX once there are twice as many; whether it did."""
    if len(values) <= 2 * FACTS_MAX:
        return False
    for key in list(values)[keep_first : len(values) - FACTS_MAX]:
        del values[key]
    return True
