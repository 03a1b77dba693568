"""Vectors by a model of one's own: a folder as sentence-transformers writes it, of a transformer of the BERT family.

It is read as data and computed here; no program of others runs, and nothing is downloaded. Beside an encoder that
packages bring it has a share of what both say.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np

from holdfast.errors import UserError
from holdfast.retrieval.own_model_files import (
    CONFIG,
    LIMITS,
    MODULES,
    PROMPTS,
    TOKENS,
    TOKENS_CONFIG,
    WEIGHTS,
    read_model,
)
from holdfast.retrieval.sides import SideBySide
from holdfast.retrieval.vectors import Encoder, Remembering, Sums, VectorStage, by_sentences, directions

HASH_DIGITS = 16
SHARES = {"wordllama": 0.7, "paired": 0.5, "minilm": 0.6, "joined": 1 / 3}
"""How much it says beside each; chosen with all-mpnet-base-v2 on one set of queries, on a flat top."""
WORDS_SHARE = 0.5
FLOOR = 0.09
ZERO_MAX = 0.95
APART = (
    "Will it rain in Kyoto tomorrow?",
    "Merge the pages of two PDF files.",
    "Who may approve a purchase of more than a thousand euros?",
    "The bass player tuned her instrument before the concert.",
    "Rotate the credentials of the production database.",
    "A recipe for lentil soup with cumin.",
    "How many goals were scored in the final?",
    "Translate this letter into Portuguese.",
)
"""Sentences that have nothing to do with each other: how near they are is a model's own zero."""

_UNEXPECTED = (ValueError, LookupError, TypeError, ArithmeticError, RecursionError, MemoryError, OSError)


class OwnEncoder:
    """The sum of the last layer over a text's tokens, or what it says at the first; text by text. Raises UserError.

    `encode` reads texts as they are; `asked` and `told` put before them what the model wants before queries and others.
    """

    def __init__(self, folder: Path) -> None:
        check_folder(folder)
        self.model_version = f"{folder.name}@{fingerprint(folder)}"
        try:
            self._model = read_model(folder)
            self.dimensions = self._model.transformer.tokens.shape[1]
            self.asked = Prompted(self, self._model.query_prompt)
            self.told = Prompted(self, self._model.document_prompt)
            # What does not fit together shows itself here, and not when somebody asks.
            self.zero = _zero(self.told)
        except _UNEXPECTED as error:
            raise UserError(f"{folder} is no model that can be computed here: {_told(error)}") from error
        if _digest(folder) != fingerprint(folder):
            raise UserError(f"{folder} was written anew since it was looked at first: start again")

    def encode(self, texts: Sequence[str]) -> Sums:
        sums = np.zeros((len(texts), self.dimensions), np.float64)
        for row, text in enumerate(texts):
            readable = text.encode(errors="replace").decode()
            told = readable.lower() if self._model.lower_case else readable
            if ids := self._model.tokenizer.encode(told).ids:
                rows = self._model.transformer.rows(ids)
                sums[row] = rows[0] if self._model.of_first else rows.sum(axis=0, dtype=np.float64)
        return sums


class Prompted:
    """The same words before each text."""

    def __init__(self, encoder: OwnEncoder, prompt: str) -> None:
        self.model_version = encoder.model_version
        self.dimensions = encoder.dimensions
        self._encoder = encoder
        self._prompt = prompt

    def encode(self, texts: Sequence[str]) -> Sums:
        return self._encoder.encode([f"{self._prompt}{text}" for text in texts])


def check_folder(folder: Path) -> None:
    """Refuses a folder without the files of a model, before any of them is read."""
    if not folder.is_absolute():
        raise UserError(f"name the folder of a model by its whole path, not {str(folder)[:200]!r}")
    try:
        if not folder.is_dir():
            raise UserError(f"there is no folder {str(folder)[:200]!r} with a model")
        missing = [name for name in (CONFIG, WEIGHTS, TOKENS) if not (folder / name).is_file()]
    except OSError as error:
        raise UserError(f"{str(folder)[:200]} cannot be read: {error.strerror}") from error
    if missing:
        raise UserError(f"{folder} lacks {', '.join(missing)}: a folder as sentence-transformers writes it is meant")


@cache
def fingerprint(folder: Path) -> str:
    """Of all that decides what the model says, when it was looked at first. Raises UserError."""
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
def encoders(folder: Path) -> tuple[Remembering, Remembering, float]:
    """Of queries, of other texts, and their zero."""
    own = OwnEncoder(folder)
    return Remembering(own.asked), Remembering(own.told), own.zero


def stage(folder: Path, beside: tuple[str, SideBySide] | None) -> SideBySide:
    """Alone, or beside what packages bring."""
    asked, told, zero = encoders(folder)
    alone = VectorStage(told, by_sentences, asked=asked, zero=zero)
    if beside is None:
        return SideBySide([(1.0, alone)], floor=FLOOR, words_share=WORDS_SHARE)
    name, other = beside
    share = SHARES[name]
    floor = round(share * FLOOR + (1 - share) * other.floor, 3)
    return SideBySide(
        [(1 - share, other), (share, alone)], floor=floor, words_share=min(WORDS_SHARE, other.words_share)
    )


def _zero(own: Encoder) -> float:
    rows = directions(own.encode(APART))
    near = float(np.mean([one @ other for one, other in combinations(rows, 2)]))
    if not np.isfinite(near) or near > ZERO_MAX or not rows.any(axis=1).all():
        raise ValueError("to it all texts are the same")
    return round(max(near, 0.0), 3)


def _told(error: BaseException) -> str:
    if isinstance(error, OSError):
        return f"a file cannot be read: {error.strerror}"
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    return str(error) if isinstance(error, ValueError) else f"its numbers make no sense ({type(error).__name__})"
