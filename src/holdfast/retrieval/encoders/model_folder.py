"""Reads a model folder in the sentence-transformers format and checks whether the model is supported.

All functions raise ValueError with a reason for the user, or whatever error unexpected numbers in the files cause.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from tokenizers import Tokenizer

from holdfast.retrieval.encoders.file_formats import read_tensors
from holdfast.retrieval.encoders.transformer import Affine, Transformer, TransformerLayer, check_sizes
from holdfast.retrieval.vectors import Vectors

CONFIG, WEIGHTS, TOKENS, MODULES = "config.json", "model.safetensors", "tokenizer.json", "modules.json"
LIMITS, TOKENS_CONFIG = "sentence_bert_config.json", "tokenizer_config.json"
PROMPTS = "config_sentence_transformers.json"
POOLING = "1_Pooling"
TOKENS_MAX = 256
FILE_BYTES_MAX = 4 << 30
JSON_BYTES_MAX = 1 << 20
_SUPPORTED_MODULES = (("Transformer", "Pooling"), ("Transformer", "Pooling", "Normalize"))
_FEED_FORWARD = ("intermediate.dense", "output.dense", "output.LayerNorm")
_ATTENTION = {
    "bert": ("self.query", "self.key", "self.value", "output.dense", "output.LayerNorm"),
    "mpnet": ("attn.q", "attn.k", "attn.v", "attn.o", "LayerNorm"),
}
_FAMILY = {"bert": "bert", "roberta": "bert", "xlm-roberta": "bert", "camembert": "bert", "mpnet": "mpnet"}
_LEGACY_NAMES = {"weight": "gamma", "bias": "beta"}
_LFS_POINTER = b"version https://git-lfs"
_RARE_CHARACTERS = "\u6f22\U0001f600\x00"
Decoded = TypeVar("Decoded")


class _Config(msgspec.Struct, frozen=True):
    model_type: str
    num_hidden_layers: Annotated[int, msgspec.Meta(ge=1, le=1_000)]
    num_attention_heads: Annotated[int, msgspec.Meta(ge=1)]
    hidden_act: str = "gelu"
    layer_norm_eps: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 1e-12
    pad_token_id: Annotated[int, msgspec.Meta(ge=0)] | None = None
    position_embedding_type: str | None = None
    architectures: tuple[str, ...] | None = None


class _Module(msgspec.Struct, frozen=True):
    type: str
    path: str = ""

    @property
    def kind(self) -> str:
        return self.type.rpartition(".")[2]


class _Pooling(msgspec.Struct, frozen=True):
    """The pooling mode: by name, or by one switch per mode; the mean if no switch is set."""

    pooling_mode: str | tuple[str, ...] | None = None
    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False

    @property
    def chosen(self) -> tuple[str, ...]:
        if self.pooling_mode is not None:
            return (self.pooling_mode,) if isinstance(self.pooling_mode, str) else self.pooling_mode
        switches = msgspec.structs.asdict(self)
        del switches["pooling_mode"]
        return tuple(name.split("_")[2] for name, on in switches.items() if on) or ("mean",)


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


class CustomModel(msgspec.Struct, frozen=True):
    """`pools_first_token`: the first token represents a text, else the mean of all. Prompts are prepended to texts."""

    transformer: Transformer
    tokenizer: Tokenizer
    pools_first_token: bool
    lower_case: bool
    query_prompt: str
    document_prompt: str


def read_custom_model(folder: Path) -> CustomModel:
    config = _read_json(folder / CONFIG, _Config)
    family = _FAMILY.get(config.model_type)
    if family is None:
        raise ValueError(f"model_type {config.model_type[:40]!r} is not one of {', '.join(_FAMILY)}")
    if config.hidden_act != "gelu" or config.position_embedding_type not in (None, "absolute"):
        raise ValueError("only hidden_act gelu and position_embedding_type absolute are supported")
    if any("Classification" in name for name in config.architectures or ()):
        raise ValueError("it is a classifier, not an embedding model")
    of_first = _uses_first_token(folder)
    transformer = _build_transformer(config, family, _load_tensors(folder / WEIGHTS))
    check_sizes(transformer)
    limits = _read_json(folder / LIMITS, _Limits) if (folder / LIMITS).is_file() else _Limits()
    tokenizer = _load_tokenizer(folder, transformer, limits.max_seq_length)
    if of_first and not tokenizer.num_special_tokens_to_add(is_pair=False):
        raise ValueError("it pools the first token, but its tokenizer adds no special token")
    prompts = _read_json(folder / PROMPTS, _Prompts) if (folder / PROMPTS).is_file() else _Prompts()
    query_prompt, document_prompt = prompts.first_of("query"), prompts.first_of("document", "passage")
    return CustomModel(transformer, tokenizer, of_first, limits.do_lower_case, query_prompt, document_prompt)


def _load_tensors(path: Path) -> dict[str, Vectors]:
    if path.stat().st_size > FILE_BYTES_MAX:
        raise ValueError(f"{path.name} has more than {FILE_BYTES_MAX >> 30} GB")
    with path.open("rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise ValueError(f"{path.name} is a git-lfs pointer; fetch the file with `git lfs pull`")
    try:
        return read_tensors(path)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _build_transformer(config: _Config, family: str, tensors: Mapping[str, Vectors]) -> Transformer:
    prefix = _name_prefix(tensors)

    def tensor(name: str, part: str = "weight") -> Vectors:
        old = f"{prefix}{name}.{_LEGACY_NAMES[part]}"
        return tensors[old] if old in tensors else tensors[f"{prefix}{name}.{part}"]

    def affine(name: str) -> Affine:
        return Affine(tensor(name), tensor(name, "bias"))

    def layer(number: int) -> TransformerLayer:
        names = (*(f"attention.{name}" for name in _ATTENTION[family]), *_FEED_FORWARD)
        return TransformerLayer(*(affine(f"encoder.layer.{number}.{name}") for name in names))

    tokens = tensor("embeddings.word_embeddings")
    token_types = None if family == "mpnet" else tensor("embeddings.token_type_embeddings")
    return Transformer(
        token_embeddings=tokens,
        position_embeddings=tensor("embeddings.position_embeddings")[_position_offset(config) :],
        token_type_embedding=np.zeros(tokens.shape[-1], np.float32) if token_types is None else token_types[0],
        embedding_norm=affine("embeddings.LayerNorm"),
        layers=tuple(map(layer, range(config.num_hidden_layers))),
        heads=config.num_attention_heads,
        epsilon=config.layer_norm_eps,
        distance_bias=tensor("encoder.relative_attention_bias") if family == "mpnet" else None,
    )


def _position_offset(config: _Config) -> int:
    """The first position in the table: all but BERT number positions after the padding index, MPNet always from 2."""
    after_padding = 2 if config.pad_token_id is None else config.pad_token_id + 1
    return {"bert": 0, "mpnet": 2}.get(config.model_type, after_padding)


def _name_prefix(tensors: Mapping[str, Vectors]) -> str:
    """The prefix of all tensor names, such as `bert.`, or an empty string."""
    first = "embeddings.word_embeddings.weight"
    return next((name.removesuffix(first) for name in tensors if name.endswith(first)), "")


def _uses_first_token(folder: Path) -> bool:
    config_path = _find_pooling(folder)
    chosen = (_read_json(config_path, _Pooling) if config_path else _Pooling()).chosen
    if chosen not in (("cls",), ("mean",)):
        raise ValueError("only pooling by first token or mean is supported")
    return chosen == ("cls",)


def _find_pooling(folder: Path) -> Path | None:
    """The pooling configuration; None if the folder has none."""
    if not (folder / MODULES).is_file():
        default_path = folder / POOLING / CONFIG
        return default_path if default_path.is_file() else None
    modules = _read_json(folder / MODULES, tuple[_Module, ...])
    if tuple(module.kind for module in modules) not in _SUPPORTED_MODULES or modules[0].path:
        raise ValueError(f"{MODULES} must list Transformer, Pooling and optionally Normalize, the first in this folder")
    path = modules[1].path
    config_path = folder / path / CONFIG
    if Path(path).name != path or not config_path.is_file():
        raise ValueError(f"missing {path[:80]}/{CONFIG}")
    return config_path


def _load_tokenizer(folder: Path, transformer: Transformer, length_max: int | None) -> Tokenizer:
    try:
        # `tokenizers` raises plain Exception, for a broken file and for characters without a token.
        tokenizer = Tokenizer.from_file(str(folder / TOKENS))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode(_RARE_CHARACTERS)
    except Exception as error:
        raise ValueError(f"{TOKENS} is not a tokenizer, or cannot encode rare characters") from error
    if max(tokenizer.get_vocab().values(), default=-1) >= len(transformer.token_embeddings):
        raise ValueError(f"{TOKENS} has tokens that {WEIGHTS} has no vectors for")
    if length_max is None and (folder / TOKENS_CONFIG).is_file():
        model_max = _read_json(folder / TOKENS_CONFIG, _TokensConfig).model_max_length
        length_max = None if model_max is None else int(min(model_max, TOKENS_MAX))
    tokens_max = min(TOKENS_MAX, length_max or TOKENS_MAX, len(transformer.position_embeddings))
    if tokens_max <= tokenizer.num_special_tokens_to_add(is_pair=False):
        raise ValueError(f"it accepts only {tokens_max} tokens per text")
    tokenizer.enable_truncation(tokens_max)
    return tokenizer


def _read_json(path: Path, kind: type[Decoded]) -> Decoded:
    with path.open("rb") as file:
        raw = file.read(JSON_BYTES_MAX + 1)
    if len(raw) > JSON_BYTES_MAX:
        raise ValueError(f"{path.name} is too long")
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path.name}: {error}") from error
