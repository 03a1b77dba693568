"""Word-vector encoder with the weights of the wordllama package, read as data; its code is never imported.

Both files are checked against digests, so that any release with these weights gives the same vectors and no other is
used.
"""

import hashlib
import importlib.util
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
from safetensors.numpy import load
from tokenizers import Tokenizer

from holdfast.errors import UserError
from holdfast.retrieval.bm25 import STOP_WORDS, WORDS_CACHED_MAX, split_words
from holdfast.retrieval.encoders.registry import EncodingStore
from holdfast.retrieval.vectors import Sums, WordStage

PACKAGE = "wordllama"
WEIGHTS = "weights/l2_supercat_256.safetensors"
WEIGHTS_SHA256 = "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5"
TOKENS = "tokenizers/l2_supercat_tokenizer_config.json"
# Without white space at the end: releases since 0.3 end the file with a line break, those before did not.
TOKENS_SHA256 = "bf467c9e0f536bda271283c6ef85eb1a943e3196b621c8a912d64953b205df83"
FLOOR = 0.135


class WordllamaEncoder:
    """The sum of the vectors of a text's words, in lower case; exact in float64, whatever the order of summation."""

    model_version = f"wordllama-l2_supercat_256@{WEIGHTS_SHA256[:8]}"
    dimensions = 256

    def __init__(self, weights: bytes, tokens: bytes) -> None:
        (table,) = load(weights).values()
        self._word_vectors = table.astype(np.float32)
        self._tokenizer = Tokenizer.from_str(tokens.decode())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._token_ids = lru_cache(WORDS_CACHED_MAX)(self._tokenize_word)

    def encode(self, texts: Sequence[str]) -> Sums:
        sums = np.zeros((len(texts), self.dimensions), np.float64)
        for row, text in enumerate(texts):
            # No token spans a space, so words can be tokenized one by one, and most are cached.
            words = split_words(text)
            topical = [word for word in words if word not in STOP_WORDS]
            ids = list(chain.from_iterable(map(self._token_ids, topical or words)))
            if ids:
                sums[row] = self._word_vectors[ids].sum(axis=0, dtype=np.float64)
        return sums

    def _tokenize_word(self, word: str) -> list[int]:
        tokens: list[int] = self._tokenizer.encode(word.encode(errors="replace").decode(), add_special_tokens=False).ids
        return tokens


def create_stage(encodings: EncodingStore | None = None) -> WordStage:
    return WordStage(load_wordllama_encoder(), floor=FLOOR, encodings=encodings)


@cache
def load_wordllama_encoder() -> WordllamaEncoder:
    spec = importlib.util.find_spec(PACKAGE)
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    weights, tokens = read_pinned(folders, WEIGHTS, WEIGHTS_SHA256), read_pinned(folders, TOKENS, TOKENS_SHA256)
    return WordllamaEncoder(weights, tokens)


def read_pinned(folders: Sequence[str], name: str, sha256: str) -> bytes:
    """The contents of a file of the package, without white space at the end of text. Raises UserError."""
    path = next((path for folder in folders if (path := Path(folder, name)).is_file()), None)
    content = path.read_bytes() if path is not None else b""
    if name.endswith(".json"):
        content = content.rstrip()
    if hashlib.sha256(content).hexdigest() != sha256:
        problem = "lacks" if path is None else "has another version of"
        raise UserError(
            f"the installed package {PACKAGE} {problem} {name}: pip install --force-reinstall 'wordllama<=0.4.0.post1'"
        )
    return content
