"""What people do with items: accept or reject what was harvested, share, change and remove, and undo.

Harvested items wait in one file until a person accepts them. A rejected or removed item stays in that file, so that it
can be restored; only the oldest of those are dropped.
"""

import functools
from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.errors import UserError
from holdfast.knowledge import pages
from holdfast.knowledge.digest import DIGEST_BYTES_MAX, SHARED_DIGEST_BYTES_MAX, KnowledgeDigest, build_digest
from holdfast.knowledge.file_notes import NO_PROJECT_LOOKUP, ProjectLookup, read_notes, update_notes
from holdfast.knowledge.folder import DIGEST_FILE, DISABLED_FILE, NOTES_FOLDER, PENDING_FILE, KnowledgeFiles
from holdfast.knowledge.items import CATEGORIES, PROJECT_SCOPE, Category, Item, merge_items, sanitize_item_text
from holdfast.knowledge.pages import read_pages
from holdfast.knowledge.screening import contains_secret, is_personal
from holdfast.sources.files import decode_text

SET_ASIDE_MAX = 500


class PendingItems(msgspec.Struct, frozen=True, omit_defaults=True):
    """`waiting` for a person, oldest first; `set_aside` was rejected or removed and can be restored."""

    waiting: tuple[Item, ...] = ()
    set_aside: tuple[Item, ...] = ()

    @property
    def set_aside_ids(self) -> frozenset[str]:
        return frozenset(item.id for item in self.set_aside)


_decode = msgspec.json.Decoder(PendingItems).decode


def read_pending(disk: KnowledgeFiles) -> PendingItems:
    raw = disk.read(PENDING_FILE)
    if not raw:
        return PendingItems()
    try:
        return _decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        message = f"{PENDING_FILE} cannot be read; repair it, or move it away to start with nothing pending"
        raise UserError(message) from None


def _write_pending(disk: KnowledgeFiles, pending: PendingItems) -> None:
    limited = msgspec.structs.replace(pending, set_aside=pending.set_aside[-SET_ASIDE_MAX:])
    disk.replace(PENDING_FILE, msgspec.json.format(msgspec.json.encode(limited), indent=1))


def add_pending(disk: KnowledgeFiles, items: Iterable[Item]) -> None:
    """Let items wait for a person; one that waits already gets the new sources. Adding twice changes nothing."""
    before = read_pending(disk)
    waiting = {item.id: item for item in before.waiting}
    for item in items:
        waiting[item.id] = merge_items(waiting[item.id], item) if item.id in waiting else item
    after = msgspec.structs.replace(before, waiting=tuple(waiting.values()))
    if after != before:
        _write_pending(disk, after)


def list_knowledge_items(disk: KnowledgeFiles) -> tuple[Item, ...]:
    """All items in pages, page by page, notes on files last."""
    return pages.list_page_items((*read_pages(disk), *(notes.page for notes in read_notes(disk))))


def find_item(disk: KnowledgeFiles, item_id: str) -> Item | None:
    return next((item for item in list_knowledge_items(disk) if item.id == item_id), None)


def accept_item(
    disk: KnowledgeFiles,
    item_id: str,
    *,
    text: str = "",
    shared: KnowledgeFiles | None = None,
    project: ProjectLookup = NO_PROJECT_LOOKUP,
) -> Item:
    """Move a waiting item to its page, with another text if one is given; into `shared` for all users.

    Raises UserError for an unknown item, and for a text that must not be stored or shared.
    """
    with disk.lock():
        pending = read_pending(disk)
        item = _find(pending.waiting, item_id, "waiting")
        accepted = msgspec.structs.replace(item, text=clean_item_text(text) if text else item.text, is_approved=True)
        if shared is None:
            add_to_pages(disk, [accepted], project=project)
        else:
            _share(shared, accepted, project)
        # The page first: if this write is lost, the item waits again, and accepting it again changes nothing.
        _write_pending(disk, _without(pending, item_id))
        rebuild_digest(disk)
    return accepted


