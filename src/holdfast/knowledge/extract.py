"""Extract knowledge items from a conversation by rules that prefer a few good items over many.

A statement of the user counts only if it is meant to last, and is a decision only if what happened afterwards supports
it. A command counts only if it checks or builds the project and has passed repeatedly, a note on a file only if the
change was committed. Everything else that could be an item is a candidate, which a model may choose from on request.
"""

import os
import re
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.extraction.entities import split_sentences, truncate_words
from holdfast.extraction.tool_calls import CallAction, find_failing_tests, interpret_call, is_failed_result, result_text
from holdfast.knowledge.items import (
    PROJECT_SCOPE,
    TEXT_CHARACTERS_MAX,
    Category,
    Item,
    ItemSource,
    SourceOrigin,
    make_item_id,
    sanitize_item_text,
)
from holdfast.knowledge.screening import contains_secret, detect_injection, is_personal
from holdfast.types.blocks import ToolResult, ToolUse, join_text_blocks
from holdfast.types.prompt import HistoryEntry

SESSION_ITEMS_MAX = 50
"""How many items one session may add; the number of dropped ones is reported."""

STATEMENT_CHARACTERS_MIN = 20
SUBJECT_CHARACTERS_MAX = 160
SPOKEN_CHARACTERS_MAX = 2_000
"""A longer message of a user was pasted or written by a program: people do not type that much at once."""

PASSES_MIN = 2
CANDIDATES_MAX = 150

# What makes a sentence meant to last, by wording alone. Orders: they need to have been followed.
_ORDER = re.compile(
    r"^(?:please\s+|and\s+|but\s+|so\s+)?(?:always|never(?!\s*mind)|do\s+not\s+ever|don't\s+ever)\b"
    r"|\bfrom\s+now\s+on\b|\bgoing\s+forward\b|\bwherever\s+(?:we|you)\s+can\b|\bwherever\s+possible\b"
    r"|\b(?:is|are|be|being|using|use)\b.*\beverywhere\b",
    re.IGNORECASE,
)
# Descriptions: how things are, and that this is on purpose.
_DESCRIPTION = re.compile(
    r"^\W?in\s+this\s+(?:repo(?:sitory)?|project|codebase|code\s+base|workspace)\b|\bon\s+purpose\b|\bby\s+design\b"
    r"|\bwe\b.*\b(?:explicitly|deliberately|intentionally)\b|\bthat(?:'s|\s+is)\s+why\s+we\b|\bwe\s+never\b"
    r"|\b(?:our|the)\s+(?:convention|policy|rule)s?\s+(?:is|are)\b|\bby\s+convention\b",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"^\W*(?:ok(?:ay)?,?\s+|so,?\s+|and\s+|but\s+|hmm,?\s+)?"
    r"(?:can|could|would|should|shall|do|does|did|is|are|was|were|why|what|how|where|when|which|who|have|has|may)\b",
    re.IGNORECASE,
)
_HEDGED = re.compile(
    r"\b(?:maybe|perhaps|i\s+wonder|i\s+guess|not\s+sure|might\s+be|probably|right\s+now)\b|\?", re.IGNORECASE
)
_TAKEN_BACK = re.compile(
    r"^\W*(?:no+|nope|wrong|stop|wait|revert|undo|actually|never\s*mind|forget\s+(?:it|that)|scratch\s+that)\b",
    re.IGNORECASE,
)
# Text between tags was put there by a program, and quoted lines and code are the words of others.
_TAGGED = re.compile(r"<([a-z][\w-]*)\b[^>]*>.*?</\1>", re.DOTALL | re.IGNORECASE)
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_QUOTED_LINE = re.compile(r"^\s*(?:>|\$|❯|⎿|│|\|).*$", re.MULTILINE)

