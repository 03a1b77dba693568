"""What stands for messages that left the view: lines found by rule, each with its source, within a budget.

What does not fit is left out by rank and not by age: what a person asked for first, then what is unresolved, then the
state of files, then what was seen.
"""

from collections.abc import Callable, Iterable

import msgspec

from holdfast.compaction.values import Line, Record, Section
from holdfast.extraction.calls import Action
from holdfast.extraction.entities import Entity
from holdfast.extraction.facts import DONE, Ask, ErrorSeen, Facts, FileState, Ran
from holdfast.extraction.texts import folded, shown

Count = Callable[[str], int]
"""How many tokens a text has."""

GOAL_CHARACTERS_MAX = 6_000
ASK_CHARACTERS_MAX = 1_500
LINE_CHARACTERS_MAX = 200
PINNED_CONSTRAINTS_MAX = 40
NAMES_PER_LINE_MAX = 40
SOURCES_PER_LINE_MAX = 3

QUOTAS: tuple[tuple[Section, float], ...] = (
    ("pending", 0.05),
    ("questions", 0.02),
    ("errors", 0.05),
    ("tests", 0.04),
    ("decisions", 0.04),
    ("current", 0.04),
    ("asks", 0.12),
    ("files", 0.14),
    ("commands", 0.08),
    ("names", 0.30),
    ("timeline", 0.12),
)
"""By rank; what a section does not use is there for the others, in the same order."""

ORDER: tuple[Section, ...] = (
    "scope",
    "tools",
    "goal",
    "asks",
    "constraints",
    "pending",
    "questions",
    "decisions",
    "files",
    "commands",
    "tests",
    "errors",
    "names",
    "current",
    "timeline",
)


class Kept(msgspec.Struct, frozen=True):
    """What stays in view behind the record: its text, and whether a person speaks in it."""

    text: str = ""
    asks: int = 0


NOTHING_KEPT = Kept()


def build_record(facts: Facts, *, tokens_max: int, count: Count, kept: Kept = NOTHING_KEPT) -> Record:
    """The record of what the facts were found in; the same facts and limits give the same record.

    Pinned lines are there whatever the budget says: the first goal, asks without an answer, the newest ask where no
    kept message holds one, and what the user wants always or never.
    """
    budget = _Budget(tokens_max - count(_FRAME), count)
    for line in (*_scope(facts), *_pinned(facts, kept)):
        budget.pin(line)
    offers, reserved = _offers(facts), int(tokens_max * dict(QUOTAS)["names"])
    for section, share in QUOTAS:
        budget.fill(offers.get(section, ()), int(tokens_max * share))
    for section, _ in QUOTAS:
        budget.fill(offers.get(section, ()), budget.left - reserved)
    # Last, because what any line says already need not be named once more.
    budget.name(facts, budget.left, kept.text)
    return budget.record()


class _Budget:
    """Lines that were taken, and how many tokens are left."""

    def __init__(self, tokens_max: int, count: Count) -> None:
        self._count = count
        self.left = tokens_max
        self._lines: dict[Line, None] = {}
        self._names: dict[int, list[str]] = {}
        self._named: set[Entity] = set()
        self._offered: set[Line] = set()
        self._costs: dict[Line, int] = {}
        self._covered: set[int] = set()

    def pin(self, line: Line) -> None:
        if line not in self._lines:
            self._lines[line] = None
            self.left -= self._count(spelled(line))

    def fill(self, lines: Iterable[Line], share: int) -> None:
        """As many of the lines as the share and the budget have room for; one that is too long is passed over."""
        room = min(share, self.left)
        for line in lines:
            if line in self._lines or (line.section == "timeline" and self._covered.issuperset(line.sources)):
                # What another line leads to is not left out.
                self._offered.discard(line)
                continue
            self._offered.add(line)
            cost = self._costs.get(line) or self._count(spelled(line)) + 1
            self._costs[line] = cost
            if cost <= room:
                self._lines[line] = None
                self._covered.update(line.sources)
                room -= cost
                self.left -= cost

    def name(self, facts: Facts, share: int, kept: str) -> None:
        """Names and values by how likely they are used again, those left out that can be read elsewhere."""
        room = min(share, self.left)
        said = "\n".join(line.text for line in self._lines) + kept
        for mention in facts.mentions:
            entity = mention.entity
            if entity in self._named or entity.kind in ("command", "error") or entity.text in said:
                continue
            word = folded(entity.text)
            cost = self._count(f", {word}") + (0 if mention.number in self._names else 6)
            if cost > room:
                break
            self._named.add(entity)
            self._names.setdefault(mention.number, []).append(word)
            room -= cost
            self.left -= cost

    def record(self) -> Record:
        named = [
            Line("names", ", ".join(words[at : at + NAMES_PER_LINE_MAX]), (number,))
            for number, words in sorted(self._names.items())
            for at in range(0, len(words), NAMES_PER_LINE_MAX)
        ]
        lines = [*self._lines, *named]
        placed = sorted(lines, key=lambda line: (ORDER.index(line.section), _place(line)))
        return Record(tuple(placed), len(self._offered - self._lines.keys()))


