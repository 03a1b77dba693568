"""Notes on single files: one page each, found by the file's path, or by its content after the file was moved."""

import re
from collections.abc import Callable, Iterable, Mapping

import msgspec

from holdfast.knowledge.folder import NOTES_FOLDER, KnowledgeFiles
from holdfast.knowledge.items import Item, make_item_id
from holdfast.knowledge.pages import KnowledgePage, merge_page_items, parse_page, render_page, rewrite_lines
from holdfast.sources.files import decode_text
from holdfast.types.json_encoding import sha256_hex

# Several earlier contents are kept, so that a file that changed before it moved is still recognised.
HASHES_MAX = 8
HASH_CHARACTERS = 16
PAGES_MAX = 5_000
_HEADER = re.compile(r"^<!-- file (?P<path>\S+) key (?P<key>\S+)(?: content (?P<hashes>[0-9a-f ,]*))? -->$")

ContentDigest = Callable[[str], str]
"""The content digest of a project file by its path; empty if there is no such file."""

ReadFile = Callable[[str], bytes | None]

FindPathsByDigest = Callable[[frozenset[str]], Mapping[str, str]]
"""Project files with one of these content digests: path by digest."""


class ProjectLookup(msgspec.Struct, frozen=True):
    """How notes look up project files; by default there are none."""

    content_digest: ContentDigest = lambda path: ""
    find_paths: FindPathsByDigest = lambda hashes: {}


NO_PROJECT_LOOKUP = ProjectLookup()


class FileNotes(msgspec.Struct, frozen=True):
    """`path` is the file's current path, `key` its path when the first note was taken; `hashes` are newest first.

    `raw` is the page as it was read, None if there is none yet.
    """

    name: str
    path: str
    key: str
    hashes: tuple[str, ...]
    page: KnowledgePage
    raw: bytes | None = None


class NotesUpdate(msgspec.Struct, frozen=True):
    name: str
    content: bytes
    before: bytes | None


def read_notes(disk: KnowledgeFiles) -> tuple[FileNotes, ...]:
    """All pages with a header that names their file; others are ignored."""
    all_notes = []
    for name in disk.list_names(NOTES_FOLDER)[:PAGES_MAX]:
        raw = disk.read(f"{NOTES_FOLDER}/{name}") if name.endswith(".md") else None
        if raw is not None and (notes := _parse_notes(name, raw)) is not None:
            all_notes.append(notes)
    return tuple(all_notes)


def _parse_notes(name: str, raw: bytes) -> FileNotes | None:
    text = decode_text(raw)
    for line in text.split("\n")[:4]:
        if match := _HEADER.match(line):
            path, key = unescape_path(match["path"]), unescape_path(match["key"])
            hashes = tuple(part for part in (match["hashes"] or "").split(",") if part.strip())
            return FileNotes(name, path, key, hashes, parse_page("files", text, scope=path, key=key), raw)
    return None


def update_notes(
    existing: Iterable[FileNotes], harvested: Iterable[Item], *, project: ProjectLookup, read: ReadFile
) -> tuple[NotesUpdate, ...]:
    """The pages that change: new notes, changed file contents, moved files."""
    pages = _follow_moves(tuple(existing), project)
    by_path = {notes.path: notes for notes in pages.values()}
    items_by_path: dict[str, list[Item]] = {}
    for item in harvested:
        items_by_path.setdefault(item.scope, []).append(item)
    for path, items in items_by_path.items():
        before = by_path.get(path) or _new_notes(path, read)
        key = before.key
        keyed = [msgspec.structs.replace(item, id=make_item_id("files", item.text, key), key=key) for item in items]
        pages[before.name] = msgspec.structs.replace(before, page=merge_page_items(before.page, keyed))
    written = []
    for notes in pages.values():
        content = project.content_digest(notes.path)
        hashes = tuple(dict.fromkeys((content, *notes.hashes)))[:HASHES_MAX] if content else notes.hashes
        written.append(_encode_notes(msgspec.structs.replace(notes, hashes=hashes)))
    return tuple(file for file in written if file.content != file.before)


def _follow_moves(existing: tuple[FileNotes, ...], project: ProjectLookup) -> dict[str, FileNotes]:
    """Follow moved files: a missing file whose content is found at another path has moved there."""
    missing = {notes.name: notes for notes in existing if notes.hashes and not project.content_digest(notes.path)}
    hashes = frozenset(value for notes in missing.values() for value in notes.hashes)
    found_paths = project.find_paths(hashes) if hashes else {}
    used_paths = {notes.path for notes in existing if notes.name not in missing}
    pages = {notes.name: notes for notes in existing}
    for name, notes in missing.items():
        path = next((found_paths[value] for value in notes.hashes if value in found_paths), "")
        if path and path not in used_paths:
            used_paths.add(path)
            page = parse_page("files", render_page(notes.page), scope=path, key=notes.key)
            pages[name] = msgspec.structs.replace(notes, path=path, page=page)
    return pages


def _new_notes(path: str, read: ReadFile) -> FileNotes:
    """New notes; an existing page of that name whose header a person has removed keeps its text."""
    name = notes_page_name(path)
    raw = read(f"{NOTES_FOLDER}/{name}")
    text = f"# {escape_path(path)}\n{_header(path, path, ())}\n\n" if raw is None else decode_text(raw)
    return FileNotes(name, path, path, (), parse_page("files", text, scope=path, key=path), raw)


def _encode_notes(notes: FileNotes) -> NotesUpdate:
    header = _header(notes.path, notes.key, notes.hashes)
    lines = [header if _HEADER.match(line) else line for line in notes.page.lines]
    return NotesUpdate(f"{NOTES_FOLDER}/{notes.name}", rewrite_lines(notes.raw or b"", lines), notes.raw)


def _header(path: str, key: str, hashes: tuple[str, ...]) -> str:
    content = f" content {','.join(hashes)}" if hashes else ""
    return f"<!-- file {escape_path(path)} key {escape_path(key)}{content} -->"


def notes_page_name(path: str) -> str:
    """A readable page name that is unique per path."""
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", path).strip("-.")[-60:].strip("-.") or "file"
    return f"{plain}-{sha256_hex(path.encode('utf-8', 'surrogatepass'))[:8]}.md"


def escape_path(path: str) -> str:
    """Percent-encode white space and anything that could end an HTML comment."""
    return re.sub(r"[\s%<>\x00-\x1f\x7f]|--", lambda match: "".join(f"%{byte:02x}" for byte in _raw(match[0])), path)


def unescape_path(text: str) -> str:
    raw = re.sub(rb"%([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), _raw(text))
    return raw.decode("utf-8", "replace")


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