_CHANGE_FOLDER = re.compile(r"^(?:cd\s+\S+\s*(?:&&|;)\s*)+")
_SHORTENED_OUTPUT = re.compile(
    r"\s*(?:2>&1|2>/dev/null|\|\s*(?:tail|head|grep|cat|less|wc|sort)\b[^|&;]*|\|\|\s*true|;\s*echo\b.*)$"
)
# Programs that check, build or format a project. Anything else is no playbook, so that nothing which deletes, publishes
# or rewrites history can become one.
_CHECK = re.compile(
    r"(?:(?:poetry|uv|hatch|pipenv|bundle)\s+(?:run|exec)\s+|npx\s+|bunx\s+)?"
    r"(?:(?:make|just|task|rake|tox|nox|ninja|ctest|ant)|mise\s+run|(?:npm|pnpm|yarn|bun)\s+(?:run\s+\S+|test)"
    r"|(?:\./)?(?:gradlew?|mvnw?)|cargo\s+(?:test|build|check|clippy|fmt|nextest)|go\s+(?:test|build|vet|fmt)"
    r"|golangci-lint\s+run|(?:\.?[\w-]+/bin/)?(?:python3?\s+-m\s+)?(?:pytest|mypy|ruff|unittest|flake8|pylint|black)"
    r"|pyright|eslint|tsc|jest|vitest|prettier|rspec|rubocop|phpunit|dotnet\s+(?:test|build|format)|mix\s+(?:test|format)"
    r"|swift\s+(?:test|build)|bazel\s+(?:test|build)|cmake\s+--build|pre-commit\s+run|terraform\s+(?:validate|fmt))"
    r"(?=\s|$)"
)
_ONE_TEST = re.compile(r"(?:^|\s)(?:-run|--run|-k|-t|--grep|-g|--filter|--tests|-only|--only|-m)(?:[\s=]|$)|::|/\^")
_DANGEROUS = re.compile(
    r"(?i)clean|deploy|release|publish|push|reset|drop|purge|prune|destroy|delete|remove|uninstall|install|migrat|seed|"
    r"upgrade|force|--fix-missing|rollback|wipe"
)
_NO_SUBJECT = re.compile(
    r"(?i)\b(?:review|feedback|comments?|lint(?:er)?|gofmt|formatting|typos?|wip|fixup|squash|merge|bump|initial|init|"
    r"updates?|changes|stuff|cleanup)\b"
)
_COMMIT = re.compile(
    r"""\bgit\s+commit\b(?!.*--amend).*?\s-(?:a?m|-message[=\s])\s*"""
    r"""(?:"?\$\(cat\s+<<-?\s*'?"?(?P<mark>\w+)'?"?\n\s*(?P<heredoc>[^\n]+)|"(?P<double>[^"\n]+)|'(?P<single>[^'\n]+))""",
    re.DOTALL,
)
# Words that a statement worth knowing usually has; only used to choose what a model is shown.
_LIKELY = re.compile(
    r"(?i)\b(?:always|never|must|should|don't|do not|use|prefer|avoid|only|instead|rather|because|decided|decision|"
    r"convention|make sure|we|later|follow-up|on purpose|in this)\b"
)


class ExtractedItems(msgspec.Struct, frozen=True):
    """Items of a session. `secrets` counts possible credentials left out, `over_limit` items above SESSION_ITEMS_MAX.

    Notes on files are items of the category `files`, whose scope is the path.
    """

    items: tuple[Item, ...] = ()
    secrets: int = 0
    over_limit: int = 0


class Candidate(msgspec.Struct, frozen=True):
    """A text that could become an item, with the message it is from."""

    number: int
    origin: SourceOrigin
    text: str


class _Statement(msgspec.Struct, frozen=True):
    """`evidence` says what happened afterwards; a `confident` statement needs no person to look at it first."""

    category: Category
    text: str
    number: int
    origin: SourceOrigin
    evidence: str = ""
    confident: bool = False
    path: str = ""


class _Step(msgspec.Struct, frozen=True):
    """A tool call whose result arrived; `number` is the call's message."""

    action: CallAction
    number: int
    has_passed: bool


class _Turn(msgspec.Struct):
    """What a user said, and what the model did about it until the user spoke again."""

    number: int
    said: str
    steps: list[_Step] = []
    replied_in: int = 0


def extract_items(
    entries: Sequence[HistoryEntry], *, session: str, day: str, workspace: str | None = None
) -> ExtractedItems:
    """Deterministic; a text that may contain a secret gives no item."""
    turns = _read_turns(entries)
    items: dict[tuple[str, str], Item] = {}
    secrets = over = 0
    for statement in (*_standing_statements(turns), *_playbooks(turns), *_file_notes(turns, workspace)):
        if contains_secret(statement.text) or contains_secret(statement.path):
            secrets += 1
            continue
        source = ItemSource(session, statement.number, statement.origin)
        item = build_item(statement.category, statement.text, source, day=day, done=False, path=statement.path)
        item = msgspec.structs.replace(
            item,
            evidence=statement.evidence,
            is_confident=statement.confident,
            # Only what the project itself shows; words of a user are shared by a person or not at all.
            is_shareable=statement.origin != "user" and workspace is not None and not is_personal(statement.text),
        )
        if not item.text:
            continue
        key = item.scope, item.id
        existing = items.get(key)
        if existing is not None:
            items[key] = msgspec.structs.replace(existing, sources=tuple(sorted({*existing.sources, *item.sources})))
        elif len(items) < SESSION_ITEMS_MAX:
            items[key] = item
        else:
            over += 1
    return ExtractedItems(tuple(items.values()), secrets, over)


