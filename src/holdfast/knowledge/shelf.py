"""Find, change and remove single items in their pages."""

from collections.abc import Callable

from holdfast.errors import UserError
from holdfast.knowledge.folder import FILES, Disk
from holdfast.knowledge.harvest import read_pages, rebuild_digest
from holdfast.knowledge.items import Item
from holdfast.knowledge.notes import read_notes
from holdfast.knowledge.pages import Page, all_items, page_name, read_page, with_item, without_item
from holdfast.knowledge.rewriting import change_file, rewritten
from holdfast.sources.text import read_text


def items_in(disk: Disk) -> tuple[Item, ...]:
    """All items, page by page, notes on files last."""
    return all_items((*read_pages(disk), *(notes.page for notes in read_notes(disk))))


def item_named(disk: Disk, item_id: str) -> Item | None:
    return next((item for item in items_in(disk) if item.id == item_id), None)


def replace_item(disk: Disk, item: Item) -> None:
    """Replace the item with the same id, and rebuild the digest."""
    _change_item(disk, item.id, lambda page: with_item(page, item))


def remove_item(disk: Disk, item_id: str) -> None:
    """Remove an item for good (a later harvest does not add it again), and rebuild the digest."""
    _change_item(disk, item_id, lambda page: without_item(page, item_id))


def _change_item(disk: Disk, item_id: str, changed: Callable[[Page], Page]) -> None:
    with disk.locked():
        pages = [(page_name(page.category), page) for page in read_pages(disk)]
        pages += [(f"{FILES}/{notes.name}", notes.page) for notes in read_notes(disk)]
        location = next(((name, page) for name, page in pages if item_id in page.by_id), None)
        if location is None:
            raise _unknown_item(item_id)
        name, page_there = location

        def rewrite(raw: bytes) -> bytes:
            page = read_page(page_there.category, read_text(raw), scope=page_there.scope, key=page_there.key)
            if item_id not in page.by_id:
                raise _unknown_item(item_id)
            return rewritten(raw, changed(page).lines)

        change_file(disk, name, rewrite)
        rebuild_digest(disk)


def _unknown_item(item_id: str) -> UserError:
    return UserError(f"there is no item {item_id[:80]!r}; `holdfast knowledge list` shows all")
