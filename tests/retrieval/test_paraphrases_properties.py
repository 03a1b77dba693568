"""Properties of the paraphrases of any trigger."""

import re
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.retrieval.bm25 import extract_terms
from holdfast.retrieval.paraphrases import (
    COUNT,
    COUNT_MAX,
    INTENT_CHARACTERS_MAX,
    find_synonyms,
    generate_paraphrases,
    generate_probes,
    load_synonym_groups,
)

_GROUPS = load_synonym_groups()
_WORDS = sorted({*chain(*_GROUPS.verbs, *_GROUPS.other_words), "the", "of", "parser", "harbour"})
intents = st.lists(st.sampled_from(_WORDS), min_size=1, max_size=8).map(" ".join) | st.text(max_size=60)


def key(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@given(intents, st.integers(0, 20))
def test_there_are_as_many_as_requested_and_all_differ(intent: str, count: int) -> None:
    paraphrases = generate_paraphrases(intent, count)
    assert len(paraphrases) == (count if intent.strip() else 0)
    assert len({paraphrase.lower() for paraphrase in paraphrases}) == len(paraphrases)
    assert " ".join(intent.split()) not in paraphrases
    assert paraphrases == generate_paraphrases(intent, count + 1)[:count]


@given(intents)
def test_no_paraphrase_differs_by_punctuation_alone(intent: str) -> None:
    if key(intent):
        assert all(key(paraphrase) != key(intent) for paraphrase in generate_paraphrases(intent, 20))


@given(st.lists(intents, max_size=4).map(tuple), intents, st.integers(0, 25))
def test_probes_are_paraphrases_of_their_intents_and_the_description(
    some: tuple[str, ...], description: str, count: int
) -> None:
    probes = generate_probes(some, description, count=count)
    every = {paraphrase for text in (*some, description) for paraphrase in generate_paraphrases(text, COUNT_MAX)}
    assert set(probes) <= every
    assert len(probes) == min(count, len(every))


@given(st.text(min_size=INTENT_CHARACTERS_MAX, max_size=INTENT_CHARACTERS_MAX + 500))
def test_a_very_long_trigger_is_cut(intent: str) -> None:
    assert all(len(paraphrase) < 2 * INTENT_CHARACTERS_MAX for paraphrase in generate_paraphrases(intent))


@pytest.mark.parametrize(
    ("intent", "expected"),
    [
        (
            "write the changelog",
            (
                "draft the release notes",
                "how do I write the changelog?",
                "the release notes, draft",
                "write changelog",
                "write the chagnelog",
            ),
        ),
        (
            "How do I review a pull request before merging?",
            (
                "inspect a pull request before joining",
                "please review a pull request before merging",
                "before joining, inspect a pull request",
                "review request before merging",
                "review a pull reqeust before merging",
            ),
        ),
        (
            "release is blocked by a failing test and the deadline is close",
            (
                "release is blocked by a defective test and the time limit is close",
                "what should I do when release is blocked by a failing test and the deadline is close?",
                "the time limit is close and release is blocked by a defective test",
                "release failing test deadline close",
                "release is blocked by a failing test and the dealdine is close",
            ),
        ),
        ("wrap up", ("how do I wrap up?", "up, wrap", "warp up", "please wrap up", "please wrp up")),
    ],
)
def test_the_five_forms_are_synonyms_inflection_order_omission_and_a_typo(
    intent: str, expected: tuple[str, ...]
) -> None:
    assert generate_paraphrases(intent) == expected


def test_the_first_five_share_as_few_words_as_possible() -> None:
    texts = ("write the changelog", "fix a broken test", "schedule a meeting with the customer", "delete old files")
    for text in texts:
        own = set(extract_terms(text))
        shares = [
            len(own & set(extract_terms(paraphrase))) / len(own) for paraphrase in generate_paraphrases(text, COUNT)
        ]
        assert min(shares) == 0 or min(shares) <= 0.5
        assert sum(shares) / len(shares) < 0.8


@pytest.mark.parametrize(
    ("word", "as_order", "expected"),
    [
        ("test", True, ("check", "try out")),
        ("test", False, ()),
        ("stopping", False, ("halting", "ending")),
        ("merging", False, ("combining", "joining")),
        ("companies", False, ()),
        ("bosses", False, ()),
        ("customers", False, ("clients", "users")),
        ("firms", False, ("companies", "businesses")),
        ("harbour", True, ()),
    ],
)
def test_synonyms_have_the_inflection_of_the_original(word: str, as_order: bool, expected: tuple[str, ...]) -> None:
    assert find_synonyms(word, as_order=as_order)[:2] == expected
