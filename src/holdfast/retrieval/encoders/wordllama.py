"""Word-vector encoder with the weights of the wordllama wheel, read as data; its code is never imported."""

from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from holdfast.errors import UserError
from holdfast.retrieval.bm25 import WORDS_CACHED_MAX, split_words
from holdfast.retrieval.encoders.combined import CombinedStage, find_package_file
from holdfast.retrieval.encoders.file_formats import read_tensors
from holdfast.retrieval.vectors import Sums, Vectors, VectorStage, encode_by_words

WEIGHTS = "weights/l2_supercat_256.safetensors"
TOKENS = "tokenizers/l2_supercat_tokenizer_config.json"
FLOOR = 0.135


class WordllamaEncoder:
    """The sum of the vectors of a text's words, in lower case; exact in float64, whatever the order of summation."""

    dimensions = 256

    def __init__(self, weights: Path, tokens: Path, model_version: str) -> None:
        self.model_version = model_version
        self._word_vectors = _word_vectors(weights)
        self._tokenizer = Tokenizer.from_file(str(tokens))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._token_ids = lru_cache(WORDS_CACHED_MAX)(self._tokenize_word)

    def encode(self, texts: Sequence[str]) -> Sums:
        sums = np.zeros((len(texts), self.dimensions), np.float64)
        for row, text in enumerate(texts):
            # No token spans a space, so words can be tokenized one by one, and most are cached.
            ids = list(chain.from_iterable(map(self._token_ids, split_words(text))))
            if ids:
                sums[row] = self._word_vectors[ids].sum(axis=0, dtype=np.float64)
        return sums

    def _tokenize_word(self, word: str) -> list[int]:
        tokens: list[int] = self._tokenizer.encode(word.encode(errors="replace").decode(), add_special_tokens=False).ids
        return tokens


def stage() -> CombinedStage:
    return CombinedStage([(1.0, VectorStage(load_wordllama_encoder(), encode_by_words))], floor=FLOOR)


@cache
def load_wordllama_encoder() -> WordllamaEncoder:
    model_version = f"wordllama-{version('wordllama')}/l2_supercat_256/words"
    weights, tokens = find_package_file("wordllama", WEIGHTS), find_package_file("wordllama", TOKENS)
    return WordllamaEncoder(weights, tokens, model_version)


def _word_vectors(path: Path) -> Vectors:
    try:
        (table,) = read_tensors(path).values()
    except ValueError as error:
        raise UserError(
            f"{path.name} does not contain exactly one table; reinstall holdfast-context[semantic]"
        ) from error
    return table