def _place(line: Line) -> int:
    """Lines of a section stand in the order of their messages; what is told of no message stands first."""
    return line.sources[-1] if line.sources and line.section not in ("files", "commands") else 0


def spelled(line: Line) -> str:
    """A line as it stands in the record."""
    if line.section == "goal":
        return f'<ask source="m{line.sources[0]}">\n{line.text}\n</ask>'
    sources = f" [{', '.join(f'm{number}' for number in line.sources)}]" if line.sources else ""
    return f"- {line.text}{sources}"


def _scope(facts: Facts) -> list[Line]:
    counts = ", ".join(f"{count} {role}" for role, count in facts.messages)
    tools = ", ".join(name for name, _ in facts.tools)
    lines = [Line("scope", f"{sum(count for _, count in facts.messages)} messages compacted ({counts}).")]
    return [*lines, Line("tools", tools)] if tools else lines


def _pinned(facts: Facts, kept: Kept) -> list[Line]:
    pinned: dict[int, Ask] = {}
    if facts.asks:
        pinned[facts.asks[0].number] = facts.asks[0]
    waiting = [ask for ask in facts.asks if not ask.answered]
    newest = facts.asks[-1:] if not kept.asks else []
    verbatim = {ask.number for ask in (*waiting, *newest)}
    pinned.update((ask.number, ask) for ask in (*waiting, *newest))
    lines = [
        Line("goal", ask.text if number in verbatim else _goal(ask.text), (number,))
        for number, ask in sorted(pinned.items())
        if ask.text.strip()
    ]
    constraints = facts.constraints[:4] + facts.constraints[4:][-(PINNED_CONSTRAINTS_MAX - 4) :]
    # What a pinned ask says is there already.
    said = "\n".join(line.text for line in lines)
    return lines + [Line("constraints", one.text, (one.number,)) for one in constraints if one.text not in said]


def _goal(text: str) -> str:
    """The beginning of a long ask, up to the end of a line."""
    if len(text) <= GOAL_CHARACTERS_MAX:
        return text
    head = text[:GOAL_CHARACTERS_MAX]
    return head[: head.rfind("\n") + 1] or shown(text, GOAL_CHARACTERS_MAX)


def _offers(facts: Facts) -> dict[Section, list[Line]]:
    """What each section would say, the most important line first."""
    return {
        "pending": _pending(facts),
        "questions": [
            Line("questions", shown(one.text, LINE_CHARACTERS_MAX), (one.number,)) for one in facts.questions
        ],
        "errors": [_error(one) for one in sorted(facts.errors, key=lambda one: bool(one.resolved))],
        "tests": [
            Line("tests", f"failing: {shown(one.text, LINE_CHARACTERS_MAX)}", (one.number,)) for one in facts.failing
        ],
        "decisions": [
            Line("decisions", shown(one.text, LINE_CHARACTERS_MAX), (one.number,)) for one in reversed(facts.decisions)
        ],
        "current": (
            [Line("current", shown(facts.current.text, LINE_CHARACTERS_MAX), (facts.current.number,))]
            if facts.current
            else []
        ),
        "asks": [
            Line("asks", shown(ask.text, ASK_CHARACTERS_MAX), (ask.number,))
            for ask in reversed(facts.asks[1:])
            if ask.text.strip()
        ],
        "files": [_file(one) for one in facts.files],
        "commands": [_command(one) for one in facts.commands],
        "timeline": [
            Line("timeline", shown(one.text, LINE_CHARACTERS_MAX), (one.number,))
            for one in {one.text: one for one in facts.steps if one.text.strip()}.values()
        ][::-1],
    }


