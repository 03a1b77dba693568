"""Knowledge items as lines of a Markdown page that people read, edit and diff.

An item is a list line; its metadata is an HTML comment at the end. All other lines belong to the user: an edit changes
only the lines that must change, and never overwrites a concurrent edit.
"""

import codecs
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.errors import UserError
from holdfast.knowledge.folder import KnowledgeFiles
from holdfast.knowledge.items import (
    CATEGORIES,
    ID_CHARACTERS,
    PROJECT_SCOPE,
    TEXT_CHARACTERS_MAX,
    Category,
    Item,
    ItemSource,
    ItemStatus,
    SourceOrigin,
    make_item_id,
    merge_items,
    normalize_item_text,
    sanitize_item_text,
)
from holdfast.sources.files import decode_text

# A page that a person changes at the same time is read and edited again this often.
ATTEMPTS_MAX = 10
_COMMENT = " <!-- k "
_BOXES = ("[ ] ", "[x] ", "[X] ")
_ORIGINS: dict[str, SourceOrigin] = {"user": "user", "model": "model", "tool": "tool"}
_DAYS = re.compile(r"\d{4}-\d\d-\d\d(?:\.\.\d{4}-\d\d-\d\d)?")
_SAFE = re.compile(r"[^0-9A-Za-z_.-]")
_USUAL_LINE = re.compile(
    rf"[-*] (?:\[([ xX])\] )?+([!-;=-~][ -;=-~]{{,{TEXT_CHARACTERS_MAX - 1}}}) <!-- k ([0-9a-f]{{{ID_CHARACTERS}}}) "
    r"(20\d\d-\d\d-\d\d)(?:\.\.(\d{4}-\d\d-\d\d))? ([0-9A-Za-z_.-]+)/m([0-9]{1,9})/(user|model|tool) -->"
)
"""Fast path that matches almost every line of a long page: plain text with one source."""


class KnowledgePage(msgspec.Struct, frozen=True):
    """The lines of a page, and its items with their line numbers."""

    category: Category
    lines: tuple[str, ...]
    items: tuple[tuple[int, Item], ...]
    scope: str = PROJECT_SCOPE
    key: str = ""

    @property
    def by_id(self) -> dict[str, Item]:
        return {item.id: item for _, item in reversed(self.items)}


def page_name(category: Category) -> str:
    return f"{category}.md"


def parse_page(category: Category, text: str, *, scope: str = PROJECT_SCOPE, key: str = "") -> KnowledgePage:
    """Parse a page; never fails, because a line that is not an item is kept as plain text."""
    lines = split_lines(text)
    items = []
    for number, line in enumerate(lines):
        if line.startswith(("- ", "* ")) and (item := _item(category, line, scope, key)) is not None:
            items.append((number, item))
    return KnowledgePage(category, lines, tuple(items), scope, key)


def read_pages(disk: KnowledgeFiles) -> tuple[KnowledgePage, ...]:
    texts = ((category, decode_text(disk.read(page_name(category)) or b"")) for category in CATEGORIES)
    return tuple(parse_page(category, text, scope=PROJECT_SCOPE) for category, text in texts)


def split_lines(text: str) -> tuple[str, ...]:
    return tuple(text.removesuffix("\n").split("\n")) if text else ()


def render_page(page: KnowledgePage) -> str:
    return "".join(f"{line}\n" for line in page.lines)


def merge_page_items(page: KnowledgePage, harvested: Iterable[Item]) -> KnowledgePage:
    """Merge harvested items into the page: known items get the new sources, new ones are appended in order."""
    heading = [f"# {page.category.capitalize()}", ""] if page.category in CATEGORIES else []
    lines = list(page.lines) or heading
    by_key: dict[str, tuple[int, Item]] = {}
    for number, item in page.items:
        by_key.setdefault(item.id, (number, item))
        by_key.setdefault(normalize_item_text(item.text), (number, item))
    added: dict[str, Item] = {}
    for item in harvested:
        # By id, which survives a person's edits, or by text, which finds a line that a person wrote.
        existing = by_key.get(item.id) or by_key.get(normalize_item_text(item.text))
        if existing is None:
            before = added.get(item.id)
            added[item.id] = merge_items(before, item) if before else item
            continue
        number, before = existing
        after = merge_items(before, item)
        if after != before:
            lines[number] = encode_item(after)
            by_key.update({before.id: (number, after), normalize_item_text(before.text): (number, after)})
    lines += [encode_item(item) for item in added.values()]
    return _with_lines(page, lines)


def _with_lines(page: KnowledgePage, lines: Iterable[str]) -> KnowledgePage:
    return parse_page(page.category, "".join(f"{line}\n" for line in lines), scope=page.scope, key=page.key)


def replace_page_item(page: KnowledgePage, item: Item) -> KnowledgePage:
    replaced_lines = {number for number, other in page.items if other.id == item.id}
    lines = [encode_item(item) if number in replaced_lines else line for number, line in enumerate(page.lines)]
    return _with_lines(page, lines)