def reject_item(disk: KnowledgeFiles, item_id: str) -> Item:
    """Set a waiting item aside; later harvests do not add it again."""
    with disk.lock():
        pending = read_pending(disk)
        item = _find(pending.waiting, item_id, "waiting")
        rest = _without(pending, item_id)
        _write_pending(disk, msgspec.structs.replace(rest, set_aside=(*rest.set_aside, item)))
    return item


def restore_item(disk: KnowledgeFiles, item_id: str, *, shared: KnowledgeFiles | None = None) -> Item:
    """Undo a decision: an item that was rejected, removed or accepted, also into `shared`, waits again."""
    with disk.lock():
        item = _take_back(disk, item_id, bytes_max=DIGEST_BYTES_MAX)
        if item is None and shared is not None:
            with shared.lock():
                item = _take_back(shared, item_id, bytes_max=SHARED_DIGEST_BYTES_MAX)
        if item is None:
            raise _unknown_item(item_id)
        pending = read_pending(disk)
        waiting = msgspec.structs.replace(item, is_approved=False)
        _write_pending(disk, msgspec.structs.replace(pending, waiting=(*pending.waiting, waiting)))
    return item


def _take_back(disk: KnowledgeFiles, item_id: str, *, bytes_max: int) -> Item | None:
    pending = read_pending(disk)
    item = next((item for item in pending.set_aside if item.id == item_id), None)
    if item is not None:
        _write_pending(disk, _without(pending, item_id))
        return item
    return _take_from_page(disk, item_id, bytes_max=bytes_max) if find_item(disk, item_id) else None


def _take_from_page(disk: KnowledgeFiles, item_id: str, *, bytes_max: int = DIGEST_BYTES_MAX) -> Item:
    item = find_item(disk, item_id)
    if item is None:
        raise _unknown_item(item_id)
    _edit_page_item(disk, item_id, lambda page: pages.remove_page_item(page, item_id))
    rebuild_digest(disk, bytes_max=bytes_max)
    return item


def share_item(
    disk: KnowledgeFiles, shared: KnowledgeFiles, item_id: str, *, project: ProjectLookup = NO_PROJECT_LOOKUP
) -> Item:
    """Move an item from a user's pages to those that all users of the workspace receive."""
    with disk.lock():
        item = find_item(disk, item_id)
        if item is None:
            raise _unknown_item(item_id)
        _share(shared, msgspec.structs.replace(item, is_approved=True), project)
        _take_from_page(disk, item_id)
    return item


def replace_item(disk: KnowledgeFiles, item: Item, *, is_shared: bool = False) -> None:
    """Replace the item with the same id, and rebuild the digest.

    A new text that may say something about a person is not shared; one that a person has put there can be retracted.
    """
    with disk.lock():
        before = find_item(disk, item.id)
        if is_shared and is_personal(item.text) and (before is None or before.text != item.text):
            raise _personal_error()
        _edit_page_item(disk, item.id, lambda page: pages.replace_page_item(page, item))
        rebuild_digest(disk, bytes_max=_digest_bytes(is_shared))


def remove_item(disk: KnowledgeFiles, item_id: str, *, is_shared: bool = False) -> None:
    """Remove an item, so that later harvests do not add it again, and rebuild the digest; `restore_item` undoes it."""
    with disk.lock():
        item = _take_from_page(disk, item_id, bytes_max=_digest_bytes(is_shared))
        rest = _without(read_pending(disk), item_id)
        _write_pending(disk, msgspec.structs.replace(rest, set_aside=(*rest.set_aside, item)))


def _digest_bytes(is_shared: bool) -> int:
    return SHARED_DIGEST_BYTES_MAX if is_shared else DIGEST_BYTES_MAX


def clean_item_text(text: str) -> str:
    """A person's text for an item, as it is stored; raises UserError for an empty one and for a credential."""
    if contains_secret(text):
        raise UserError("the text looks like it contains a credential; it was not saved")
    cleaned = sanitize_item_text(text)
    if not cleaned:
        raise UserError("the text is empty")
    return cleaned