def build_item(category: Category, text: str, source: ItemSource, *, day: str, done: bool, path: str) -> Item:
    """The item of a statement; `path` is the file that it is a note on, if any. Its sanitized text may be empty."""
    sanitized = sanitize_item_text(text)
    return Item(
        id=make_item_id(category, sanitized, path),
        category=category,
        text=sanitized,
        is_done=done,
        first_seen=day,
        last_seen=day,
        sources=(source,),
        flagged=detect_injection(text),
        scope=path or PROJECT_SCOPE,
        key=path,
    )


def _read_turns(entries: Sequence[HistoryEntry]) -> list[_Turn]:
    turns = [_Turn(0, "")]
    calls: dict[str, tuple[CallAction, int]] = {}
    for entry in entries:
        # Context that a program added is known by its origin.
        if entry.is_injected:
            continue
        results = [block for block in entry.content if isinstance(block, ToolResult)]
        for result in results:
            if result.tool_use_id in calls:
                action, number = calls.pop(result.tool_use_id)
                passed = not is_failed_result(result) and not find_failing_tests(result_text(result))
                turns[-1].steps.append(_Step(action, number, passed))
        text = join_text_blocks(entry.content)
        if entry.role == "assistant":
            uses = [block for block in entry.content if isinstance(block, ToolUse)]
            calls.update({use.id: (interpret_call(use), entry.number) for use in uses})
            if text.strip() and not uses:
                turns[-1].replied_in = entry.number
        elif not results and text.strip():
            turns.append(_Turn(entry.number, text))
    return turns


def spoken_words(text: str) -> str:
    """What a user typed: without text in tags, code and quoted lines; empty if the whole message was pasted."""
    if len(text) > SPOKEN_CHARACTERS_MAX:
        return ""
    return _QUOTED_LINE.sub("", _FENCED.sub("\n", _TAGGED.sub("\n", text)))


def _standing_statements(turns: Sequence[_Turn]) -> Iterator[_Statement]:
    """What a user said that is meant to last, with what supports it."""
    for index, turn in enumerate(turns):
        later = turns[index + 1].said if index + 1 < len(turns) else ""
        if _TAKEN_BACK.search(later):
            continue
        evidence = _describe_work(turn.steps)
        for sentence in split_sentences(spoken_words(turn.said)):
            is_order, describes = bool(_ORDER.search(sentence)), bool(_DESCRIPTION.search(sentence))
            if not (is_order or describes) or not _is_statement(sentence):
                continue
            if evidence:
                yield _Statement("decisions", sentence, turn.number, "user", evidence, confident=True)
            elif is_order and turn.replied_in:
                answered = f"answered in m{turn.replied_in}, not taken back"
                yield _Statement("decisions", sentence, turn.number, "user", answered)
            elif describes:
                yield _Statement("facts", sentence, turn.number, "user")


def _is_statement(sentence: str) -> bool:
    if not STATEMENT_CHARACTERS_MIN <= len(sentence) <= TEXT_CHARACTERS_MAX or sentence.endswith((":", "…")):
        return False
    return not _ASKS.search(sentence) and not _HEDGED.search(sentence)


def _describe_work(steps: Sequence[_Step]) -> str:
    """What was done in the project, successfully; empty if nothing was."""
    edited = dict.fromkeys(
        os.path.basename(step.action.path) for step in steps if step.action.kind == "write" and step.has_passed
    )
    checks = dict.fromkeys(
        part
        for step in steps
        if step.has_passed and step.action.kind == "run"
        for part in find_checks(step.action.command)
    )
    parts = [f"then edited {', '.join(list(edited)[:3])}{' …' if len(edited) > 3 else ''}"] if edited else []
    parts += [f"`{list(checks)[-1]}` passed"] if checks else []
    return "; ".join(parts)


def _playbooks(turns: Sequence[_Turn]) -> Iterator[_Statement]:
    """Commands that check or build the project and have passed repeatedly."""
    passes: dict[str, list[int]] = {}
    for turn in turns:
        for step in turn.steps:
            if step.action.kind == "run" and step.has_passed:
                for part in find_checks(step.action.command):
                    passes.setdefault(part, []).append(step.number)
    for command, numbers in passes.items():
        if len(numbers) >= PASSES_MIN:
            evidence = f"passed {len(numbers)} times, last in m{numbers[-1]}"
            yield _Statement("playbooks", f"Run `{command}`", numbers[-1], "model", evidence, confident=True)