def remove_page_item(page: KnowledgePage, wanted_id: str) -> KnowledgePage:
    removed_lines = {number for number, item in page.items if item.id == wanted_id}
    lines = [line for number, line in enumerate(page.lines) if number not in removed_lines]
    return _with_lines(page, lines)


def encode_item(item: Item) -> str:
    """The line of an item; an item written by a person gets a comment only once it has metadata."""
    box = ("[x] " if item.is_done else "[ ] ") if item.category == "tasks" else ""
    metadata = _metadata(item)
    return f"- {box}{item.text}" + (f" <!-- k {metadata} -->" if metadata else "")


def _metadata(item: Item) -> str:
    has_no_metadata = not item.sources and not item.is_approved and item.status == "active"
    if has_no_metadata and item.id == make_item_id(item.category, item.text, item.key):
        return ""
    parts = [item.id]
    if item.first_seen:
        parts.append(item.first_seen if item.first_seen == item.last_seen else f"{item.first_seen}..{item.last_seen}")
    if item.status != "active":
        parts.append(f"superseded-by:{item.superseded_by}" if item.status == "superseded" else item.status)
    if item.is_approved:
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
    sources = (ItemSource(session, int(number), _ORIGINS[origin]),)
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
    is_id = bool(words) and len(words[0]) == ID_CHARACTERS and not words[0].strip("0123456789abcdef")
    id_ = words[0] if is_id else make_item_id(category, text, key)
    done = box in ("[x] ", "[X] ")
    first = last = superseded_by = flagged = ""
    sources: list[ItemSource] = []
    status: ItemStatus = "active"
    approved = False
    for part in words[1:]:
        if part[:2] == "20" and _DAYS.fullmatch(part):
            first, last = part[:10], part[-10:]
        elif (origin := _ORIGINS.get(part.rpartition("/")[2])) is not None:
            session, _, number = part[: -len(origin) - 1].rpartition("/m")
            if session and number.isascii() and number.isdigit() and len(number) < 10:
                sources.append(ItemSource(session, int(number), origin))
        elif part == "approved":
            approved = True
        elif part == "retracted":
            status = "retracted"
        elif part.startswith("superseded-by:"):
            status, superseded_by = "superseded", part.partition(":")[2]
        elif part.startswith("flagged:"):
            flagged = part.partition(":")[2].replace("_", " ")
    distinct = tuple(sorted(set(sources)))
    return Item(id_, category, text, done, first, last, distinct, status, superseded_by, scope, key, approved, flagged)


def _item_text(text: str) -> str:
    plain = len(text) <= TEXT_CHARACTERS_MAX and text.isascii() and text.isprintable() and "  " not in text
    return text.strip() if plain and "<" not in text and "-->" not in text else sanitize_item_text(text)


def list_page_items(pages: Sequence[KnowledgePage]) -> tuple[Item, ...]:
    return tuple(item for page in pages for _, item in page.items)


def edit_file(disk: KnowledgeFiles, name: str, changed: Callable[[bytes], bytes]) -> None:
    """Apply `changed` to the file; retry on the new content if it is edited at the same time."""
    for _ in range(ATTEMPTS_MAX):
        before = disk.read(name)
        after = changed(before or b"")
        if after == (before or b"") or disk.replace_unless_changed(name, after, before):
            return
    raise file_in_use_error(name)


def file_in_use_error(name: str) -> UserError:
    return UserError(f"{name} keeps changing or is too long; nothing was written to it, try again later")


def rewrite_lines(raw: bytes, lines: Sequence[str]) -> bytes:
    """The page's bytes with these lines; unchanged lines keep their bytes and line endings, others use the page's.

    Lines may have been changed in place, appended, or removed, but only one of these in one call.
    """
    bom = codecs.BOM_UTF8 if raw.startswith(codecs.BOM_UTF8) else b""
    # The same line endings as in `read_text`.
    existing = list(zip(split_lines(decode_text(raw)), raw[len(bom) :].splitlines(keepends=True), strict=True))
    line_ending = (_line_ending(existing[0][1]) if existing else b"") or b"\n"
    written: list[bytes] = []
    index = 0
    for line in lines:
        # Lines were removed: skip to the one that is kept.
        while len(lines) < len(existing) and index < len(existing) and existing[index][0] != line:
            index += 1
        text, raw_line = existing[index] if index < len(existing) else ("", b"")
        index += 1
        if written and not _line_ending(written[-1]):
            written[-1] += line_ending
        encoded = line.encode("utf-8", "replace") + (_line_ending(raw_line) or line_ending)
        written.append(raw_line if raw_line and text == line else encoded)
    return bom + b"".join(written)


def _line_ending(line: bytes) -> bytes:
    return line[len(line.rstrip(b"\r\n")) :]