def add_to_pages(disk: KnowledgeFiles, items: Iterable[Item], *, project: ProjectLookup) -> None:
    """Add items to pages and notes; those already there get the new sources, so that adding twice changes nothing."""
    all_items = tuple(items)
    for category in CATEGORIES:
        if of_category := [item for item in all_items if item.category == category]:
            merge = functools.partial(_merge_into_page, category, of_category)
            pages.edit_file(disk, pages.page_name(category), merge)
    notes = [item for item in all_items if item.category == "files"]
    for _ in range(pages.ATTEMPTS_MAX):
        files = update_notes(read_notes(disk), notes, project=project, read=disk.read)
        conflicting = [file for file in files if not disk.replace_unless_changed(file.name, file.content, file.before)]
        if not conflicting:
            return
    raise pages.file_in_use_error(conflicting[0].name)


def _merge_into_page(category: Category, items: Sequence[Item], raw: bytes) -> bytes:
    page = pages.parse_page(category, decode_text(raw), scope=PROJECT_SCOPE)
    after = pages.merge_page_items(page, items)
    return pages.rewrite_lines(raw, after.lines) if after.lines != page.lines else raw


def rebuild_digest(disk: KnowledgeFiles, *, bytes_max: int = DIGEST_BYTES_MAX) -> tuple[str, KnowledgeDigest, bool]:
    """Return the digest before, the digest made from the pages, and whether it was stored.

    Without any items the digest file is removed. If the `disabled` marker is present, nothing is written.
    """
    before = decode_text(disk.read(DIGEST_FILE) or b"")
    rebuilt = build_digest(pages.list_page_items(read_pages(disk)), bytes_max=bytes_max)
    if disk.read(DISABLED_FILE) is not None:
        return before, rebuilt, False
    if rebuilt.text != before:
        if rebuilt.text:
            disk.replace(DIGEST_FILE, rebuilt.text.encode())
        else:
            disk.remove(DIGEST_FILE)
    return before, rebuilt, True


def _share(shared: KnowledgeFiles, item: Item, project: ProjectLookup) -> None:
    if is_personal(item.text):
        raise _personal_error()
    with shared.lock():
        add_to_pages(shared, [item], project=project)
        rebuild_digest(shared, bytes_max=SHARED_DIGEST_BYTES_MAX)


def _personal_error() -> UserError:
    return UserError("the text may say something about a person, so it is not shared; change the text first")


def _find(items: Iterable[Item], item_id: str, state: str) -> Item:
    item = next((item for item in items if item.id == item_id), None)
    if item is None:
        raise UserError(f"there is no {state} item {item_id[:80]!r}; `holdfast knowledge review --list` shows all")
    return item


def _without(pending: PendingItems, item_id: str) -> PendingItems:
    return PendingItems(
        tuple(item for item in pending.waiting if item.id != item_id),
        tuple(item for item in pending.set_aside if item.id != item_id),
    )


def _edit_page_item(
    disk: KnowledgeFiles, item_id: str, changed: Callable[[pages.KnowledgePage], pages.KnowledgePage]
) -> None:
    named_pages = [(pages.page_name(page.category), page) for page in read_pages(disk)]
    named_pages += [(f"{NOTES_FOLDER}/{notes.name}", notes.page) for notes in read_notes(disk)]
    location = next(((name, page) for name, page in named_pages if item_id in page.by_id), None)
    if location is None:
        raise _unknown_item(item_id)
    name, page_there = location

    def rewrite(raw: bytes) -> bytes:
        page = pages.parse_page(page_there.category, decode_text(raw), scope=page_there.scope, key=page_there.key)
        if item_id not in page.by_id:
            raise _unknown_item(item_id)
        return pages.rewrite_lines(raw, changed(page).lines)

    pages.edit_file(disk, name, rewrite)


def _unknown_item(item_id: str) -> UserError:
    return UserError(f"there is no item {item_id[:80]!r}; `holdfast knowledge list` shows all")
