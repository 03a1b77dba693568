"""Semantic ranking: the interface of an encoder stage, and the names of encoders.

An encoder is `wordllama`, which a package provides, the folder of a user's own ONNX model, or both:
`wordllama+/models/mine`.
"""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.errors import UserError
from holdfast.retrieval.encoders.model_folder import check_model_folder, fingerprint
from holdfast.retrieval.units import SearchUnit

WORDLLAMA = "wordllama"
COMBINED_PREFIX = f"{WORDLLAMA}+"
WORDLLAMA_REVISION = 2
"""Incremented when its weights, its floor or its reading of units change, so that manifests are certified again."""
CONTENTS_SEPARATOR = "@"
"""Precedes the revision of the packaged encoder, or the fingerprint of a model, in a certified encoder name."""
NO_MODEL = "none (lexical and graph only)"
"""The model version of an index without vectors."""

_WORDLLAMA_PACKAGES = ("wordllama", "safetensors", "tokenizers", "numpy")
_ONNX_PACKAGES = ("onnxruntime", "tokenizers", "numpy")


class _ParsedName(NamedTuple):
    """Which of the two an encoder consists of: the packaged encoder, the model in a folder, or both."""

    has_words: bool
    folder: Path | None


class SemanticStage(Protocol):
    """Computes similarities by slot, 0 to 1; a unit's similarity does not depend on other units or their order."""

    @property
    def model_version(self) -> str: ...
    @property
    def floor(self) -> float:
        """The relevance that 49 of 50 right answers reach, on nine query sets in which every query has an answer."""

    @property
    def words_share(self) -> float:
        """The share of its weight that the lexical stage keeps; the better the encoder, the less words add to it."""

    def add(self, units: Mapping[int, SearchUnit]) -> None:
        """Units by slot, many at once: their encodings are read and kept together."""

    def remove(self, slot: int) -> None: ...
    def match(self, query: str, *, slots: int) -> list[float]: ...


class EncodingStore(Protocol):
    """Keeps what encoders computed, by digests of everything that it was computed from; it may lose any of it."""

    def read(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]: ...
    def keep(self, encodings: Mapping[bytes, bytes]) -> None: ...


def default_encoder() -> str | None:
    """The packaged encoder if its packages are installed."""
    return None if _find_missing(_WORDLLAMA_PACKAGES) else WORDLLAMA


def check_installed() -> None:
    """Raises `UserError` with the extra to install if packages of the packaged encoder are missing."""
    if missing := _find_missing(_WORDLLAMA_PACKAGES):
        install = "pip install 'holdfast-context[semantic]'"
        raise UserError(f"ranking by {WORDLLAMA} needs {', '.join(missing)}: {install}, or rank lexically")


def check_encoder_name(name: str) -> str:
    """The name in its stored form. Raises `UserError` if the encoder is unknown or not installed."""
    parsed = _parse_name(name)
    _check_packages(parsed)
    if parsed.folder is None:
        return WORDLLAMA
    check_model_folder(parsed.folder)
    return f"{COMBINED_PREFIX if parsed.has_words else ''}{parsed.folder}"


def make_certified_name(name: str) -> str:
    """The name that manifests are certified for, with the revision of the encoder and the fingerprint of the model."""
    has_words, folder = _parse_name(name)
    contents = [str(WORDLLAMA_REVISION)] if has_words else []
    contents += [fingerprint(folder)] if folder is not None else []
    return f"{name}{CONTENTS_SEPARATOR}{'+'.join(contents)}"


def configured_name(name: str) -> str:
    """The name to use in configuration for the encoder of a certified name."""
    return name.rpartition(CONTENTS_SEPARATOR)[0] or name


def is_same_encoder(left: str, right: str) -> bool:
    """Whether two certified names mean the same encoder; the location of a model folder does not matter."""
    return left.rpartition(CONTENTS_SEPARATOR)[2] == right.rpartition(CONTENTS_SEPARATOR)[2]


def is_revised(left: str, right: str) -> bool:
    """Whether two certified names mean different revisions of the packaged encoder."""
    return left != right and configured_name(left) == configured_name(right) == WORDLLAMA


def find_certified_encoder(name: str) -> str | None:
    """The encoder of a certified name in its current revision; None if it is unavailable or has other contents."""
    configured = configured_name(name)
    try:
        check_encoder_name(configured)
        is_current = configured == WORDLLAMA or make_certified_name(configured) == name
    except UserError:
        return None
    return configured if is_current else None


def create_semantic_stage(encoder: str = WORDLLAMA, *, encodings: EncodingStore | None = None) -> SemanticStage:
    """An empty stage with weights from the installed package or a model folder; nothing is downloaded.

    A unit whose vectors are in `encodings` is not encoded.
    """
    parsed = _parse_name(encoder)
    _check_packages(parsed)
    # Imported on demand, because without the extra numpy is missing and the rest of the package must still work.
    stages: list[SemanticStage] = []
    if parsed.has_words:
        stages.append(importlib.import_module("holdfast.retrieval.encoders.wordllama").create_stage(encodings))
    if parsed.folder is not None:
        onnx_model = importlib.import_module("holdfast.retrieval.encoders.onnx_model")
        stages.append(onnx_model.create_stage(parsed.folder, encodings))
    if len(stages) == 1:
        return stages[0]
    combined: SemanticStage = importlib.import_module("holdfast.retrieval.vectors").CombinedStage(*stages)
    return combined


def _check_packages(parsed: _ParsedName) -> None:
    if parsed.has_words:
        check_installed()
    if parsed.folder is not None and (missing := _find_missing(_ONNX_PACKAGES)):
        raise UserError(f"a model of your own needs {', '.join(missing)}: pip install 'holdfast-context[onnx]'")


def _parse_name(name: str) -> _ParsedName:
    name = name.strip()
    if name == WORDLLAMA:
        return _ParsedName(True, None)
    path = name.removeprefix(COMBINED_PREFIX)
    if not ("/" in path or "\\" in path or path.startswith("~")):
        raise UserError(
            f"unknown encoder {name[:80]!r}; use {WORDLLAMA}, none, the folder of an ONNX model, or both, such as "
            f"{COMBINED_PREFIX}/models/mine"
        )
    try:
        return _ParsedName(path != name, Path(path).expanduser())
    except RuntimeError as error:
        raise UserError(f"there is no home folder for {path[:80]!r}: give the absolute path") from error


def _find_missing(packages: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in packages if importlib.util.find_spec(name) is None)
