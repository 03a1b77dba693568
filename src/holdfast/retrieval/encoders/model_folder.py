"""The folder of a user's own model, a sentence-transformers model exported to ONNX: its files and its settings."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from holdfast.errors import UserError

MODEL_PATHS = ("onnx/model.onnx", "model.onnx")
TOKENS, MODULES, POOLING = "tokenizer.json", "modules.json", "1_Pooling/config.json"
LIMITS, TOKENS_CONFIG = "sentence_bert_config.json", "tokenizer_config.json"
PROMPTS = "config_sentence_transformers.json"
TOKENS_MAX = 256
JSON_BYTES_MAX = 1 << 20
HASH_DIGITS = 16
# What comes after the transformer is not in its ONNX file. A length of 1 changes no direction; other modules would.
_SUPPORTED_MODULES = (("Transformer", "Pooling"), ("Transformer", "Pooling", "Normalize"))
Decoded = TypeVar("Decoded")


class ModelSettings(msgspec.Struct, frozen=True):
    """`pools_first_token`: the first token represents a text, else the mean of all. Prompts are prepended to texts."""

    pools_first_token: bool
    lower_case: bool
    tokens_max: int
    query_prompt: str
    document_prompt: str


class _Module(msgspec.Struct, frozen=True):
    type: str


class _Limits(msgspec.Struct, frozen=True):
    max_seq_length: Annotated[int, msgspec.Meta(ge=1)] | None = None
    do_lower_case: bool = False


class _TokensConfig(msgspec.Struct, frozen=True):
    model_max_length: Annotated[float, msgspec.Meta(ge=1)] | None = None


_Prompt = Annotated[str, msgspec.Meta(max_length=1_000)]


class _Prompts(msgspec.Struct, frozen=True):
    prompts: dict[str, _Prompt | None] = {}
    default_prompt_name: str | None = None

    def first_of(self, *names: str) -> str:
        prompts = (self.prompts.get(name) for name in (*names, self.default_prompt_name) if name is not None)
        return next((prompt for prompt in prompts if prompt is not None), "")


def check_model_folder(folder: Path) -> None:
    """Raises `UserError` if the folder lacks files of a model; none of them is read."""
    if not folder.is_absolute():
        raise UserError(f"give the absolute path of a model folder, not {str(folder)[:200]!r}")
    try:
        if not folder.is_dir():
            raise UserError(f"there is no model folder {str(folder)[:200]!r}")
        if missing := [path.name for path in (find_model(folder), folder / TOKENS) if not path.is_file()]:
            raise UserError(
                f"{folder} lacks {', '.join(missing)}: expected a sentence-transformers model exported to ONNX"
            )
    except OSError as error:
        raise UserError(f"{str(folder)[:200]} cannot be read: {error.strerror}") from error


def find_model(folder: Path) -> Path:
    paths = [folder / name for name in MODEL_PATHS]
    return next((path for path in paths if path.is_file()), paths[-1])


@cache
def fingerprint(folder: Path) -> str:
    """A digest of all files that determine the model's output, cached at first use. Raises UserError."""
    return digest_files(folder)


def digest_files(folder: Path) -> str:
    digest = hashlib.sha256()
    model = find_model(folder)
    # Weights of more than 2 GB are stored beside the model, as model.onnx_data or model.onnx.data.
    names = (TOKENS, MODULES, POOLING, LIMITS, TOKENS_CONFIG, PROMPTS)
    for path in (*sorted(model.parent.glob("model.onnx*")), *(folder / name for name in names)):
        digest.update(f"{path.name}\n".encode(errors="surrogateescape"))
        try:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except FileNotFoundError:
            digest.update(bytes(digest.digest_size))
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
    return digest.hexdigest()[:HASH_DIGITS]


def read_model_settings(folder: Path) -> ModelSettings:
    """Raises ValueError with a reason for the user."""
    modules = _read_json(folder / MODULES, tuple[_Module, ...])
    if modules is not None and tuple(module.type.rpartition(".")[2] for module in modules) not in _SUPPORTED_MODULES:
        raise ValueError(f"{MODULES} must list Transformer, Pooling and optionally Normalize")
    limits = _read_json(folder / LIMITS, _Limits) or _Limits()
    prompts = _read_json(folder / PROMPTS, _Prompts) or _Prompts()
    model_max = (_read_json(folder / TOKENS_CONFIG, _TokensConfig) or _TokensConfig()).model_max_length
    return ModelSettings(
        pools_first_token=_read_pooling(folder) == "cls",
        lower_case=limits.do_lower_case,
        tokens_max=int(min(TOKENS_MAX, limits.max_seq_length or model_max or TOKENS_MAX)),
        query_prompt=prompts.first_of("query"),
        document_prompt=prompts.first_of("document", "passage"),
    )


def _read_pooling(folder: Path) -> str:
    """`cls` or `mean`, written as a name or as one switch for each mode; `mean` if nothing is written."""
    pooling = _read_json(folder / POOLING, dict[str, object]) or {}
    switches = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    switched_on = (name for name, on in pooling.items() if name.startswith("pooling_mode_") and on is True)
    modes = [switches.get(name, name) for name in switched_on]
    if "pooling_mode" in pooling:
        named = pooling["pooling_mode"]
        modes = [str(name) for name in named] if isinstance(named, list) else [str(named)]
    if modes not in ([], ["cls"], ["mean"]):
        raise ValueError("only pooling by first token or mean is supported")
    return modes[0] if modes else "mean"


def _read_json(path: Path, kind: type[Decoded]) -> Decoded | None:
    """None if there is no such file."""
    try:
        with path.open("rb") as file:
            raw = file.read(JSON_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    if len(raw) > JSON_BYTES_MAX:
        raise ValueError(f"{path.name} is too long")
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path.name}: {error}") from error