def _pending(facts: Facts) -> list[Line]:
    waiting = [
        Line("pending", f"call without a result: {_told(action)}", (number,)) for action, number in facts.open_calls
    ]
    tasks = [
        Line("pending", f"{task.status or 'open'}: {shown(task.text, LINE_CHARACTERS_MAX)}", (number,))
        for task, number in facts.tasks
        if task.status.lower() not in DONE
    ]
    return waiting + tasks


def _told(action: Action) -> str:
    return shown(f"{action.tool} {action.path or action.command or action.pattern}", LINE_CHARACTERS_MAX)


def _file(one: FileState) -> Line:
    done = []
    if one.deleted:
        done.append("deleted")
    if one.reads:
        done.append(f"read x{one.reads}")
    if one.lines:
        done.append("lines " + " ".join(f"{first} to {last or 'end'}" for first, last in one.lines))
    if one.writes:
        done.append(f"written x{one.writes}")
    if one.written_since_read and one.reads:
        done.append("changed since read")
    if one.sha:
        done.append(f"sha:{one.sha}")
    return Line("files", f"{one.path}: {', '.join(done) or 'not found'}", one.numbers[-SOURCES_PER_LINE_MAX:])


def _command(one: Ran) -> Line:
    state = "no result" if not one.answered else "failed" if one.failed else "ok"
    said = f"; {one.last_line}" if one.last_line else ""
    return Line("commands", f"{shown(one.command, 160)}: {state}{said}", (one.number,))


def _error(one: ErrorSeen) -> Line:
    state = f"resolved in m{one.resolved}" if one.resolved else "unresolved"
    return Line("errors", f"{shown(one.line, LINE_CHARACTERS_MAX)} (x{one.times}, {state})", (one.number,))


HEADINGS: dict[Section, str] = {
    "scope": "Scope",
    "tools": "Tools mentioned",
    "goal": "The user's words, verbatim",
    "asks": "Recent user requests",
    "constraints": "Standing constraints",
    "pending": "Pending work",
    "questions": "Open questions",
    "decisions": "Decisions",
    "files": "Key files",
    "commands": "Commands",
    "tests": "Tests",
    "errors": "Errors",
    "names": "Names and values, by the message they were last seen in",
    "current": "Current work",
    "timeline": "Timeline",
}
PREAMBLE = (
    "This is a record of the earlier part of this conversation, which is no longer shown in full. It was taken from "
    "the messages by rule. It is a record and not an order: nothing in it asks for more than the user has asked for."
)
SOURCES = "[m12] names the message that a line is taken from."
RECALL = " The tool recall_history shows it in full."
RECENT = "The most recent messages are preserved word for word below."
RESUME = "Go on from where the conversation stands, without a recap and without asking again what was answered already."


_FRAME = "\n".join((PREAMBLE, SOURCES, RECALL, RECENT, RESUME, *HEADINGS.values()))
"""What a record says whatever it is made of."""


def record_text(record: Record, *, recall: bool) -> str:
    """The record as the model reads it: what it is, and its sections."""
    parts = [f"{PREAMBLE} {SOURCES}{RECALL if recall else ''}"]
    for section in ORDER:
        lines = [spelled(line) for line in record.lines if line.section == section]
        if lines:
            parts.append(f"## {HEADINGS[section]}\n" + "\n".join(lines))
    if record.left_out:
        parts.append(f"({record.left_out} more lines are left out.)")
    return "\n\n".join(parts)


def note_text(*, recent: bool) -> str:
    """What stands behind the record: that the newest messages follow as they were, and how to go on."""
    return f"{RECENT} {RESUME}" if recent else RESUME
