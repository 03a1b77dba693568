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
    r"\b(?:is|are|was|were|has|have|uses?|runs?|lives?|listens?|needs?|requires?|means?|contains?|belongs?|depends?|"
    r"stands?|supports?|expects?|returns?|starts?|ends?)\b",
    re.IGNORECASE,
)


class ExtractedItems(msgspec.Struct, frozen=True):
    """Items of a session. `secrets` counts texts left out as possible credentials, `over` those above ITEMS_MAX.

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
        item = _item(statement, session, day)
        if not item.text:
            continue
        key = item.scope, item.id
        if key not in items and len(items) >= SESSION_ITEMS_MAX:
            over += 1
            continue
        existing = items.get(key)
        items[key] = item if existing is None else _merge_sources(existing, item)
    return ExtractedItems(tuple(items.values()), secrets, over)


def _item(statement: _Statement, session: str, day: str) -> Item:
    text = sanitize_item_text(statement.text)
    return Item(
        id=make_item_id(statement.category, text, statement.path),
        category=statement.category,
        text=text,
        is_done=statement.done,
        first_seen=day,
        last_seen=day,
        sources=(ItemSource(session, statement.number, statement.origin),),
        flagged=detect_injection(statement.text),
        scope=statement.path or PROJECT_SCOPE,
        key=statement.path,
    )


def _merge_sources(first: Item, second: Item) -> Item:
    sources = tuple(sorted({*first.sources, *second.sources}))
    return msgspec.structs.replace(first, sources=sources, is_done=first.is_done or second.is_done)


def _statements(entries: Sequence[HistoryEntry], facts: ConversationFacts) -> Iterator[_Statement]:
    constraints = {constraint.text for constraint in facts.constraints}
    for constraint in facts.constraints:
        yield _Statement("decisions", constraint.text, constraint.number, "user")
    for decision in facts.decisions:
        yield _Statement("decisions", decision.text, decision.number, "model")
    for entry in entries:
        if entry.role == "user" and not entry.is_injected and not _has_tool_result(entry):
            for sentence in split_sentences(join_text_blocks(entry.content)):
                if sentence not in constraints and _is_statement(sentence):
                    yield _Statement("facts", sentence, entry.number, "user")
    for error in facts.errors:
        if not error.resolved_in:
            yield _Statement("facts", f"Unresolved error: {error.line}", error.number, "tool")
    for task, number in facts.tasks:
        yield _Statement("tasks", task.text, number, "model", done=task.status in DONE_STATUSES)
    for ask in facts.requests:
        if not ask.is_answered and ask.text.strip():
            yield _Statement(
                "tasks",
                f"Asked and not answered: {truncate_words(ask.text, REQUEST_CHARACTERS_MAX)}",
                ask.number,
                "user",
            )
    for question in facts.questions:
        yield _Statement("questions", question.text, question.number, "model")
    for ran in reversed(facts.commands):
        # A command that was run repeatedly and works is part of how people work on this project.
        if ran.times >= RUNS_MIN and ran.has_result and not ran.is_failed and "\n" not in ran.command:
            yield _Statement(
                "playbooks", f"Run `{truncate_words(ran.command, REQUEST_CHARACTERS_MAX)}`", ran.number, "model"
            )


def _is_statement(sentence: str) -> bool:
    """Whether a sentence is a statement about a named entity."""
    if len(sentence) > TEXT_CHARACTERS_MAX or sentence.endswith(("?", ":")) or not _STATES.search(sentence):
        return False
    return next(find_entities(sentence), None) is not None


def _has_tool_result(entry: HistoryEntry) -> bool:
    return any(isinstance(block, ToolResult) for block in entry.content)


def _file_notes(facts: ConversationFacts, workspace: str | None) -> Iterator[_Statement]:
    """For each file written in the workspace, the request that it was changed for."""
    for file in facts.files:
        path = relative_project_path(file.path, workspace)
        if not path or not file.writes or file.is_deleted:
            continue
        number = file.numbers[-1] if file.numbers else 0
        ask = next(
            (
                candidate
                for candidate in reversed(facts.requests)
                if candidate.number <= number and candidate.text.strip()
            ),
            None,
        )
        if ask is not None:
            yield _Statement(
                "files",
                f"Changed for: {truncate_words(ask.text, REQUEST_CHARACTERS_MAX)}",
                ask.number,
                "user",
                path=path,
            )


def relative_project_path(path: str, workspace: str | None) -> str:
    """The path relative to the workspace; empty if it is outside."""
    if workspace is None or not path or "\0" in path or "\n" in path:
        return ""
    absolute = os.path.normpath(path if os.path.isabs(path) else os.path.join(workspace, path))
    relative = os.path.relpath(absolute, os.path.normpath(workspace)).replace(os.sep, "/")
    return "" if relative in (".", "..") or relative.startswith("../") else relative
