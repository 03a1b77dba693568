"""How items stand in a Markdown page that people read, change and compare.

An item is a line with a dash; what we know of it is a comment at its end. All other lines are the reader's own.
"""

import re
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.knowledge.items import (
    CATEGORIES,
    ID_CHARACTERS,
    PROJECT,
    TEXT_CHARACTERS_MAX,
    Category,
    Item,
    Origin,
    Source,
    Status,
    as_told,
    item_id,
    merged,
    normalised,
)

HEADINGS: dict[Category, str] = {
    "facts": "Facts",
    "decisions": "Decisions",
    "tasks": "Tasks",
    "questions": "Questions",
    "playbooks": "Playbooks",
}

_COMMENT = " <!-- k "
_BOXES = ("[ ] ", "[x] ", "[X] ")
_ORIGINS: dict[str, Origin] = {"user": "user", "model": "model", "tool": "tool"}
_DAYS = re.compile(r"\d{4}-\d\d-\d\d(?:\.\.\d{4}-\d\d-\d\d)?")
_SAFE = re.compile(r"[^0-9A-Za-z_.-]")
_USUAL = re.compile(
    rf"[-*] (?:\[([ xX])\] )?+([!-;=-~][ -;=-~]{{,{TEXT_CHARACTERS_MAX - 1}}}) <!-- k ([0-9a-f]{{{ID_CHARACTERS}}}) "
    r"(20\d\d-\d\d-\d\d)(?:\.\.(\d{4}-\d\d-\d\d))? ([0-9A-Za-z_.-]+)/m([0-9]{1,9})/(user|model|tool) -->"
)
"""Almost every line of a long page: plain text that was heard once."""


class Page(msgspec.Struct, frozen=True):
    """Lines as they stand, and which of them are items, by the number of the line."""

    category: Category
    lines: tuple[str, ...]
    items: tuple[tuple[int, Item], ...]
    scope: str = PROJECT
    key: str = ""

    @property
    def by_id(self) -> dict[str, Item]:
        return {item.id: item for _, item in reversed(self.items)}


def page_name(category: Category) -> str:
    return f"{category}.md"


def read_page(category: Category, text: str, *, scope: str = PROJECT, key: str = "") -> Page:
    """Never fails: what is no item is a line like any other."""
    lines = lines_of(text)
    items = []
    for number, line in enumerate(lines):
        if line.startswith(("- ", "* ")) and (item := _item(category, line, scope, key)) is not None:
            items.append((number, item))
    return Page(category, lines, tuple(items), scope, key)


def lines_of(text: str) -> tuple[str, ...]:
    return tuple(text.removesuffix("\n").split("\n")) if text else ()


def page_text(page: Page) -> str:
    return "".join(f"{line}\n" for line in page.lines)


def with_items(page: Page, seen: Iterable[Item]) -> Page:
    """The page with what was seen: known items get its sources, new ones stand at the end as they came."""
    lines = list(page.lines) or _opening(page.category)
    known: dict[str, tuple[int, Item]] = {}
    for number, item in page.items:
        known.setdefault(item.id, (number, item))
        known.setdefault(normalised(item.text), (number, item))
    added: dict[str, Item] = {}
    for item in seen:
        there = known.get(item.id) or known.get(normalised(item.text))
        if there is None:
            before = added.get(item.id)
            added[item.id] = merged(before, item) if before else item
            continue
        number, before = there
        after = merged(before, item)
        if after != before:
            lines[number] = spelled(after)
            known.update({before.id: (number, after), normalised(before.text): (number, after)})
    lines += [spelled(item) for item in added.values()]
    return read_page(page.category, "".join(f"{line}\n" for line in lines), scope=page.scope, key=page.key)


def with_item(page: Page, item: Item) -> Page:
    """The page with this item in the place of the one that has its id."""
    lines = tuple(
        spelled(item) if any(number == at and one.id == item.id for at, one in page.items) else line
        for number, line in enumerate(page.lines)
    )
    return read_page(page.category, "".join(f"{line}\n" for line in lines), scope=page.scope, key=page.key)


