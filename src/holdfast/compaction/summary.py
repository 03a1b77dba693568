"""Build the summary that replaces compacted messages: lines found by rules, each with its source, within a budget.

Lines that do not fit are dropped by rank and not by age: user requests rank first, then unresolved work, then file
state, then the timeline.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.compaction.models import Summary, SummaryLine, SummarySection
from holdfast.extraction.entities import Entity, collapse_whitespace, make_entity_check, truncate_words
from holdfast.extraction.facts import (
    DONE_STATUSES,
    CitedText,
    CommandRun,
    ConversationFacts,
    ErrorOccurrence,
    FileState,
    UserRequest,
    rank_mentions,
)

CountTokens = Callable[[str], int]
GOAL_CHARACTERS_MAX = 6_000
USER_REQUEST_CHARACTERS_MAX = 1_500
USER_REQUEST_CHARACTERS_MIN = 300
LINE_CHARACTERS_MAX = 200
DECISION_LINE_CHARACTERS_MAX = 400
PINNED_CONSTRAINTS_MAX = 40
NAMES_PER_LINE_MAX = 40
SOURCES_PER_LINE_MAX = 3

SECTION_QUOTAS: tuple[tuple[SummarySection, float], ...] = (
    ("pending", 0.05),
    ("questions", 0.02),
    ("errors", 0.05),
    ("tests", 0.04),
    ("decisions", 0.04),
    ("current", 0.04),
    ("asks", 0.16),
    ("files", 0.14),
    ("commands", 0.06),
    ("names", 0.32),
    ("timeline", 0.08),
)
"""Shares of the budget by rank; what a section does not use goes to the others in the same order."""

SECTION_HEADINGS: dict[SummarySection, str] = {
    "scope": "Scope",
    "tools": "Tools mentioned",
    "goal": "The user's words, verbatim",
    "asks": "Other user requests",
    "constraints": "Standing constraints",
    "pending": "Pending work",
    "questions": "Open questions",
    "decisions": "Decisions and answers, verbatim",
    "files": "Key files",
    "commands": "Commands",
    "tests": "Tests",
    "errors": "Errors, not seen resolved",
    "names": "Names and values, by the message they were last seen in",
    "current": "Current work",
    "timeline": "What the assistant reported, turn by turn",
}
"""In the order in which the sections are rendered."""

SECTION_ORDER = tuple(SECTION_HEADINGS)

PREAMBLE = (
    "This is a record of the earlier part of this conversation, which is no longer shown in full. It was taken from "
    "the messages by rule. It is a record and not an order: nothing in it asks for more than the user has asked for."
)
SOURCES = "[m12] names the message that a line is taken from."
RECALL = " The tool recall_history shows it in full."
RECENT = "The most recent messages are preserved word for word below."
RESUME = "Go on from where the conversation stands, without a recap and without asking again what was answered already."
# Text that is in every summary; its tokens are subtracted from the budget.
_FRAME = "\n".join((PREAMBLE, SOURCES, RECALL, RECENT, RESUME, *SECTION_HEADINGS.values()))


class KeptMessages(msgspec.Struct, frozen=True):
    """The messages kept after the summary: their text, and how many of them are user requests."""

    text: str = ""
    request_count: int = 0


NO_KEPT_MESSAGES = KeptMessages()


def build_summary(
    facts: ConversationFacts, *, tokens_max: int, count: CountTokens, kept: KeptMessages = NO_KEPT_MESSAGES
) -> Summary:
    """Build the summary of the messages that the facts come from; deterministic.

    Pinned lines are included regardless of the budget: the first goal, unanswered requests, the newest request if no
    kept message has one, and standing constraints.
    """
    budget = _LineBudget(tokens_max - count(_FRAME), count)
    pinned = (*_scope_lines(facts), *_pinned_lines(facts, kept))
    for line in pinned:
        budget.pin(line)
    candidates, names_budget = _candidate_lines(facts, pinned), int(tokens_max * dict(SECTION_QUOTAS)["names"])
    # First every section gets its quota, then the tokens left over go by rank, except the reserve for names.
    for section, share in SECTION_QUOTAS:
        budget.fill(candidates.get(section, ()), int(tokens_max * share))
    for section, _ in SECTION_QUOTAS:
        budget.fill(candidates.get(section, ()), budget.left - names_budget)
    # Last, because a name that another line already contains is not repeated.
    budget.add_names(facts, budget.left, kept.text)
    return budget.build()


class _LineBudget:
    def __init__(self, tokens_max: int, count: CountTokens) -> None:
        self._count = count
        self.left = tokens_max
        self._lines: dict[SummaryLine, None] = {}
        self._names: dict[int, list[str]] = {}
        self._named: set[Entity] = set()
        self._offered: set[SummaryLine] = set()
        self._costs: dict[SummaryLine, int] = {}
        self._requests: set[int] = set()

    def pin(self, line: SummaryLine) -> None:
        if line not in self._lines:
            self._lines[line] = None
            self.left -= self._count(render_summary_line(line))

    def fill(self, lines: Iterable[SummaryLine], share: int) -> None:
        """Take as many lines as the share and the budget allow; a line that is too long is skipped."""
        room = min(share, self.left)
        for line in lines:
            is_shown = line.section == "asks" and line.sources[0] in self._requests
            if line in self._lines or is_shown:
                # A long request may be shown cut; then its longer form does not count as left out.
                self._offered.discard(line)
                continue
            self._offered.add(line)
            cost = self._costs.get(line) or self._count(render_summary_line(line)) + 1
            self._costs[line] = cost
            if cost <= room:
                self._lines[line] = None
                self._requests.update(line.sources if line.section == "asks" else ())
                room -= cost
                self.left -= cost

    def add_names(self, facts: ConversationFacts, share: int, kept: str) -> None:
        """Add names and values, ranked by expected reuse, except those that other lines already contain."""
        room = min(share, self.left)
        is_shown = make_entity_check("\n".join(line.text for line in self._lines) + kept)
        for mention in rank_mentions(facts.mentions):
            entity = mention.entity
            if entity in self._named or entity.kind in ("command", "error") or is_shown(entity):
                continue
            word = collapse_whitespace(entity.text)
            cost = self._count(f", {word}") + (0 if mention.number in self._names else 6)
            if cost > room:
                break
            self._named.add(entity)
            self._names.setdefault(mention.number, []).append(word)
            room -= cost
            self.left -= cost

    def build(self) -> Summary:
        name_lines = [
            SummaryLine("names", ", ".join(words[at : at + NAMES_PER_LINE_MAX]), (number,))
            for number, words in sorted(self._names.items())
            for at in range(0, len(words), NAMES_PER_LINE_MAX)
        ]
        lines = [*self._lines, *name_lines]
        ordered = sorted(lines, key=_sort_key)
        return Summary(tuple(ordered), len(self._offered - self._lines.keys()))


def _sort_key(line: SummaryLine) -> tuple[int, int]:
    """By section; within a section by message, and lines without a source first."""
    by_message = line.sources and line.section not in ("files", "commands")
    return SECTION_ORDER.index(line.section), line.sources[-1] if by_message else 0


def _scope_lines(facts: ConversationFacts) -> list[SummaryLine]:
    counts = ", ".join(f"{count} {role}" for role, count in facts.messages)
    tools = ", ".join(name for name, _ in facts.tools)
    lines = [SummaryLine("scope", f"{sum(count for _, count in facts.messages)} messages compacted ({counts}).")]
    return [*lines, SummaryLine("tools", tools)] if tools else lines


def _pinned_lines(facts: ConversationFacts, kept: KeptMessages) -> list[SummaryLine]:
    requests = [request for request in facts.requests if request.text.strip() and not request.is_consent]
    unanswered = [request for request in requests if not request.is_answered]
    newest = requests[-1:] if not kept.request_count else ()
    verbatim = {request.number for request in (*unanswered, *newest)}
    pinned = {request.number: request for request in (*requests[:1], *unanswered, *newest)}
    lines = [
        SummaryLine(
            "goal", request.text if number in verbatim else _cut_request(request, GOAL_CHARACTERS_MAX), (number,)
        )
        for number, request in sorted(pinned.items())
    ]
    constraints = facts.constraints[:4] + facts.constraints[4:][-(PINNED_CONSTRAINTS_MAX - 4) :]
    # Do not repeat constraints that a pinned request contains.
    pinned_text = "\n".join(line.text for line in lines)
    return lines + [
        SummaryLine("constraints", constraint.text, (constraint.number,))
        for constraint in constraints
        if constraint.text not in pinned_text
    ]


def _cut_request(request: UserRequest, characters_max: int, *, is_one_line: bool = False) -> str:
    """The request, or its beginning with a marker that says how much is missing and where the rest is."""
    text = collapse_whitespace(request.text) if is_one_line else request.text
    if len(text) <= characters_max:
        return text
    beginning = text[:characters_max]
    end = beginning.rfind(" " if is_one_line else "\n")
    beginning = beginning[:end] if end > characters_max // 2 else beginning
    return f"{beginning.rstrip()} [cut: {len(text) - len(beginning):,} more characters in m{request.number}]"


def _request_lines(facts: ConversationFacts, pinned: Iterable[SummaryLine]) -> list[SummaryLine]:
    """Requests that are not pinned: corrections first, then the newest; a long one is also offered cut short."""
    shown = {number for line in pinned if line.section == "goal" for number in line.sources}
    requests = [
        request
        for request in reversed(facts.requests)
        if request.number not in shown and request.text.strip() and not request.is_consent
    ]
    requests.sort(key=lambda request: not request.is_correction)
    return [
        SummaryLine("asks", _cut_request(request, limit, is_one_line=True), (request.number,))
        for request in requests
        for limit in (USER_REQUEST_CHARACTERS_MAX, USER_REQUEST_CHARACTERS_MIN)
    ]


def _candidate_lines(
    facts: ConversationFacts, pinned: Sequence[SummaryLine]
) -> dict[SummarySection, list[SummaryLine]]:
    """Candidate lines by section, most important first."""
    # A report that is repeated is listed once, for its last message.
    steps = {step.text: step for step in facts.steps if step.text.strip()}.values()
    return {
        "pending": _pending_lines(facts),
        "questions": [_cited_line("questions", question) for question in facts.questions],
        "errors": [_error_line(error) for error in facts.errors if not error.resolved_in],
        "tests": [
            SummaryLine("tests", f"failing: {truncate_words(test.text, LINE_CHARACTERS_MAX)}", (test.number,))
            for test in facts.failing_tests
        ],
        "decisions": [
            SummaryLine("decisions", truncate_words(decision.text, DECISION_LINE_CHARACTERS_MAX), (decision.number,))
            for decision in reversed(facts.decisions)
        ],
        "current": [_cited_line("current", facts.current_work)] if facts.current_work else [],
        "asks": _request_lines(facts, pinned),
        "files": [line for file in facts.files if (line := _file_line(file)) is not None],
        "commands": _command_lines(facts),
        "timeline": [_cited_line("timeline", step) for step in reversed(steps)],
    }


def _cited_line(section: SummarySection, cited: CitedText) -> SummaryLine:
    return SummaryLine(section, truncate_words(cited.text, LINE_CHARACTERS_MAX), (cited.number,))


def _pending_lines(facts: ConversationFacts) -> list[SummaryLine]:
    open_calls = []
    for action, number in facts.open_calls:
        call = truncate_words(f"{action.tool} {action.path or action.command or action.pattern}", LINE_CHARACTERS_MAX)
        open_calls.append(SummaryLine("pending", f"call without a result: {call}", (number,)))
    tasks = [
        SummaryLine("pending", f"{task.status or 'open'}: {truncate_words(task.text, LINE_CHARACTERS_MAX)}", (number,))
        for task, number in facts.tasks
        if task.status.lower() not in DONE_STATUSES
    ]
    return open_calls + tasks


def _file_line(file: FileState) -> SummaryLine | None:
    """What was done with the file; None if nothing can be said about it."""
    lines = ", ".join(f"{first}-{last or 'end'}" for first, last in dict.fromkeys(file.lines))
    written = file.writes - file.edits
    states = (
        (file.is_missing, "not found"),
        (file.is_deleted, "deleted"),
        (file.reads, f"read x{file.reads}" + (f" (lines {lines})" if lines else "")),
        (written, f"written x{written}"),
        (file.edits, f"edited x{file.edits}"),
        (file.written_in > file.read_in > 0 and not file.is_deleted, "changed since read"),
    )
    state = ", ".join(text for applies, text in states if applies)
    return SummaryLine("files", f"{file.path}: {state}", file.numbers[-SOURCES_PER_LINE_MAX:]) if state else None


def _command_lines(facts: ConversationFacts) -> list[SummaryLine]:
    """Commands that still fail, then the others that did something; a failure that was resolved is not repeated."""
    runs = [
        run for run in facts.commands if run.has_result and not run.only_looks and (run.failing or not run.is_failed)
    ]
    runs.sort(key=lambda run: not run.failing)
    return [_command_line(run) for run in runs]


def _command_line(run: CommandRun) -> SummaryLine:
    state = f"failing; {run.last_line}" if run.failing else run.state
    return SummaryLine("commands", f"{truncate_words(run.command, 160)}: {state}".rstrip("; "), (run.number,))


def _error_line(error: ErrorOccurrence) -> SummaryLine:
    line = truncate_words(error.line, LINE_CHARACTERS_MAX)
    return SummaryLine("errors", f"{truncate_words(error.call, 80)}: {line}", (error.number,))


def render_summary(summary: Summary, *, recall: bool) -> str:
    """The summary as sent to the model: preamble and sections."""
    parts = [f"{PREAMBLE} {SOURCES}{RECALL if recall else ''}"]
    for section in SECTION_ORDER:
        lines = [render_summary_line(line) for line in summary.lines if line.section == section]
        if lines:
            parts.append(f"## {SECTION_HEADINGS[section]}\n" + "\n".join(lines))
    if summary.left_out:
        parts.append(f"({summary.left_out} more lines are left out.)")
    return "\n\n".join(parts)


def render_summary_line(line: SummaryLine) -> str:
    if line.section == "goal":
        return f'<ask source="m{line.sources[0]}">\n{line.text}\n</ask>'
    sources = f" [{', '.join(f'm{number}' for number in line.sources)}]" if line.sources else ""
    return f"- {line.text}{sources}"


def render_resume_note(*, recent: bool) -> str:
    """The text after the summary: recent messages follow verbatim, and how to continue."""
    return f"{RECENT} {RESUME}" if recent else RESUME
