"""What is known of single files: a page each, found by the file's path, and by its content once the file has moved."""

import re
from collections.abc import Callable, Iterable, Mapping

import msgspec

from holdfast.canonical.encoding import digest
from holdfast.knowledge.folder import FILES, Disk
from holdfast.knowledge.items import Item, item_id
from holdfast.knowledge.pages import Page, page_text, read_page, with_items
from holdfast.knowledge.rewriting import rewritten
from holdfast.sources.text import read_text

HASHES_MAX = 8
HASH_CHARACTERS = 16
PAGES_MAX = 5_000

_HEAD = re.compile(r"^<!-- file (?P<path>\S+) key (?P<key>\S+)(?: content (?P<hashes>[0-9a-f ,]*))? -->$")

ContentOf = Callable[[str], str]
"""The digest of what a file of the project holds, by its path; nothing where there is no such file."""

ReadFile = Callable[[str], bytes | None]

PathsWith = Callable[[frozenset[str]], Mapping[str, str]]
"""Files of the project that hold one of these contents: path by digest."""


class Project(msgspec.Struct, frozen=True):
    """How files of the project are looked at, for the notes on them; by default there are none."""

    content_of: ContentOf = lambda path: ""
    paths_with: PathsWith = lambda hashes: {}


NO_PROJECT = Project()


class Notes(msgspec.Struct, frozen=True):
    """`path` is where the file is now, `key` where it was when the first note was taken; the newest content first.

    `raw` is the page as it was read, None where there is none yet.
    """

    name: str
    path: str
    key: str
    hashes: tuple[str, ...]
    page: Page
    raw: bytes | None = None


class NotedFile(msgspec.Struct, frozen=True):
    """A page of notes as it has to be written, and what it was before."""

    name: str
    content: bytes
    before: bytes | None


def content_hash(raw: bytes) -> str:
    return digest(raw)[:HASH_CHARACTERS]


def read_notes(disk: Disk) -> tuple[Notes, ...]:
    """All pages that say of which file they are; others are left alone."""
    found = []
    for name in disk.names(FILES)[:PAGES_MAX]:
        raw = disk.read(f"{FILES}/{name}") if name.endswith(".md") else None
        if raw is not None and (notes := _notes(name, raw)) is not None:
            found.append(notes)
    return tuple(found)


def _notes(name: str, raw: bytes) -> Notes | None:
    text = read_text(raw)
    for line in text.split("\n")[:4]:
        if match := _HEAD.match(line):
            path, key = unescaped(match["path"]), unescaped(match["key"])
            hashes = tuple(part for part in (match["hashes"] or "").split(",") if part.strip())
            return Notes(name, path, key, hashes, read_page("files", text, scope=path, key=key), raw)
    return None


def noted(known: Iterable[Notes], seen: Iterable[Item], *, project: Project, read: ReadFile) -> tuple[NotedFile, ...]:
    """The pages that change: new notes, other contents, files that have moved."""
    pages = _moved(tuple(known), project)
    by_path = {one.path: one for one in pages.values()}
    news: dict[str, list[Item]] = {}
    for item in seen:
        news.setdefault(item.scope, []).append(item)
    for path, items in news.items():
        before = by_path.get(path) or _fresh(path, read)
        owned = [
            msgspec.structs.replace(one, id=item_id("files", one.text, before.key), key=before.key) for one in items
        ]
        pages[before.name] = msgspec.structs.replace(before, page=with_items(before.page, owned))
    written = []
    for notes in pages.values():
        now = project.content_of(notes.path)
        hashes = tuple(dict.fromkeys((now, *notes.hashes)))[:HASHES_MAX] if now else notes.hashes
        written.append(_spelled(msgspec.structs.replace(notes, hashes=hashes)))
    return tuple(one for one in written if one.content != one.before)


def _moved(known: tuple[Notes, ...], project: Project) -> dict[str, Notes]:
    """A file that is gone, and whose content is found elsewhere, has moved there; else its notes stay as they are."""
    gone = {one.name: one for one in known if one.hashes and not project.content_of(one.path)}
    elsewhere = project.paths_with(frozenset(value for one in gone.values() for value in one.hashes)) if gone else {}
    taken = {one.path for one in known if one.name not in gone}
    pages = {one.name: one for one in known}
    for name, notes in gone.items():
        path = next((elsewhere[value] for value in notes.hashes if value in elsewhere), "")
        if path and path not in taken:
            taken.add(path)
            pages[name] = msgspec.structs.replace(
                notes, path=path, page=read_page("files", page_text(notes.page), scope=path, key=notes.key)
            )
    return pages


def _fresh(path: str, read: ReadFile) -> Notes:
    """Where a page of that name is there, and a person has made it say of no file that it is of it, it stays so."""
    name = name_for(path)
    raw = read(f"{FILES}/{name}")
    text = f"# {escaped(path)}\n{_head(path, path, ())}\n\n" if raw is None else read_text(raw)
    return Notes(name, path, path, (), read_page("files", text, scope=path, key=path), raw)


def _spelled(notes: Notes) -> NotedFile:
    head = _head(notes.path, notes.key, notes.hashes)
    lines = [head if _HEAD.match(line) else line for line in notes.page.lines]
    return NotedFile(f"{FILES}/{notes.name}", rewritten(notes.raw or b"", lines), notes.raw)


def _head(path: str, key: str, hashes: tuple[str, ...]) -> str:
    content = f" content {','.join(hashes)}" if hashes else ""
    return f"<!-- file {escaped(path)} key {escaped(key)}{content} -->"


def name_for(path: str) -> str:
    """A name that says which file it is of, and differs where paths do."""
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", path).strip("-.")[-60:].strip("-.") or "file"
    return f"{plain}-{digest(path.encode('utf-8', 'surrogatepass'))[:8]}.md"


def escaped(path: str) -> str:
    """Without white space, and unable to end a comment."""
    return re.sub(r"[\s%<>\x00-\x1f\x7f]|--", lambda found: "".join(f"%{byte:02x}" for byte in _raw(found[0])), path)


def unescaped(text: str) -> str:
    raw = re.sub(rb"%([0-9a-f]{2})", lambda found: bytes.fromhex(found[1].decode()), _raw(text))
    return raw.decode("utf-8", "replace")


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
