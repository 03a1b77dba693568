"""Vectors of words out of the wheel of wordllama, read as data; its program is never imported."""

from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from holdfast.errors import UserError
from holdfast.retrieval.carried import carried_file
from holdfast.retrieval.sides import SideBySide
from holdfast.retrieval.tensors import read_tensors
from holdfast.retrieval.vectors import Sums, Vectors, VectorStage, by_words
from holdfast.retrieval.words import WORDS_KNOWN_MAX, words

WEIGHTS = "weights/l2_supercat_256.safetensors"
TOKENS = "tokenizers/l2_supercat_tokenizer_config.json"
FLOOR = 0.135


class WordllamaEncoder:
    """The sum of the vectors of a text's words, in lower case; float64 holds it exactly, in any order of summation."""

    dimensions = 256

    def __init__(self, weights: Path, tokens: Path, model_version: str) -> None:
        self.model_version = model_version
        self._table = _table(weights)
        self._tokenizer = Tokenizer.from_file(str(tokens))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokens = lru_cache(WORDS_KNOWN_MAX)(self._tokens_of)

    def encode(self, texts: Sequence[str]) -> Sums:
        sums = np.zeros((len(texts), self.dimensions), np.float64)
        for row, text in enumerate(texts):
            # No token reaches over a space, and most words were met before.
            ids = list(chain.from_iterable(map(self._tokens, words(text))))
            if ids:
                sums[row] = self._table[ids].sum(axis=0, dtype=np.float64)
        return sums

    def _tokens_of(self, word: str) -> list[int]:
        tokens: list[int] = self._tokenizer.encode(word.encode(errors="replace").decode(), add_special_tokens=False).ids
        return tokens


def stage() -> SideBySide:
    return SideBySide([(1.0, VectorStage(encoder(), by_words))], floor=FLOOR)


@cache
def encoder() -> WordllamaEncoder:
    model_version = f"wordllama-{version('wordllama')}/l2_supercat_256/words"
    return WordllamaEncoder(carried_file("wordllama", WEIGHTS), carried_file("wordllama", TOKENS), model_version)


def _table(path: Path) -> Vectors:
    try:
        (table,) = read_tensors(path).values()
    except ValueError as error:
        raise UserError(f"{path.name} holds something else than one table; reinstall holdfast[semantic]") from error
    return table