def core_command(command: str) -> str:
    """The command without what agents put around it: a change of folder before it, shortened output after it."""
    core = _CHANGE_FOLDER.sub("", command.strip())
    while (shorter := _SHORTENED_OUTPUT.sub("", core)) != core:
        core = shorter
    return core.strip()


def find_checks(command: str) -> tuple[str, ...]:
    """The parts of a command that check or build a project and would work unchanged in another session.

    Only parts joined by `&&` count: of others it is not known whether they passed.
    """
    core = core_command(command)
    if re.search(r"[\n;<>$`\\\"'*{}]|\|", core.replace("2>&1", "")):
        return ()
    parts = (core_command(part) for part in core.split("&&"))
    return tuple(part for part in parts if _is_check(part))


def _is_check(part: str) -> bool:
    if (
        not _CHECK.match(part)
        or len(part) > SUBJECT_CHARACTERS_MAX
        or _ONE_TEST.search(part)
        or _DANGEROUS.search(part)
    ):
        return False
    return not any(_is_of_one_task(word) for word in part.split()[1:])


def _is_of_one_task(word: str) -> bool:
    """Whether an argument is a place of one task: an absolute path, a deep one, or a single file."""
    path = word.rpartition("=")[2]
    if path.startswith(("/", "~")):
        return True
    steps = [step for step in path.split("/") if step not in ("", ".", "...")]
    return len(steps) > 2 or (bool(steps) and re.search(r"\w\.[a-z]{1,4}$", steps[-1]) is not None)


def _file_notes(turns: Sequence[_Turn], workspace: str | None) -> Iterator[_Statement]:
    """For each file that was written in the workspace and then committed, the subject of the commit."""
    written: dict[str, None] = {}
    for turn in turns:
        for step in turn.steps:
            if not step.has_passed:
                continue
            path = relative_project_path(step.action.path, workspace) if step.action.kind == "write" else ""
            if path:
                written[path] = None
            subject = commit_subject(step.action.command)
            if subject and not _NO_SUBJECT.search(subject) and len(subject.split()) > 2:
                text = f"Changed for: {truncate_words(subject, SUBJECT_CHARACTERS_MAX)}"
                evidence = f"committed in m{step.number}"
                for file in written:
                    yield _Statement("files", text, step.number, "model", evidence, confident=True, path=file)
            if subject:
                written.clear()


def commit_subject(command: str) -> str:
    """The first line of the message of the commit that a command makes; empty if it makes none or only amends one."""
    match = _COMMIT.search(command)
    return (match["heredoc"] or match["double"] or match["single"] or "").strip() if match else ""


def list_candidates(entries: Sequence[HistoryEntry]) -> tuple[Candidate, ...]:
    """What a model may choose from: likely sentences of the user and of final replies, checks, and commits."""
    candidates: dict[str, Candidate] = {}
    for entry in entries:
        if entry.is_injected:
            continue
        text = join_text_blocks(entry.content)
        uses = [block for block in entry.content if isinstance(block, ToolUse)]
        for use in uses:
            command = interpret_call(use).command
            for part in (*find_checks(command), commit_subject(command)):
                if part:
                    candidates.setdefault(part, Candidate(entry.number, "model", part))
        if uses or any(isinstance(block, ToolResult) for block in entry.content):
            continue
        origin: SourceOrigin = "user" if entry.role == "user" else "model"
        for sentence in split_sentences(spoken_words(text) if origin == "user" else _FENCED.sub("\n", text)):
            if STATEMENT_CHARACTERS_MIN <= len(sentence) <= TEXT_CHARACTERS_MAX and _LIKELY.search(sentence):
                candidates.setdefault(sentence, Candidate(entry.number, origin, sentence))
    # The words of the user first: of the model's there are many more, and the newest are closest to the outcome.
    ranked = sorted(candidates.values(), key=lambda candidate: (candidate.origin != "user", -candidate.number))
    return tuple(sorted(ranked[:CANDIDATES_MAX], key=lambda candidate: candidate.number))


def relative_project_path(path: str, workspace: str | None) -> str:
    """The path relative to the workspace; empty if it is outside."""
    if workspace is None or not path or "\0" in path or "\n" in path:
        return ""
    absolute = os.path.normpath(path if os.path.isabs(path) else os.path.join(workspace, path))
    relative = os.path.relpath(absolute, os.path.normpath(workspace)).replace(os.sep, "/")
    return "" if relative in (".", "..") or relative.startswith("../") else relative
