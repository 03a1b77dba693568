"""Encoder for a user's own model: a folder in the sentence-transformers format with a transformer of the BERT family.

The model is read as data and computed here; no foreign code runs, and nothing is downloaded. It can be combined with an
encoder from an installed package.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np

from holdfast.errors import UserError
from holdfast.retrieval.encoders.combined import CombinedStage
from holdfast.retrieval.encoders.model_folder import (
    CONFIG,
    LIMITS,
    MODULES,
    PROMPTS,
    TOKENS,
    TOKENS_CONFIG,
    WEIGHTS,
    read_custom_model,
)
from holdfast.retrieval.vectors import CachingEncoder, Encoder, Sums, VectorStage, encode_by_sentences, normalize_rows

HASH_DIGITS = 16
SHARES = {"wordllama": 0.7, "paired": 0.5, "minilm": 0.6, "joined": 1 / 3}
"""Its weight beside each encoder; chosen with all-mpnet-base-v2 on one query set, where nearby values do as well."""
WORDS_SHARE = 0.5
FLOOR = 0.09  # Low, because the scale of an unknown model is unknown (docs/decisions/0026).
ZERO_MAX = 0.95  # A model that finds unrelated sentences this similar distinguishes nothing.
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

_UNEXPECTED = (ValueError, LookupError, TypeError, ArithmeticError, RecursionError, MemoryError, OSError)


class CustomEncoder:
    """Mean or first-token pooling of the last layer, one text at a time. Raises UserError.

    `encode` takes texts as they are; `query_encoder` and `document_encoder` prepend the model's prompts for queries
    and documents.
    """

    def __init__(self, folder: Path) -> None:
        check_model_folder(folder)
        self.model_version = f"{folder.name}@{fingerprint(folder)}"
        try:
            self._model = read_custom_model(folder)
            self.dimensions = self._model.transformer.token_embeddings.shape[1]
            self.query_encoder = PromptedEncoder(self, self._model.query_prompt)
            self.document_encoder = PromptedEncoder(self, self._model.document_prompt)
            # Running the model once reveals inconsistent files now instead of at the first query.
            self.zero = _measure_zero(self.document_encoder)
        except _UNEXPECTED as error:
            raise UserError(f"{folder} is not a supported model: {_error_text(error)}") from error
        if _digest(folder) != fingerprint(folder):
            raise UserError(f"{folder} changed while it was read: start again")

    def encode(self, texts: Sequence[str]) -> Sums:
        sums = np.zeros((len(texts), self.dimensions), np.float64)
        for row, text in enumerate(texts):
            readable = text.encode(errors="replace").decode()
            normalized = readable.lower() if self._model.lower_case else readable
            if ids := self._model.tokenizer.encode(normalized).ids:
                rows = self._model.transformer.run(ids)
                sums[row] = rows[0] if self._model.pools_first_token else rows.sum(axis=0, dtype=np.float64)
        return sums


class PromptedEncoder:
    """Prepends the same prompt to every text."""

    def __init__(self, encoder: CustomEncoder, prompt: str) -> None:
        self.model_version = encoder.model_version
        self.dimensions = encoder.dimensions
        self._encoder = encoder
        self._prompt = prompt

    def encode(self, texts: Sequence[str]) -> Sums:
        return self._encoder.encode([f"{self._prompt}{text}" for text in texts])


def check_model_folder(folder: Path) -> None:
    """Raises `UserError` if the folder lacks files of a model; none of them is read."""
    if not folder.is_absolute():
        raise UserError(f"give the absolute path of a model folder, not {str(folder)[:200]!r}")
    try:
        if not folder.is_dir():
            raise UserError(f"there is no model folder {str(folder)[:200]!r}")
        missing = [name for name in (CONFIG, WEIGHTS, TOKENS) if not (folder / name).is_file()]
    except OSError as error:
        raise UserError(f"{str(folder)[:200]} cannot be read: {error.strerror}") from error
    if missing:
        raise UserError(f"{folder} lacks {', '.join(missing)}: expected a folder in the sentence-transformers format")


@cache
def fingerprint(folder: Path) -> str:
    """A digest of all files that determine the model's output, cached at first use. Raises UserError."""
    return _digest(folder)


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    names = (folder / name for name in (CONFIG, WEIGHTS, TOKENS, MODULES, LIMITS, TOKENS_CONFIG, PROMPTS))
    for path in (*names, *sorted(folder.glob(f"*/{CONFIG}"))):
        digest.update(f"{path.relative_to(folder)}\n".encode(errors="surrogateescape"))
        try:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except FileNotFoundError:
            digest.update(bytes(digest.digest_size))
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
    return digest.hexdigest()[:HASH_DIGITS]


@cache
def load_custom_encoders(folder: Path) -> tuple[CachingEncoder, CachingEncoder, float]:
    """The encoders for queries and for documents, and the zero point."""
    encoder = CustomEncoder(folder)
    return CachingEncoder(encoder.query_encoder), CachingEncoder(encoder.document_encoder), encoder.zero


def stage(folder: Path, beside: tuple[str, CombinedStage] | None) -> CombinedStage:
    """The model alone, or combined with another encoder."""
    queries, documents, zero = load_custom_encoders(folder)
    custom_stage = VectorStage(documents, encode_by_sentences, query_encoder=queries, zero=zero)
    if beside is None:
        return CombinedStage([(1.0, custom_stage)], floor=FLOOR, words_share=WORDS_SHARE)
    name, other = beside
    share = SHARES[name]
    # The floor is interpolated like the similarities.
    floor = round(share * FLOOR + (1 - share) * other.floor, 3)
    return CombinedStage(
        [(1 - share, other), (share, custom_stage)], floor=floor, words_share=min(WORDS_SHARE, other.words_share)
    )


def _measure_zero(encoder: Encoder) -> float:
    rows = normalize_rows(encoder.encode(UNRELATED_SENTENCES))
    similarity = float(np.mean([left @ right for left, right in combinations(rows, 2)]))
    if not np.isfinite(similarity) or similarity > ZERO_MAX or not rows.any(axis=1).all():
        raise ValueError("it gives all texts the same vector")
    return round(max(similarity, 0.0), 3)


def _error_text(error: BaseException) -> str:
    if isinstance(error, OSError):
        return f"a file cannot be read: {error.strerror}"
    if isinstance(error, KeyError):
        return f"missing {error}"
    return str(error) if isinstance(error, ValueError) else f"its values are invalid ({type(error).__name__})"
