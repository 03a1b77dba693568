"""Which items are in the digest: section shares, the cap, and how little changes when an item is added."""

import time
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.knowledge_folders import knowledge_folder
from tests.support.operations import OperationCounter

from holdfast.knowledge.digest import DIGEST_BYTES_MAX, build_digest, compare_digests
from holdfast.knowledge.items import Category, Item, ItemSource, make_item_id
from holdfast.knowledge.pages import list_page_items, merge_page_items, page_name, parse_page, read_pages, render_page
from holdfast.knowledge.review import rebuild_digest
from holdfast.runtime.knowledge import digest_text

KINDS: tuple[Category, ...] = ("playbooks", "decisions", "facts", "questions", "tasks")


def items(category: Category, number: int, *, size: int = 40) -> list[Item]:
    made = []
    for at in range(number):
        text = f"{category} number {at} " + "x" * size
        made.append(Item(make_item_id(category, text), category, text, sources=(ItemSource("S", 1, "user"),)))
    return made


def test_each_section_has_its_own_share_however_full_the_others_are() -> None:
    crowded = build_digest([*items("playbooks", 500), *items("facts", 500), *items("tasks", 3)])
    assert len(crowded.text.encode()) <= DIGEST_BYTES_MAX
    for heading in ("## Playbooks", "## Facts", "## Open tasks"):
        assert heading in crowded.text
    assert all(f"tasks number {at} " in crowded.text for at in range(3))
    assert crowded.text.rstrip().endswith(f"({crowded.left_out} more in .holdfast/knowledge)")
    assert crowded.items + crowded.left_out == 1_003


def test_unused_share_passes_to_the_next_sections() -> None:
    alone = build_digest(items("tasks", 45))
    beside = build_digest(
        [*items("facts", 100), *items("decisions", 100), *items("playbooks", 100), *items("tasks", 45)]
    )
    assert alone.left_out == 0
    assert 5 < beside.text.count("tasks number") < 30


def test_long_item_does_not_exclude_later_items() -> None:
    long, short = items("playbooks", 1, size=290), items("playbooks", 1, size=1)
    made = build_digest([*long, *short])
    assert short[0].text in made.text
    assert made.left_out == 1


def test_full_section_drops_its_older_half_at_once_and_then_only_grows() -> None:
    many = items("tasks", 200)
    heads = [build_digest(many[:number]).text.split("\n(")[0] for number in range(60, 200)]
    rolled = [number for number, (one, two) in enumerate(pairwise(heads)) if not two.startswith(one)]
    assert 1 <= len(rolled) <= 8
    assert many[199].text in heads[-1] or many[198].text in heads[-1]


def test_digest_change_states_first_byte_and_item_count() -> None:
    before, after = build_digest(items("facts", 3)).text, build_digest(items("facts", 5)).text
    change = compare_digests(before, after)
    assert (change.first_byte, change.items) == (len(before), 2)
    assert change.bytes_changed == len(after) - len(before)
    assert compare_digests(after, after).bytes_changed == 0


def test_ten_thousand_items_are_read_and_digested_quickly(tmp_path: Path) -> None:
    place = knowledge_folder(tmp_path)
    for kind in KINDS:
        page = merge_page_items(parse_page(kind, ""), items(kind, 2_000))
        place.replace(page_name(kind), render_page(page).encode())
    times = []
    for _ in range(5):
        began = time.process_time()
        made = build_digest(list_page_items(read_pages(place)))
        times.append(time.process_time() - began)
    assert made.items + made.left_out == 10_000
    # The promise is a tenth of a second; a busy machine may take longer.
    assert min(times) < 0.3


def test_a_session_starts_with_as_many_operations_among_1000_items_as_among_100(tmp_path: Path) -> None:
    """A digest is made when items change; a session reads the stored one, whose size is limited."""
    starts, changes = list[int](), list[float]()
    for number in (100, 1_000):
        workspace = tmp_path / f"{number}"
        place = knowledge_folder(workspace)
        for kind in KINDS:
            page = merge_page_items(parse_page(kind, ""), items(kind, number // len(KINDS), size=200))
            place.replace(page_name(kind), render_page(page).encode())
        with OperationCounter().counting() as operations:
            rebuild_digest(place)
        changes.append(operations.total() / number)
        with OperationCounter().counting() as operations:
            assert len(digest_text(workspace, workspace / "unused-home")) > DIGEST_BYTES_MAX / 2
        starts.append(operations.total())
    assert 0 < starts[1] < 1.1 * starts[0]
    assert 0 < changes[1] < 1.1 * changes[0]


@pytest.mark.parametrize("size", range(1, 40, 3))
def test_note_on_omitted_items_fits_in_the_cap(size: int) -> None:
    fullest = max(
        (build_digest([item for kind in KINDS for item in items(kind, number, size=size)]) for number in range(8, 80)),
        key=lambda made: len(made.text.encode()),
    )
    assert fullest.left_out
    assert DIGEST_BYTES_MAX - 400 < len(fullest.text.encode()) <= DIGEST_BYTES_MAX
