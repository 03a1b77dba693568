"""Why vectors give the same similarities on every machine."""

import zlib
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from holdfast.retrieval.bm25 import split_words
from holdfast.retrieval.encoders import wordllama
from holdfast.retrieval.units import SearchUnit
from holdfast.retrieval.vectors import (
    NAME_SHARE,
    VECTOR_LENGTH,
    CachingEncoder,
    VectorStage,
    encode_by_sentences,
    encode_by_words,
    normalize_rows,
    quantize,
)

texts = st.text(max_size=60) | st.lists(st.sampled_from(["rain", "Käse", "PDF", "x_y", "漢字", "!"])).map(" ".join)
EXACT_BELOW = 2**24


def drawn(seed: int, rows: int, columns: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(rows, columns))


@given(st.integers(0, 2**32), st.sampled_from((256, 384, 512)))
def test_no_sum_of_products_leaves_what_float32_holds_exactly(seed: int, dimensions: int) -> None:
    rows = quantize(drawn(seed, 4, dimensions))
    products = np.abs(rows[:, None, :].astype(np.int64) * rows[None, :, :].astype(np.int64)).sum(axis=2)
    assert products.max() < EXACT_BELOW
    assert ((rows @ rows.T).astype(np.int64) == rows.astype(np.int64) @ rows.astype(np.int64).T).all()
    assert np.allclose(np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1)), VECTOR_LENGTH, atol=15)


@given(texts, texts)
def test_the_vector_of_a_text_is_the_sum_of_those_of_its_words(one: str, other: str) -> None:
    encoder = wordllama.load_wordllama_encoder()
    both = encoder.encode([f"{one} {other}", one, other])
    assert (both[0] == both[1] + both[2]).all()


@given(text=texts)
def test_words_have_the_tokens_that_they_have_in_their_text(text: str) -> None:
    encoder = wordllama.load_wordllama_encoder()
    tokenizer = encoder._tokenizer
    said = " ".join(split_words(text)).encode(errors="replace").decode()
    tokens = tokenizer.encode(said, add_special_tokens=False).tokens if said else []
    alone = [tokenizer.encode(word, add_special_tokens=False).tokens for word in said.split()]
    assert tokens == [token for word in alone for token in word]
    assert encoder.encode([text]).any() == bool(tokens)


class Drawn:
    """For each text a vector of its own, whatever was asked before."""

    dimensions = 20

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.model_version = f"drawn-{seed}"
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str]) -> NDArray[np.float64]:
        self.asked += texts
        return np.stack([drawn(self.seed + zlib.crc32(text.encode()), 1, self.dimensions)[0] for text in texts])


@given(st.integers(0, 2**32), st.booleans(), st.booleans(), st.booleans())
def test_sentences_are_read_with_a_share_for_the_name(seed: int, named: bool, described: bool, long: bool) -> None:
    encoder = Drawn(seed)
    unit = SearchUnit("a", "rainFall" * named, "wind" * described, ("a storm",) * described, "page " * 100 * long)
    name, description = normalize_rows(encoder.encode(["rain Fall", "wind a storm"]))
    own = description * described + name * (NAME_SHARE if described else 1) * named
    if not (named or described):
        (own,) = encoder.encode([""])
    rows = normalize_rows(encode_by_sentences(encoder, unit))
    assert np.allclose(rows[0], normalize_rows(own[None])[0])
    assert len(rows) == 1 + 2 * long


@given(st.integers(0, 2**32), st.lists(st.sampled_from(["rain", "wind", "storm"]), max_size=8))
def test_what_was_read_is_not_read_again(seed: int, texts: list[str]) -> None:
    encoder = Drawn(seed)
    rows = CachingEncoder(encoder).encode(texts)
    assert encoder.asked == list(dict.fromkeys(texts))
    assert rows.shape == (len(texts), 20)
    assert all((row == Drawn(seed).encode([text])[0]).all() for row, text in zip(rows, texts, strict=True))


def test_many_passages_make_the_matrix_grow_and_what_was_removed_is_never_near() -> None:
    stage = VectorStage(wordllama.load_wordllama_encoder(), encode_by_words, floor=0.1)
    for slot in range(100):
        stage.add({slot: SearchUnit(str(slot), "rain and wind", f"page {slot}")})
    for slot in range(99):
        stage.remove(slot)
    near = stage.match("rain and wind", slots=100)
    assert near[:99] == [0.0] * 99
    assert near[99] > 0.99
