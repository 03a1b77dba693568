"""Why vectors give the same similarities on every machine."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer

from holdfast.retrieval import wordllama
from holdfast.retrieval.carried import carried_file
from holdfast.retrieval.joined import FIRST_SHARE, JoinedEncoder
from holdfast.retrieval.vectors import VECTOR_LENGTH, VectorStage, directions, whole_numbers
from holdfast.retrieval.words import words

texts = st.text(max_size=60) | st.lists(st.sampled_from(["rain", "Käse", "PDF", "x_y", "漢字", "!"])).map(" ".join)
EXACT_BELOW = 2**24


def drawn(seed: int, rows: int, columns: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(rows, columns))


@given(st.integers(0, 2**32), st.sampled_from((256, 384, 640)))
def test_no_sum_of_products_leaves_what_float32_holds_exactly(seed: int, dimensions: int) -> None:
    rows = whole_numbers(drawn(seed, 4, dimensions))
    products = np.abs(rows[:, None, :].astype(np.int64) * rows[None, :, :].astype(np.int64)).sum(axis=2)
    assert products.max() < EXACT_BELOW
    assert ((rows @ rows.T).astype(np.int64) == rows.astype(np.int64) @ rows.astype(np.int64).T).all()
    assert np.allclose(np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1)), VECTOR_LENGTH, atol=15)


@given(texts, texts)
def test_the_vector_of_a_text_is_the_sum_of_those_of_its_words(one: str, other: str) -> None:
    encoder = wordllama.encoder()
    both = encoder.encode([f"{one} {other}", one, other])
    assert (both[0] == both[1] + both[2]).all()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(carried_file("wordllama", wordllama.TOKENS)))


@given(text=texts)
def test_words_have_the_tokens_that_they_have_in_their_text(tokenizer: Tokenizer, text: str) -> None:
    encoder = wordllama.encoder()
    said = " ".join(words(text)).encode(errors="replace").decode()
    tokens = tokenizer.encode(said, add_special_tokens=False).tokens if said else []
    alone = [tokenizer.encode(word, add_special_tokens=False).tokens for word in said.split()]
    assert tokens == [token for word in alone for token in word]
    assert encoder.encode([text]).any() == bool(tokens)


@given(st.integers(0, 2**32))
def test_the_similarity_of_joined_vectors_is_the_weighted_mean_of_both(seed: int) -> None:
    class Drawn:
        dimensions = 20
        model_version = "drawn"

        def __init__(self, seed: int) -> None:
            self.rows = drawn(seed, 2, self.dimensions)

        def encode(self, texts: object) -> NDArray[np.float64]:
            return self.rows

    first, second = Drawn(seed), Drawn(seed + 1)
    one, other = directions(JoinedEncoder(first, second).encode(["a", "b"]))
    apart = [float(np.dot(*directions(encoder.rows))) for encoder in (first, second)]
    assert np.isclose(one @ other, FIRST_SHARE * apart[0] + (1 - FIRST_SHARE) * apart[1])


def test_many_passages_make_the_matrix_grow_and_what_was_removed_is_never_near() -> None:
    stage = VectorStage(wordllama.encoder())
    for slot in range(100):
        stage.add(slot, ["rain and wind", f"page {slot}"])
    for slot in range(99):
        stage.remove(slot)
    near = stage.match("rain and wind", slots=100)
    assert near[:99] == [0.0] * 99
    assert near[99] > 0.99
