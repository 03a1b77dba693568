"""Encoder for a user's own model: onnxruntime computes it, one text at a time and on one thread."""

import os
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from holdfast.errors import UserError
from holdfast.retrieval.encoders import model_folder
from holdfast.retrieval.encoders.registry import EncodingStore
from holdfast.retrieval.vectors import CachingEncoder, Encoder, Sums, VectorStage, encode_by_sentences, normalize_rows

# Since 1.29 onnxruntime sends telemetry as soon as it is imported, unless this variable is set before.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
from onnxruntime import InferenceSession, SessionOptions

WORDS_SHARE = 0.5
FLOOR = 0.09  # Low, because the scale of an unknown model is unknown.
ZERO_MAX = 0.95  # A model that finds unrelated sentences this similar distinguishes nothing.
REASON_CHARACTERS_MAX = 300
POOLED_OUTPUT = "sentence_embedding"
"""The name of an output that is one vector for a whole text; other outputs have a vector for each token."""
UNRELATED_SENTENCES = (
    "Will it rain in Kyoto tomorrow?",
    "Merge the pages of two PDF files.",
    "Who may approve a purchase of more than a thousand euros?",
    "The bass player tuned her instrument before the concert.",
    "Rotate the credentials of the production database.",
    "A recipe for lentil soup with cumin.",
    "How many goals were scored in the final?",
    "Translate this letter into Portuguese.",
)
"""Unrelated sentences; their mean similarity is the zero point of a model."""
_HOSTILE_TEXTS = ("", "\u6f22\U0001f600\x00", "rain " * 1_000)
_ONNX_LOG_FATAL = 4


class OnnxEncoder:
    """`encode` takes texts as they are; `query_encoder` and `document_encoder` prepend the model's prompts."""

    def __init__(self, folder: Path) -> None:
        model_folder.check_model_folder(folder)
        self.model_version = f"{folder.name}@{model_folder.fingerprint(folder)}"
        try:
            self._settings = model_folder.read_model_settings(folder)
            self._tokenizer = Tokenizer.from_file(str(folder / model_folder.TOKENS))
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(self._settings.tokens_max)
            self._session = _open_session(model_folder.find_model(folder))
            self._inputs = {put.name for put in self._session.get_inputs()}
            outputs = [put.name for put in self._session.get_outputs()]
            self._output = POOLED_OUTPUT if POOLED_OUTPUT in outputs else outputs[0]
            # Fails if the tokenizer has tokens that the model has no vectors for.
            self.dimensions = len(self._encode_tokens([max(self._tokenizer.get_vocab().values())]))
            self.query_encoder = PromptedEncoder(self, self._settings.query_prompt)
            self.document_encoder = PromptedEncoder(self, self._settings.document_prompt)
            # Running the model reveals inconsistent files now instead of at the first query.
            self.zero = _measure_zero(self.document_encoder)
            self.encode(_HOSTILE_TEXTS)
        except Exception as error:
            # Neither library has an error class of its own.
            reason = " ".join(str(error).split())[:REASON_CHARACTERS_MAX]
            raise UserError(f"{folder} is not a supported model: {reason}") from error
        if model_folder.digest_files(folder) != model_folder.fingerprint(folder):
            raise UserError(f"{folder} changed while it was read: start again")

    def encode(self, texts: Sequence[str]) -> Sums:
        return np.array([self._encode_text(text) for text in texts]).reshape(len(texts), self.dimensions)

    def _encode_text(self, text: str) -> Sums:
        text = text.encode(errors="replace").decode()
        encoding = self._tokenizer.encode(text.lower() if self._settings.lower_case else text)
        return self._encode_tokens(encoding.ids) if encoding.ids else np.zeros(self.dimensions)

    def _encode_tokens(self, token_ids: Sequence[int]) -> Sums:
        ids = np.array([token_ids], np.int64)
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        known = {name: value for name, value in feed.items() if name in self._inputs}
        rows: Sums = np.asarray(self._session.run([self._output], known)[0])[0].astype(np.float64)
        if rows.ndim == 1 and self._output == POOLED_OUTPUT:
            return rows
        if rows.ndim != 2:
            raise ValueError(f"its output {self._output[:80]!r} is no list of token vectors: is it a classifier?")
        pooled: Sums = rows[0] if self._settings.pools_first_token else rows.sum(axis=0)
        return pooled


class PromptedEncoder:
    """Prepends the same prompt to every text."""

    def __init__(self, encoder: OnnxEncoder, prompt: str) -> None:
        self.model_version = encoder.model_version
        self.dimensions = encoder.dimensions
        self._encoder = encoder
        self._prompt = prompt

    def encode(self, texts: Sequence[str]) -> Sums:
        return self._encoder.encode([f"{self._prompt}{text}" for text in texts])


def create_stage(folder: Path, encodings: EncodingStore | None = None) -> VectorStage:
    queries, documents, zero = load_onnx_encoders(folder)
    return VectorStage(
        documents,
        encode_by_sentences,
        floor=FLOOR,
        words_share=WORDS_SHARE,
        query_encoder=queries,
        zero=zero,
        encodings=encodings,
    )


@cache
def load_onnx_encoders(folder: Path) -> tuple[CachingEncoder, CachingEncoder, float]:
    """The encoders for queries and for documents, and the zero point."""
    encoder = OnnxEncoder(folder)
    return CachingEncoder(encoder.query_encoder), CachingEncoder(encoder.document_encoder), encoder.zero


def _open_session(model: Path) -> InferenceSession:
    options = SessionOptions()
    # One thread leaves the other cores to the application, and keeps the order of sums the same.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = _ONNX_LOG_FATAL
    return InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def _measure_zero(encoder: Encoder) -> float:
    rows = normalize_rows(encoder.encode(UNRELATED_SENTENCES))
    similarity = float(np.mean([left @ right for left, right in combinations(rows, 2)]))
    if not np.isfinite(similarity) or similarity > ZERO_MAX or not rows.any(axis=1).all():
        raise ValueError("it gives all texts the same vector")
    return round(max(similarity, 0.0), 3)
