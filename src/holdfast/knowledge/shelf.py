"""How single items are found, changed and removed in the pages they stand in."""

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


def item_named(disk: Disk, wanted: str) -> Item | None:
    return next((one for one in items_in(disk) if one.id == wanted), None)


def replace_item(disk: Disk, item: Item) -> None:
    """Another item in the place of the one that has its id; the digest follows."""
    _change(disk, item.id, lambda page: with_item(page, item))


def remove_item(disk: Disk, wanted: str) -> None:
    """It does not come back by itself; the digest follows."""
    _change(disk, wanted, lambda page: without_item(page, wanted))


def _change(disk: Disk, wanted: str, changed: Callable[[Page], Page]) -> None:
    with disk.locked():
        named = [(page_name(page.category), page) for page in read_pages(disk)]
        named += [(f"{FILES}/{notes.name}", notes.page) for notes in read_notes(disk)]
        place = next(((name, page) for name, page in named if wanted in page.by_id), None)
        if place is None:
            raise _unknown(wanted)
        name, known = place

        def written(raw: bytes) -> bytes:
            page = read_page(known.category, read_text(raw), scope=known.scope, key=known.key)
            if wanted not in page.by_id:
                raise _unknown(wanted)
            return rewritten(raw, changed(page).lines)

        change_file(disk, name, written)
        rebuild_digest(disk)


def _unknown(wanted: str) -> UserError:
    return UserError(f"there is no item {wanted[:80]!r}; `holdfast knowledge list` shows all")