def without_item(page: Page, wanted: str) -> Page:
    gone = {number for number, item in page.items if item.id == wanted}
    lines = [line for number, line in enumerate(page.lines) if number not in gone]
    return read_page(page.category, "".join(f"{line}\n" for line in lines), scope=page.scope, key=page.key)


def spelled(item: Item) -> str:
    """The line of an item; what a person wrote has a comment only once there is something to say in it."""
    box = ("[x] " if item.done else "[ ] ") if item.category == "tasks" else ""
    known = _known(item)
    return f"- {box}{item.text}" + (f" <!-- k {known} -->" if known else "")


def _known(item: Item) -> str:
    plain = not item.sources and not item.approved and item.status == "active"
    if plain and item.id == item_id(item.category, item.text, item.key):
        return ""
    parts = [item.id]
    if item.first_seen:
        parts.append(item.first_seen if item.first_seen == item.last_seen else f"{item.first_seen}..{item.last_seen}")
    if item.status != "active":
        parts.append(f"superseded-by:{item.superseded_by}" if item.status == "superseded" else item.status)
    if item.approved:
        parts.append("approved")
    if item.flagged:
        parts.append(f"flagged:{_SAFE.sub('_', item.flagged)}")
    parts += [f"{_SAFE.sub('_', one.session)}/m{one.number}/{one.origin}" for one in item.sources]
    return " ".join(parts)


def _item(category: Category, line: str, scope: str, key: str) -> Item | None:
    # There may be ten thousand of them, and a digest is made while somebody waits: hence one look for the usual ones,
    # and no names of fields, which would take as long as all the rest.
    usual = _USUAL.fullmatch(line)
    if usual is None:
        return _unusual_item(category, line, scope, key)
    box, text, name, first, last, session, number, origin = usual.groups()
    if "  " in text or "-->" in text:
        return _unusual_item(category, line, scope, key)
    heard = (Source(session, int(number), _ORIGINS[origin]),)
    done = box is not None and box != " "
    return Item(name, category, text.rstrip(), done, first, last or first, heard, "active", "", scope, key)


def _unusual_item(category: Category, line: str, scope: str, key: str) -> Item | None:
    """What is unknown in the comment is passed over."""
    body, comment, behind = line[2:].partition(_COMMENT)
    said = behind[:-3].split() if comment and behind.endswith("-->") else []
    box = body[:4] if body.startswith(_BOXES) else ""
    told = _told(body[len(box) :] if said or not comment else line[2 + len(box) :])
    if not told:
        return None
    name = said[0] if said and _is_id(said[0]) else item_id(category, told, key)
    done = box in ("[x] ", "[X] ")
    first = last = superseded_by = flagged = ""
    sources: list[Source] = []
    status: Status = "active"
    approved = False
    for part in said[1:]:
        if part[:2] == "20" and _DAYS.fullmatch(part):
            first, last = part[:10], part[-10:]
        elif (origin := _ORIGINS.get(part.rpartition("/")[2])) is not None:
            session, _, number = part[: -len(origin) - 1].rpartition("/m")
            if session and number.isascii() and number.isdigit() and len(number) < 10:
                sources.append(Source(session, int(number), origin))
        elif part == "approved":
            approved = True
        elif part == "retracted":
            status = "retracted"
        elif part.startswith("superseded-by:"):
            status, superseded_by = "superseded", part.partition(":")[2]
        elif part.startswith("flagged:"):
            flagged = part.partition(":")[2].replace("_", " ")
    heard = tuple(sources) if len(sources) < 2 else tuple(sorted(set(sources)))
    return Item(name, category, told, done, first, last, heard, status, superseded_by, scope, key, approved, flagged)


def _told(text: str) -> str:
    plain = len(text) <= TEXT_CHARACTERS_MAX and text.isascii() and text.isprintable() and "  " not in text
    return text.strip() if plain and "<" not in text and "-->" not in text else as_told(text)


def _is_id(word: str) -> bool:
    return len(word) == ID_CHARACTERS and not word.strip("0123456789abcdef")


def _opening(category: Category) -> list[str]:
    return [f"# {HEADINGS[category]}", ""] if category in CATEGORIES else []


def all_items(pages: Sequence[Page]) -> tuple[Item, ...]:
    return tuple(item for page in pages for _, item in page.items)
