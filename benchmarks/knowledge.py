"""How long a digest of 10,000 items takes, from their pages on disk, and how much an addition leaves unchanged."""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.knowledge.digest import build_digest, compare_digests
from holdfast.knowledge.folder import KnowledgeFolder
from holdfast.knowledge.items import CATEGORIES, Category, Item, ItemSource, make_item_id
from holdfast.knowledge.pages import list_page_items, merge_page_items, page_name, parse_page, read_pages, render_page

ITEMS = 10_000
ROUNDS = 7


def run() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as name:
        folder = KnowledgeFolder(Path(name), ("knowledge",))
        for at, category in enumerate(CATEGORIES):
            share = range(at, ITEMS, len(CATEGORIES))
            page = merge_page_items(parse_page(category, ""), (_item(category, number) for number in share))
            folder.replace(page_name(category), render_page(page).encode())
        items = list_page_items(read_pages(folder))
        assert len(items) == ITEMS, "an item of the benchmark was lost"
        yield from _time(f"digest of {ITEMS} items in memory", lambda: build_digest(items))
        yield from _time(
            f"pages of {ITEMS} items read from disk and digested",
            lambda: build_digest(list_page_items(read_pages(folder))),
        )
        before = build_digest(items).text
        comparisons = [
            compare_digests(before, build_digest([*items, _item("tasks", ITEMS + more)]).text) for more in range(20)
        ]
        yield (
            "unchanged bytes of the digest when a task is added, minimum of 20",
            str(min(comparison.first_byte for comparison in comparisons)),
        )
        yield "bytes of the digest", str(len(before.encode()))


def _item(category: Category, number: int) -> Item:
    text = (
        f"The part number {number} of the {category} is kept in src/part_{number}.py and used by module_{number % 97}."
    )
    day = f"2026-{number % 12 + 1:02d}-{number % 28 + 1:02d}"
    sources = (ItemSource(f"01JD{number:022d}", number % 50 + 1, "user"),)
    return Item(make_item_id(category, text), category, text, first_seen=day, last_seen=day, sources=sources)


def _time(label: str, work: Callable[[], object]) -> Iterator[tuple[str, str]]:
    """The best of several rounds, in processor time and in elapsed time."""
    processor_seconds, elapsed_seconds = [], []
    for _ in range(ROUNDS):
        began, started = time.process_time(), time.perf_counter()
        work()
        processor_seconds.append(time.process_time() - began)
        elapsed_seconds.append(time.perf_counter() - started)
    yield f"{label}, processor ms", f"{min(processor_seconds) * 1000:.1f}"
    yield f"{label}, elapsed ms", f"{min(elapsed_seconds) * 1000:.1f}"
