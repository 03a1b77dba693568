"""Properties of every index."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.retrieval_units import anything, distinct_units, phrases, units

from holdfast.retrieval.encoders.registry import create_semantic_stage
from holdfast.retrieval.index import DECIMALS, SearchIndex, StageWeights, scale_scores
from holdfast.retrieval.units import SearchUnit

pytest.importorskip("numpy")
queries = phrases | anything
with_meaning = st.booleans()
shares = st.floats(0, 1)


def index_of(some: list[SearchUnit], semantic: bool) -> SearchIndex:
    return SearchIndex(some, meaning=create_semantic_stage("wordllama") if semantic else None)


@given(distinct_units.flatmap(lambda some: st.tuples(st.just(some), st.permutations(some))), queries, with_meaning)
def test_the_order_of_insertion_does_not_matter(
    both: tuple[list[SearchUnit], list[SearchUnit]], query: str, semantic: bool
) -> None:
    first, other = (index_of(some, semantic) for some in both)
    assert first.search(query, floor=0) == other.search(query, floor=0)
    assert first.digest == other.digest


@given(st.lists(units | units.map(lambda unit: unit.id), max_size=20), queries, with_meaning)
def test_a_changed_index_equals_a_new_one(changes: list[SearchUnit | str], query: str, semantic: bool) -> None:
    changed = index_of([], semantic)
    remaining: dict[str, SearchUnit] = {}
    for change in changes:
        if isinstance(change, SearchUnit):
            changed.add([change])
            remaining[change.id] = change
        else:
            changed.remove([change])
            remaining.pop(change, None)
    rebuilt = index_of(list(remaining.values()), semantic)
    assert changed.search(query) == rebuilt.search(query)
    assert (len(changed), changed.digest) == (len(rebuilt), rebuilt.digest)


@given(st.lists(units, max_size=12), st.lists(st.sampled_from("abcdefgh"), max_size=4), queries, with_meaning)
def test_a_search_without_numpy_has_the_same_result_to_the_last_bit(
    some: list[SearchUnit], removed: list[str], query: str, semantic: bool
) -> None:
    with_arrays, with_lists = index_of([], semantic), index_of([], semantic)
    with_lists._lexical._load_arrays_if_due = lambda: None  # type: ignore[method-assign]
    for index in (with_arrays, with_lists):
        index.search(query)
        index.add(some)
        index.search(query)
        index.remove(removed)
    assert not isinstance(with_arrays._lexical.match({}, slots=1).scores, list)
    assert isinstance(with_lists._lexical.match({}, slots=1).scores, list)
    assert with_arrays.search(query, floor=0) == with_lists.search(query, floor=0)
    assert with_arrays.rank(query).units == with_lists.rank(query).units


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(0, 40))
def test_the_best_of_many_units_are_those_of_the_plain_formula(seed: int, limit: int, removed: int) -> None:
    source = random.Random(seed)
    words = [f"word{number}" for number in range(30)]
    texts = {f"u{number}": source.choices(words, k=source.randrange(1, 12)) for number in range(700)}
    index = SearchIndex(SearchUnit(id, content=" ".join(text)) for id, text in texts.items())
    query = source.choices(words, k=4)
    for gone in source.sample(sorted(texts), removed):
        index.search(" ".join(query))
        index.remove([gone])
        del texts[gone]
    mean_length = sum(map(len, texts.values())) / len(texts)
    scores = dict.fromkeys(texts, 0.0)
    for word in query:
        holders = sum(word in text for text in texts.values())
        inverse_frequency = math.log(1 + (len(texts) - holders + 0.5) / (holders + 0.5))
        for id, text in texts.items():
            count = text.count(word)
            scores[id] += inverse_frequency * count * 2.5 / (count + 1.5 * (0.25 + 0.75 * len(text) / mean_length))
    weight = StageWeights().drop_semantic().lexical / max(scores.values())
    ranked = sorted((-round(weight * score, DECIMALS), id) for id, score in scores.items())
    hits = index.search(" ".join(query), floor=0, limit=limit).hits
    assert [(-hit.score, hit.id) for hit in hits] == ranked[:limit]


@pytest.mark.parametrize("others", [10, 1_000])
def test_a_changed_unit_costs_its_own_terms_however_many_units_there_are(others: int) -> None:
    index = SearchIndex(SearchUnit(f"u{number}", content=f"rain wind word{number}") for number in range(others))
    query = " ".join(["rain", "wind", "snow", *(f"word{number}" for number in range(10))])
    index.search(query)
    arrays = index._lexical._arrays
    assert arrays is not None
    before = dict(arrays._by_term)
    index.add([SearchUnit("new", content="rain and hail")])
    assert {term for term in before if term not in arrays._by_term} == {"rain"}
    assert index._graph._shared_triggers == index._graph._linked_names == set()


@given(distinct_units, queries, with_meaning)
def test_the_stages_shares_add_up_to_the_score(some: list[SearchUnit], query: str, semantic: bool) -> None:
    for hit in index_of(some, semantic).search(query, floor=0).hits:
        assert math.isclose(sum(share.contribution for share in hit.stages), hit.score, abs_tol=10**-DECIMALS)
        assert 0 <= hit.score <= 1
        assert 0 <= hit.relevance <= 1


@given(distinct_units, queries, with_meaning, st.integers(0, 4))
def test_hits_are_ordered_by_score_and_ties_by_id(
    some: list[SearchUnit], query: str, semantic: bool, limit: int
) -> None:
    index = index_of(some, semantic)
    every = index.search(query, floor=0, limit=len(some)).hits
    assert sorted(every, key=lambda hit: (-hit.score, hit.id)) == list(every)
    assert {hit.id for hit in every} == {unit.id for unit in some}
    assert index.search(query, floor=0, limit=limit).hits == every[:limit]


@given(distinct_units, queries, with_meaning)
def test_a_ranking_equals_a_search_for_all_units(some: list[SearchUnit], query: str, semantic: bool) -> None:
    index = index_of(some, semantic)
    every = index.search(query, floor=0, limit=len(some)).hits
    ranking = index.rank(query)
    assert [(unit.id, unit.score, unit.relevance) for unit in ranking.units] == [
        (unit.id, unit.score, unit.relevance) for unit in every
    ]
    assert tuple(ranking.explain(unit.id) for unit in ranking.units) == every


@given(distinct_units, queries, with_meaning, st.floats(0, 1), st.integers(1, 8))
def test_a_floor_separates_hits_from_dropped_units(
    some: list[SearchUnit], query: str, semantic: bool, floor: float, limit: int
) -> None:
    answer = index_of(some, semantic).search(query, floor=floor, limit=limit)
    assert all(hit.relevance >= floor - 10**-DECIMALS for hit in answer.hits)
    assert all(hit.relevance <= floor + 10**-DECIMALS for hit in answer.dropped)
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
def test_normalised_scores_keep_their_order_between_zero_and_one(scores: list[float]) -> None:
    spread_out = scale_scores(scores)
    assert all(0 <= score <= 1 for score in spread_out)
    pairs = sorted(zip(scores, spread_out, strict=True))
    assert [after for _, after in pairs] == sorted(spread_out)
    if len(set(scores)) > 1:
        assert (min(spread_out), max(spread_out)) == (0, 1)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=10), st.floats(0, 100))
def test_scores_up_to_the_baseline_are_zero_and_the_best_is_one(scores: list[float], lowest: float) -> None:
    spread_out = scale_scores(scores, lowest=lowest)
    best = max(scores)
    assert all(
        after == (1 if score == best > 0 else 0)
        for score, after in zip(scores, spread_out, strict=True)
        if (score <= lowest or score == best)
    )
    assert all(0 <= value <= 1 for value in spread_out)
