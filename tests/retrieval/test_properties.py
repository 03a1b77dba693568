"""What holds for every index, whatever is in it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.retrieval_units import anything, distinct_units, phrases, units

from holdfast.retrieval.encoders.registry import create_semantic_stage
from holdfast.retrieval.index import DECIMALS, SearchIndex, StageWeights, scale_scores
from holdfast.retrieval.units import SearchUnit

queries = phrases | anything
meant = st.booleans()
shares = st.floats(0, 1)


def index_of(some: list[SearchUnit], semantic: bool) -> SearchIndex:
    return SearchIndex(some, meaning=create_semantic_stage("wordllama") if semantic else None)


@given(distinct_units.flatmap(lambda some: st.tuples(st.just(some), st.permutations(some))), queries, meant)
def test_the_order_in_which_units_came_changes_nothing(
    both: tuple[list[SearchUnit], list[SearchUnit]], query: str, semantic: bool
) -> None:
    one, other = (index_of(some, semantic) for some in both)
    assert one.search(query, floor=0) == other.search(query, floor=0)
    assert one.digest == other.digest


@given(st.lists(units | units.map(lambda unit: unit.id), max_size=20), queries, meant)
def test_an_index_that_was_changed_is_as_one_built_anew(
    changes: list[SearchUnit | str], query: str, semantic: bool
) -> None:
    changed = index_of([], semantic)
    left: dict[str, SearchUnit] = {}
    for change in changes:
        if isinstance(change, SearchUnit):
            changed.add([change])
            left[change.id] = change
        else:
            changed.remove([change])
            left.pop(change, None)
    anew = index_of(list(left.values()), semantic)
    assert changed.search(query) == anew.search(query)
    assert (len(changed), changed.digest) == (len(anew), anew.digest)


@given(distinct_units, queries, meant)
def test_what_the_stages_add_is_the_score(some: list[SearchUnit], query: str, semantic: bool) -> None:
    for one in index_of(some, semantic).search(query, floor=0).hits:
        assert math.isclose(sum(share.contribution for share in one.stages), one.score, abs_tol=10**-DECIMALS)
        assert 0 <= one.score <= 1
        assert 0 <= one.relevance <= 1


@given(distinct_units, queries, meant, st.integers(0, 4))
def test_the_best_are_told_in_order_and_ties_go_by_id(
    some: list[SearchUnit], query: str, semantic: bool, limit: int
) -> None:
    index = index_of(some, semantic)
    every = index.search(query, floor=0, limit=len(some)).hits
    assert sorted(every, key=lambda one: (-one.score, one.id)) == list(every)
    assert {one.id for one in every} == {unit.id for unit in some}
    assert index.search(query, floor=0, limit=limit).hits == every[:limit]


@given(distinct_units, queries, meant)
def test_a_ranking_is_the_search_for_all_units_told_one_by_one(
    some: list[SearchUnit], query: str, semantic: bool
) -> None:
    index = index_of(some, semantic)
    every = index.search(query, floor=0, limit=len(some)).hits
    ranking = index.rank(query)
    assert [(one.id, one.score, one.relevance) for one in ranking.units] == [
        (one.id, one.score, one.relevance) for one in every
    ]
    assert tuple(ranking.explain(one.id) for one in ranking.units) == every


@given(distinct_units, queries, meant, st.floats(0, 1), st.integers(1, 8))
def test_a_floor_parts_what_is_found_from_what_is_dropped(
    some: list[SearchUnit], query: str, semantic: bool, floor: float, limit: int
) -> None:
    answer = index_of(some, semantic).search(query, floor=floor, limit=limit)
    assert all(one.relevance >= floor - 10**-DECIMALS for one in answer.hits)
    assert all(one.relevance <= floor + 10**-DECIMALS for one in answer.dropped)
    assert len(answer.hits) <= limit
    if not answer.dropped:
        assert len(answer.hits) == min(limit, len(some))


@given(shares, shares)
def test_weights_sum_to_one_with_and_without_meaning(first: float, second: float) -> None:
    low, high = sorted((first, second))
    weights = StageWeights(low, high - low, 1 - high)
    rest = weights.drop_semantic()
    assert rest.semantic == 0
    assert rest.lexical + rest.graph == pytest.approx(1)
    assert rest.lexical * weights.graph == pytest.approx(rest.graph * weights.lexical, abs=1e-9)


@given(st.lists(st.floats(0, 100), max_size=10))
def test_spread_scores_keep_their_order_between_nothing_and_one(scores: list[float]) -> None:
    spread_out = scale_scores(scores)
    assert all(0 <= one <= 1 for one in spread_out)
    pairs = sorted(zip(scores, spread_out, strict=True))
    assert [after for _, after in pairs] == sorted(spread_out)
    if len(set(scores)) > 1:
        assert (min(spread_out), max(spread_out)) == (0, 1)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=10), st.floats(0, 100))
def test_what_is_not_above_the_lowest_that_counts_is_nothing_and_the_best_is_all(
    scores: list[float], lowest: float
) -> None:
    spread_out = scale_scores(scores, lowest=lowest)
    best = max(scores)
    assert all(
        after == (1 if score == best > 0 else 0)
        for score, after in zip(scores, spread_out, strict=True)
        if (score <= lowest or score == best)
    )
    assert all(0 <= one <= 1 for one in spread_out)
