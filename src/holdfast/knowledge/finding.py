"""Which items a conversation holds, found by rule: what people said, what was decided, what is left to do."""

import os
import re
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.canonical.blocks import ToolResult, text_of
from holdfast.canonical.prompt import Passage
from holdfast.extraction.entities import entities_in
from holdfast.extraction.facts import DONE, Facts, facts_of
from holdfast.extraction.texts import sentences, shown
from holdfast.knowledge.items import PROJECT, TEXT_CHARACTERS_MAX, Category, Item, Origin, Source, as_told, item_id
from holdfast.knowledge.screening import holds_secret, injection_in

ITEMS_MAX = 200
"""How many items one session may add; a session that says more is cut off, and that is told."""

ASK_CHARACTERS_MAX = 160
RUNS_MIN = 2

_STATES = re.compile(
    r"\b(?:is|are|was|were|has|have|uses?|runs?|lives?|listens?|needs?|requires?|means?|contains?|belongs?|depends?|"
    r"stands?|supports?|expects?|returns?|starts?|ends?)\b",
    re.IGNORECASE,
)


class Harvested(msgspec.Struct, frozen=True):
    """What a session holds. `secrets` texts were left out because they may hold a credential, `over` for their number.

    Notes on files are items of the category `files`, whose scope is the path.
    """

    items: tuple[Item, ...] = ()
    secrets: int = 0
    over: int = 0


class _Said(msgspec.Struct, frozen=True):
    category: Category
    text: str
    number: int
    origin: Origin
    done: bool = False
    path: str = ""


def harvested(passages: Sequence[Passage], *, session: str, day: str, workspace: str | None = None) -> Harvested:
    """The same conversation gives the same items; a text that may hold a secret gives none."""
    facts = facts_of(passages)
    found: dict[tuple[str, str], Item] = {}
    secrets = over = 0
    for said in (*_spoken(passages, facts), *_of_files(facts, workspace)):
        if holds_secret(said.text) or holds_secret(said.path):
            secrets += 1
            continue
        item = _item(said, session, day)
        if not item.text:
            continue
        key = item.scope, item.id
        if key not in found and len(found) >= ITEMS_MAX:
            over += 1
            continue
        known = found.get(key)
        found[key] = item if known is None else _both(known, item)
    return Harvested(tuple(found.values()), secrets, over)


def _item(said: _Said, session: str, day: str) -> Item:
    text = as_told(said.text)
    return Item(
        id=item_id(said.category, text, said.path),
        category=said.category,
        text=text,
        done=said.done,
        first_seen=day,
        last_seen=day,
        sources=(Source(session, said.number, said.origin),),
        flagged=injection_in(said.text),
        scope=said.path or PROJECT,
        key=said.path,
    )


def _both(known: Item, again: Item) -> Item:
    sources = tuple(sorted({*known.sources, *again.sources}))
    return msgspec.structs.replace(known, sources=sources, done=known.done or again.done)


def _spoken(passages: Sequence[Passage], facts: Facts) -> Iterator[_Said]:
    constraints = {one.text for one in facts.constraints}
    for one in facts.constraints:
        yield _Said("decisions", one.text, one.number, "user")
    for one in facts.decisions:
        yield _Said("decisions", one.text, one.number, "model")
    for passage in passages:
        if passage.role == "user" and not passage.injected and not _answers(passage):
            for sentence in sentences(text_of(passage.content)):
                if sentence not in constraints and _tells(sentence):
                    yield _Said("facts", sentence, passage.number, "user")
    for error in facts.errors:
        if not error.resolved:
            yield _Said("facts", f"Unresolved error: {error.line}", error.number, "tool")
    for task, number in facts.tasks:
        yield _Said("tasks", task.text, number, "model", done=task.status in DONE)
    for ask in facts.asks:
        if not ask.answered and ask.text.strip():
            yield _Said("tasks", f"Asked and not answered: {shown(ask.text, ASK_CHARACTERS_MAX)}", ask.number, "user")
    for one in facts.questions:
        yield _Said("questions", one.text, one.number, "model")
    for ran in reversed(facts.commands):
        if ran.times >= RUNS_MIN and ran.answered and not ran.failed and "\n" not in ran.command:
            yield _Said("playbooks", f"Run `{shown(ran.command, ASK_CHARACTERS_MAX)}`", ran.number, "model")


def _tells(sentence: str) -> bool:
    """Whether a sentence states something of a thing that has a name."""
    if len(sentence) > TEXT_CHARACTERS_MAX or sentence.endswith(("?", ":")) or not _STATES.search(sentence):
        return False
    return next(entities_in(sentence), None) is not None


def _answers(passage: Passage) -> bool:
    return any(isinstance(block, ToolResult) for block in passage.content)


def _of_files(facts: Facts, workspace: str | None) -> Iterator[_Said]:
    """What each file that was written in the workspace was changed for."""
    for file in facts.files:
        path = project_path(file.path, workspace)
        if not path or not file.writes or file.deleted:
            continue
        number = file.numbers[-1] if file.numbers else 0
        ask = next((one for one in reversed(facts.asks) if one.number <= number and one.text.strip()), None)
        if ask is not None:
            yield _Said("files", f"Changed for: {shown(ask.text, ASK_CHARACTERS_MAX)}", ask.number, "user", path=path)


def project_path(path: str, workspace: str | None) -> str:
    """The path from the workspace on, or nothing for one that is not in it."""
    if workspace is None or not path or "\0" in path or "\n" in path:
        return ""
    whole = os.path.normpath(path if os.path.isabs(path) else os.path.join(workspace, path))
    below = os.path.relpath(whole, os.path.normpath(workspace)).replace(os.sep, "/")
    return "" if below in (".", "..") or below.startswith("../") else below
