"""A search and a change cost what they have to do with the query and the unit, counted in operations."""

import random

import pytest
from tests.support.operations import OperationCounter

from holdfast.retrieval.index import SearchIndex
from holdfast.retrieval.units import SearchUnit

FEW, MANY = 1_000, 10_000
MATCHING = 50
QUERIES = 30  # An index makes arrays of its postings after some searches.


def make_index(units: int, matching: int) -> SearchIndex:
    """Units of which so many have words that queries ask for; the others share none with them."""
    source = random.Random(1)
    asked, others = ([f"{kind}{number}" for number in range(size)] for kind, size in (("asked", 40), ("other", 5_000)))
    return SearchIndex(
        SearchUnit(f"u{number:05}", content=" ".join(source.choices(asked if number < matching else others, k=20)))
        for number in range(units)
    )


@pytest.mark.parametrize("matching", [1, MATCHING])
def test_units_without_a_word_of_the_query_cost_a_search_nothing(matching: int) -> None:
    pytest.importorskip("numpy")
    counts = []
    for units in (FEW, MANY):
        index = make_index(units, matching)
        for number in range(QUERIES):
            index.search(f"asked{number}")
        with OperationCounter().counting() as operations:
            assert index.search("asked7 asked9", floor=0.0).hits
        counts.append(operations.total())
    assert 0 < counts[1] < 1.05 * counts[0]


def test_a_changed_unit_costs_the_same_among_10000_as_among_1000() -> None:
    counts = []
    for units in (FEW, MANY):
        index = make_index(units, MATCHING)
        with OperationCounter().counting() as operations:
            index.add([SearchUnit("u00003", content="Something else")])
        counts.append(operations.total())
    assert 0 < counts[1] < 1.05 * counts[0]
