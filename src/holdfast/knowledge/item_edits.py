"""Find, change and remove single items in their pages."""

from collections.abc import Callable

from holdfast.errors import UserError
from holdfast.knowledge import pages
from holdfast.knowledge.file_notes import read_notes
from holdfast.knowledge.folder import NOTES_FOLDER, KnowledgeFiles
from holdfast.knowledge.harvest import read_pages, rebuild_digest
from holdfast.knowledge.items import Item
from holdfast.sources.files import decode_text


def list_knowledge_items(disk: KnowledgeFiles) -> tuple[Item, ...]:
    """All items, page by page, notes on files last."""
    return pages.list_page_items((*read_pages(disk), *(notes.page for notes in read_notes(disk))))


def find_item(disk: KnowledgeFiles, item_id: str) -> Item | None:
    return next((item for item in list_knowledge_items(disk) if item.id == item_id), None)


def replace_item(disk: KnowledgeFiles, item: Item) -> None:
    """Replace the item with the same id, and rebuild the digest."""
    _change_item(disk, item.id, lambda page: pages.replace_page_item(page, item))


def remove_item(disk: KnowledgeFiles, item_id: str) -> None:
    """Remove an item for good (a later harvest does not add it again), and rebuild the digest."""
    _change_item(disk, item_id, lambda page: pages.remove_page_item(page, item_id))


def _change_item(
    disk: KnowledgeFiles, item_id: str, changed: Callable[[pages.KnowledgePage], pages.KnowledgePage]
) -> None:
    with disk.lock():
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
        rebuild_digest(disk)


def _unknown_item(item_id: str) -> UserError:
    return UserError(f"there is no item {item_id[:80]!r}; `holdfast knowledge list` shows all")
