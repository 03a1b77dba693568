"""What a stretch of conversation holds: asks, files, commands, errors, tasks and names, each with where it stands."""

import re
from collections.abc import Sequence

import msgspec

from holdfast.canonical.blocks import Block, Image, ToolResult, ToolUse, text_of
from holdfast.canonical.encoding import digest
from holdfast.canonical.prompt import Passage
from holdfast.extraction.calls import Action, Task, action_of, failed, failing_tests, result_text
from holdfast.extraction.entities import Entity, entities_in, error_lines, signature
from holdfast.extraction.texts import folded, last_line, sentences

HALF_LIFE_PASSAGES = 30.0
"""After so many messages a mention counts half."""

SPOKEN_WEIGHT = 3.0
"""What a person or the model says or asks for counts so much more than what stands in a tool's output."""

CONSTRAINT_CHARACTERS_MAX = 400
DECISION_CHARACTERS_MAX = 300
DONE = ("completed", "done", "cancelled", "canceled", "deleted")

_CONSTRAINT = re.compile(
    r"\b(never|always|must|do not|don't|dont|make sure|ensure|avoid|only use|prefer|should not|shouldn't|instead of)\b|"
    r"^(use|keep)\s",
    re.IGNORECASE,
)
_DECISION = re.compile(
    r"\b(decided|decision|instead of|rather than|going with|we'll use|we will use|chose|rejected|ruled out)\b",
    re.IGNORECASE,
)
_COMMIT = re.compile(r"\bgit (commit|push)\b")


class Ask(msgspec.Struct, frozen=True):
    """What a person said; `answered` once the model has ended a turn behind it."""

    number: int
    text: str
    answered: bool = False
    others: int = 0


class Noted(msgspec.Struct, frozen=True):
    """A piece of text and the message it stands in."""

    text: str
    number: int


class FileState(msgspec.Struct, frozen=True):
    """What was done with a file; `sha` is that of what was last read or written whole, `numbers` the newest last."""

    path: str
    reads: int = 0
    writes: int = 0
    deleted: bool = False
    sha: str = ""
    written_since_read: bool = False
    lines: tuple[tuple[int, int], ...] = ()
    numbers: tuple[int, ...] = ()
    at: int = 0


class Ran(msgspec.Struct, frozen=True):
    command: str
    times: int = 0
    failed: bool = False
    answered: bool = False
    last_line: str = ""
    number: int = 0


class ErrorSeen(msgspec.Struct, frozen=True):
    """`resolved` is the message in which the same call went well, 0 as long as there is none."""

    line: str
    times: int
    number: int
    resolved: int = 0


class Mention(msgspec.Struct, frozen=True):
    entity: Entity
    score: float
    times: int
    number: int
    at: int


class Facts(msgspec.Struct, frozen=True):
    asks: tuple[Ask, ...] = ()
    constraints: tuple[Noted, ...] = ()
    decisions: tuple[Noted, ...] = ()
    questions: tuple[Noted, ...] = ()
    tasks: tuple[tuple[Task, int], ...] = ()
    open_calls: tuple[tuple[Action, int], ...] = ()
    files: tuple[FileState, ...] = ()
    commands: tuple[Ran, ...] = ()
    failing: tuple[Noted, ...] = ()
    mended: int = 0
    errors: tuple[ErrorSeen, ...] = ()
    mentions: tuple[Mention, ...] = ()
    steps: tuple[Noted, ...] = ()
    tools: tuple[tuple[str, int], ...] = ()
    current: Noted | None = None
    messages: tuple[tuple[str, int], ...] = ()


def facts_of(passages: Sequence[Passage]) -> Facts:
    """What the passages hold that people, the model and tools have said; text of layers is no fact.

    What the model thought for itself is never looked at.
    """
    reader = _Reader()
    for at, passage in enumerate(passages):
        if not passage.injected:
            reader.read(at, passage)
    return reader.facts()


