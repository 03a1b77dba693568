"""Knowledge items as lines of a Markdown page that people read, edit and diff.

An item is a list line; its metadata is an HTML comment at the end. All other lines belong to the user.
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
_USUAL_LINE = re.compile(
    rf"[-*] (?:\[([ xX])\] )?+([!-;=-~][ -;=-~]{{,{TEXT_CHARACTERS_MAX - 1}}}) <!-- k ([0-9a-f]{{{ID_CHARACTERS}}}) "
    r"(20\d\d-\d\d-\d\d)(?:\.\.(\d{4}-\d\d-\d\d))? ([0-9A-Za-z_.-]+)/m([0-9]{1,9})/(user|model|tool) -->"
)
"""Fast path that matches almost every line of a long page: plain text with one source."""


class Page(msgspec.Struct, frozen=True):
    """The lines of a page, and its items with their line numbers."""

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
    """Parse a page; never fails, because a line that is not an item is kept as plain text."""
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


def with_items(page: Page, harvested: Iterable[Item]) -> Page:
    """Merge harvested items into the page: known items get the new sources, new ones are appended in order."""
    lines = list(page.lines) or _heading_lines(page.category)
    by_key: dict[str, tuple[int, Item]] = {}
    for number, item in page.items:
        by_key.setdefault(item.id, (number, item))
        by_key.setdefault(normalised(item.text), (number, item))
    added: dict[str, Item] = {}
    for item in harvested:
        # By id, which survives a person's edits, or by text, which finds a line that a person wrote.
        existing = by_key.get(item.id) or by_key.get(normalised(item.text))
        if existing is None:
            before = added.get(item.id)
            added[item.id] = merged(before, item) if before else item
            continue
        number, before = existing
        after = merged(before, item)
        if after != before:
            lines[number] = spelled(after)
            by_key.update({before.id: (number, after), normalised(before.text): (number, after)})
    lines += [spelled(item) for item in added.values()]
    return read_page(page.category, "".join(f"{line}\n" for line in lines), scope=page.scope, key=page.key)


def with_item(page: Page, item: Item) -> Page:
    """The page with this item in place of the one with the same id."""
    lines = tuple(
        spelled(item) if any(number == at and other.id == item.id for at, other in page.items) else line
        for number, line in enumerate(page.lines)
    )
    return read_page(page.category, "".join(f"{line}\n" for line in lines), scope=page.scope, key=page.key)


def without_item(page: Page, wanted_id: str) -> Page:
    removed_lines = {number for number, item in page.items if item.id == wanted_id}
    lines = [line for number, line in enumerate(page.lines) if number not in removed_lines]
    return read_page(page.category, "".join(f"{line}\n" for line in lines), scope=page.scope, key=page.key)


def spelled(item: Item) -> str:
    """The line of an item; an item written by a person gets a comment only once it has metadata."""
    box = ("[x] " if item.done else "[ ] ") if item.category == "tasks" else ""
    metadata = _metadata(item)
    return f"- {box}{item.text}" + (f" <!-- k {metadata} -->" if metadata else "")


def _metadata(item: Item) -> str:
    has_no_metadata = not item.sources and not item.approved and item.status == "active"
    if has_no_metadata and item.id == item_id(item.category, item.text, item.key):
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
    parts += [f"{_SAFE.sub('_', source.session)}/m{source.number}/{source.origin}" for source in item.sources]
    return " ".join(parts)


def _item(category: Category, line: str, scope: str, key: str) -> Item | None:
    # A page may have ten thousand items, and a digest is built while a user waits. Hence one regular expression for the
    # usual lines, and positional struct fields: keyword arguments would take as long as all the rest.
    match = _USUAL_LINE.fullmatch(line)
    if match is None:
        return _unusual_item(category, line, scope, key)
    box, text, id_, first, last, session, number, origin = match.groups()
    if "  " in text or "-->" in text:
        return _unusual_item(category, line, scope, key)
    sources = (Source(session, int(number), _ORIGINS[origin]),)
    done = box is not None and box != " "
    return Item(id_, category, text.rstrip(), done, first, last or first, sources, "active", "", scope, key)


def _unusual_item(category: Category, line: str, scope: str, key: str) -> Item | None:
    """Parse any item line; unknown parts of the comment are ignored."""
    body, comment, after_comment = line[2:].partition(_COMMENT)
    words = after_comment[:-3].split() if comment and after_comment.endswith("-->") else []
    box = body[:4] if body.startswith(_BOXES) else ""
    text = _item_text(body[len(box) :] if words or not comment else line[2 + len(box) :])
    if not text:
        return None
    id_ = words[0] if words and _is_id(words[0]) else item_id(category, text, key)
    done = box in ("[x] ", "[X] ")
    first = last = superseded_by = flagged = ""
    sources: list[Source] = []
    status: Status = "active"
    approved = False
    for part in words[1:]:
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
    source_tuple = tuple(sources) if len(sources) < 2 else tuple(sorted(set(sources)))
    return Item(
        id_, category, text, done, first, last, source_tuple, status, superseded_by, scope, key, approved, flagged
    )


def _item_text(text: str) -> str:
    plain = len(text) <= TEXT_CHARACTERS_MAX and text.isascii() and text.isprintable() and "  " not in text
    return text.strip() if plain and "<" not in text and "-->" not in text else as_told(text)


def _is_id(word: str) -> bool:
    return len(word) == ID_CHARACTERS and not word.strip("0123456789abcdef")


def _heading_lines(category: Category) -> list[str]:
    return [f"# {HEADINGS[category]}", ""] if category in CATEGORIES else []


def all_items(pages: Sequence[Page]) -> tuple[Item, ...]:
    return tuple(item for page in pages for _, item in page.items)
