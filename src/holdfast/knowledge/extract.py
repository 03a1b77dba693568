"""Extract knowledge items from a conversation by rules: statements by users, decisions, open tasks."""

import os
import re
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.extraction.entities import find_entities, split_sentences, truncate_words
from holdfast.extraction.facts import DONE_STATUSES, ConversationFacts, extract_facts
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
from holdfast.knowledge.screening import contains_secret, detect_injection
from holdfast.types.blocks import ToolResult, join_text_blocks
from holdfast.types.prompt import HistoryEntry

SESSION_ITEMS_MAX = 200
"""How many items one session may add; the number of dropped ones is reported."""

REQUEST_CHARACTERS_MAX = 160
RUNS_MIN = 2

_STATES = re.compile(
    r"(?i)\b(?:is|are|was|were|has|have|uses?|runs?|lives?|listens?|needs?|requires?|means?|contains?|belongs?|depends?|"
    r"stands?|supports?|expects?|returns?|starts?|ends?)\b"
)


class ExtractedItems(msgspec.Struct, frozen=True):
    """Items of a session. `secrets` counts possible credentials left out, `over_limit` items above SESSION_ITEMS_MAX.

    Notes on files are items of the category `files`, whose scope is the path.
    """

    items: tuple[Item, ...] = ()
    secrets: int = 0
    over_limit: int = 0


class _Statement(msgspec.Struct, frozen=True):
    category: Category
    text: str
    number: int
    origin: SourceOrigin
    done: bool = False
    path: str = ""


def extract_items(
    entries: Sequence[HistoryEntry], *, session: str, day: str, workspace: str | None = None
) -> ExtractedItems:
    """Deterministic; a text that may contain a secret gives no item."""
    facts = extract_facts(entries)
    items: dict[tuple[str, str], Item] = {}
    secrets = over = 0
    for statement in (*_statements(entries, facts), *_file_notes(facts, workspace)):
        if contains_secret(statement.text) or contains_secret(statement.path):
            secrets += 1
            continue
        source = ItemSource(session, statement.number, statement.origin)
        item = build_item(statement.category, statement.text, source, day=day, done=statement.done, path=statement.path)
        if not item.text:
            continue
        key = item.scope, item.id
        existing = items.get(key)
        if existing is not None:
            sources = tuple(sorted({*existing.sources, *item.sources}))
            items[key] = msgspec.structs.replace(existing, sources=sources, is_done=existing.is_done or item.is_done)
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


def _statements(entries: Sequence[HistoryEntry], facts: ConversationFacts) -> Iterator[_Statement]:
    constraints = {constraint.text for constraint in facts.constraints}
    for constraint in facts.constraints:
        yield _Statement("decisions", constraint.text, constraint.number, "user")
    for decision in facts.decisions:
        yield _Statement("decisions", decision.text, decision.number, "model")
    for entry in entries:
        is_spoken = not any(isinstance(block, ToolResult) for block in entry.content)
        if entry.role == "user" and not entry.is_injected and is_spoken:
            for sentence in split_sentences(join_text_blocks(entry.content)):
                if sentence not in constraints and _is_statement(sentence):
                    yield _Statement("facts", sentence, entry.number, "user")
    for error in facts.errors:
        if not error.resolved_in:
            yield _Statement("facts", f"Unresolved error: {error.line}", error.number, "tool")
    for task, number in facts.tasks:
        yield _Statement("tasks", task.text, number, "model", done=task.status in DONE_STATUSES)
    for request in facts.requests:
        if not request.is_answered and request.text.strip():
            text = f"Asked and not answered: {truncate_words(request.text, REQUEST_CHARACTERS_MAX)}"
            yield _Statement("tasks", text, request.number, "user")
    for question in facts.questions:
        yield _Statement("questions", question.text, question.number, "model")
    for run in reversed(facts.commands):
        # A command that was run repeatedly and works is part of how people work on this project.
        if run.times >= RUNS_MIN and run.has_result and not run.is_failed and "\n" not in run.command:
            text = f"Run `{truncate_words(run.command, REQUEST_CHARACTERS_MAX)}`"
            yield _Statement("playbooks", text, run.number, "model")


def _is_statement(sentence: str) -> bool:
    """Whether a sentence is a statement about a named entity."""
    if len(sentence) > TEXT_CHARACTERS_MAX or sentence.endswith(("?", ":")) or not _STATES.search(sentence):
        return False
    return next(find_entities(sentence), None) is not None


def _file_notes(facts: ConversationFacts, workspace: str | None) -> Iterator[_Statement]:
    """For each file written in the workspace, the request that it was changed for."""
    for file in facts.files:
        path = relative_project_path(file.path, workspace)
        if not path or not file.writes or file.is_deleted:
            continue
        number = file.numbers[-1] if file.numbers else 0
        earlier = (request for request in reversed(facts.requests) if request.number <= number and request.text.strip())
        request = next(earlier, None)
        if request is not None:
            text = f"Changed for: {truncate_words(request.text, REQUEST_CHARACTERS_MAX)}"
            yield _Statement("files", text, request.number, "user", path=path)


def relative_project_path(path: str, workspace: str | None) -> str:
    """The path relative to the workspace; empty if it is outside."""
    if workspace is None or not path or "\0" in path or "\n" in path:
        return ""
    absolute = os.path.normpath(path if os.path.isabs(path) else os.path.join(workspace, path))
    relative = os.path.relpath(absolute, os.path.normpath(workspace)).replace(os.sep, "/")
    return "" if relative in (".", "..") or relative.startswith("../") else relative


_CHANGE_FOLDER = re.compile(r"^(?:cd\s+\S+\s*(?:&&|;)\s*)+")
_SHORTENED_OUTPUT = re.compile(
    r"\s*(?:2>&1|2>/dev/null|\|\s*(?:tail|head|grep|cat|less|wc|sort)\b[^|&;]*|\|\|\s*true|;\s*echo\b.*)$"
)


def core_command(command: str) -> str:
    """The command without what agents put around it: a change of folder before it, shortened output after it."""
    core = _CHANGE_FOLDER.sub("", command.strip())
    while (shorter := _SHORTENED_OUTPUT.sub("", core)) != core:
        core = shorter
    return core.strip()