class _Reader:
    def __init__(self) -> None:
        self.at = 0
        self.number = 0
        self.asks: list[Ask] = []
        self.constraints: dict[str, Noted] = {}
        self.decisions: dict[str, Noted] = {}
        self.question: Noted | None = None
        self.tasks: dict[str, tuple[Task, int]] = {}
        self.calls: dict[str, tuple[Action, int]] = {}
        self.files: dict[str, FileState] = {}
        self.commands: dict[str, Ran] = {}
        self.failing: dict[str, Noted] = {}
        self.failed_once: set[str] = set()
        self.errors: dict[str, ErrorSeen] = {}
        self.errors_of: dict[tuple[str, str, str], set[str]] = {}
        self.mentions: dict[Entity, Mention] = {}
        self.steps: list[Noted] = []
        self.tools: dict[str, int] = {}
        self.current: Noted | None = None
        self.messages: dict[str, int] = {}

    def read(self, at: int, passage: Passage) -> None:
        self.at, self.number = at, passage.number
        results = [block for block in passage.content if isinstance(block, ToolResult)]
        role = "tool" if results else passage.role
        self.messages[role] = self.messages.get(role, 0) + 1
        for result in results:
            self._result(result)
            self.number = passage.number
        text = text_of(passage.content)
        if passage.role == "assistant":
            self._spoken(text, passage.content)
        elif text.strip() or not results:
            self._asked(text, passage.content)

    def _asked(self, text: str, content: Sequence[Block]) -> None:
        others = sum(isinstance(block, Image) for block in content)
        self.asks.append(Ask(self.number, text, others=others))
        self.question = None
        for sentence in sentences(text):
            if len(sentence) <= CONSTRAINT_CHARACTERS_MAX and _CONSTRAINT.search(sentence):
                self.constraints.setdefault(folded(sentence).lower(), Noted(sentence, self.number))
        self._mention(text, SPOKEN_WEIGHT)

    def _spoken(self, text: str, content: Sequence[Block]) -> None:
        calls = [block for block in content if isinstance(block, ToolUse)]
        if text.strip():
            self.current = Noted(text, self.number)
            self._mention(text, SPOKEN_WEIGHT)
            for sentence in sentences(text):
                if len(sentence) <= DECISION_CHARACTERS_MAX and _DECISION.search(sentence):
                    self.decisions[folded(sentence).lower()] = Noted(sentence, self.number)
        for call in calls:
            self._call(call)
        if not calls:
            self.asks = [ask if ask.answered else msgspec.structs.replace(ask, answered=True) for ask in self.asks]
            asked = [one for one in sentences(text)[-3:] if one.endswith("?")]
            self.question = Noted(asked[-1], self.number) if asked else None
        self.steps.append(Noted(_step(text, calls), self.number))

    def _call(self, call: ToolUse) -> None:
        action = action_of(call)
        self.tools[call.name] = self.tools.get(call.name, 0) + 1
        self.calls[call.id] = action, self.number
        for text in action.texts:
            self._mention(text, SPOKEN_WEIGHT)
        if action.kind == "run" and action.command:
            self._count(Entity("command", folded(action.command)[:160]), SPOKEN_WEIGHT)
            before = self.commands.pop(action.command, Ran(action.command))
            self.commands[action.command] = msgspec.structs.replace(before, times=before.times + 1, number=self.number)
        if action.kind == "plan":
            self._plan(action)

    def _plan(self, action: Action) -> None:
        if len(action.tasks) != 1 or not action.task_id:
            if len(action.tasks) > 1:
                self.tasks.clear()
            for task in action.tasks:
                self.tasks[task.text] = task, self.number
            return
        (task,) = action.tasks
        listed = [name for name, (known, _) in self.tasks.items() if known.text]
        position = int(action.task_id) - 1 if action.task_id.isdigit() else -1
        name = listed[position] if not task.text and 0 <= position < len(listed) else task.text
        if name:
            known = self.tasks.get(name, (Task(name), 0))[0]
            self.tasks[name] = Task(known.text or name, task.status or known.status), self.number

    def _result(self, result: ToolResult) -> None:
        text = result_text(result)
        # A result is told of by the message that asked for it: both are one group, and the call says what it is.
        action, self.number = self.calls.pop(result.tool_use_id, (Action("other", result.name), self.number))
        bad = failed(result)
        self._mention(text, 1.0)
        if action.path:
            self._touch(action, text, bad)
        if action.command in self.commands:
            ran = self.commands[action.command]
            self.commands[action.command] = msgspec.structs.replace(
                ran, failed=bad, answered=True, last_line=last_line(text, 120), number=self.number
            )
        self._tests(action, text, bad)
        self._errors(action, text, bad)

    def _touch(self, action: Action, text: str, bad: bool) -> None:
        before = self.files.get(action.path, FileState(action.path))
        touched = msgspec.structs.replace(before, numbers=(*before.numbers[-2:], self.number), at=self.at)
        if not bad and action.kind == "read":
            lines = touched.lines if action.lines is None else (*touched.lines[-3:], action.lines)
            sha = digest(text.encode("utf-8", "surrogatepass"))[:8] if action.lines is None else touched.sha
            touched = msgspec.structs.replace(
                touched, reads=touched.reads + 1, sha=sha, lines=lines, written_since_read=False, deleted=False
            )
        elif not bad and action.kind == "write":
            touched = msgspec.structs.replace(
                touched, writes=touched.writes + 1, written_since_read=True, deleted=False
            )
        elif not bad and action.kind == "delete":
            touched = msgspec.structs.replace(touched, deleted=True)
        self.files[action.path] = touched

    def _tests(self, action: Action, text: str, bad: bool) -> None:
        if action.kind != "run":
            return
        names = failing_tests(text)
        for name in names:
            self.failing.setdefault(name, Noted(name, self.number))
        self.failed_once.update(names)
        if not names and not bad and re.search(r"\btest", action.command):
            self.failing.clear()

    def _errors(self, action: Action, text: str, bad: bool) -> None:
        lines = error_lines(text) if bad or action.kind == "run" else []
        if not lines and bad:
            lines = [line for line in [last_line(text, 200)] if line]
        if not bad and not lines:
            for known in self.errors_of.pop(action.key, ()):
                self.errors[known] = msgspec.structs.replace(self.errors[known], resolved=self.number)
        for line in lines[:8]:
            sign = signature(line)
            before = self.errors.pop(sign, None)
            self.errors[sign] = ErrorSeen(line, before.times + 1 if before else 1, self.number)
            self.errors_of.setdefault(action.key, set()).add(sign)

    def _mention(self, text: str, weight: float) -> None:
        for entity in dict.fromkeys(entities_in(text)):
            self._count(entity, weight)

    def _count(self, entity: Entity, weight: float) -> None:
        known = self.mentions.get(entity)
        if known is None:
            self.mentions[entity] = Mention(entity, weight, 1, self.number, self.at)
            return
        faded = known.score * 0.5 ** ((self.at - known.at) / HALF_LIFE_PASSAGES)
        self.mentions[entity] = Mention(entity, faded + weight, known.times + 1, self.number, self.at)

    def facts(self) -> Facts:
        mentions = [
            msgspec.structs.replace(one, score=one.score * 0.5 ** ((self.at - one.at) / HALF_LIFE_PASSAGES))
            for one in self.mentions.values()
        ]
        return Facts(
            asks=tuple(self.asks),
            constraints=tuple(self.constraints.values()),
            decisions=tuple(self.decisions.values()),
            questions=(self.question,) if self.question else (),
            tasks=tuple(one for one in self.tasks.values() if one[0].text),
            open_calls=tuple(self.calls.values()),
            files=tuple(sorted(self.files.values(), key=lambda one: -one.at)),
            commands=tuple(reversed(self.commands.values())),
            failing=tuple(self.failing.values()),
            mended=len(self.failed_once - self.failing.keys()),
            errors=tuple(reversed(self.errors.values())),
            mentions=tuple(sorted(mentions, key=lambda one: (-one.score, one.entity.kind, one.entity.text))),
            steps=tuple(self.steps),
            tools=tuple(sorted(self.tools.items())),
            current=self.current,
            messages=tuple(sorted(self.messages.items())),
        )


def _step(text: str, calls: Sequence[ToolUse]) -> str:
    """One line on what the model did: its words, or what it called with what."""
    done = []
    for call in calls:
        action = action_of(call)
        done.append(folded(f"{call.name} {action.path or action.command or action.pattern}"[:300]))
    return "; ".join(done) if done else folded(text[:600])
