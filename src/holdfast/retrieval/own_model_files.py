"""The folder of a model, as sentence-transformers writes it: what is in it, and whether it can be computed here.

All raise ValueError with a reason that can be told, or what comes of numbers that nobody would expect there.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from tokenizers import Tokenizer

from holdfast.retrieval.tensors import read_tensors
from holdfast.retrieval.transformer import Affine, Layer, Transformer, check_fits
from holdfast.retrieval.vectors import Vectors

CONFIG, WEIGHTS, TOKENS, MODULES = "config.json", "model.safetensors", "tokenizer.json", "modules.json"
LIMITS, TOKENS_CONFIG = "sentence_bert_config.json", "tokenizer_config.json"
PROMPTS = "config_sentence_transformers.json"
POOLING = "1_Pooling"
TOKENS_MAX = 256
FILE_BYTES_MAX = 4 << 30
JSON_BYTES_MAX = 1 << 20

_KINDS = (("Transformer", "Pooling"), ("Transformer", "Pooling", "Normalize"))
_EITHER = ("intermediate.dense", "output.dense", "output.LayerNorm")
_ATTENTION = {
    "bert": ("self.query", "self.key", "self.value", "output.dense", "output.LayerNorm"),
    "mpnet": ("attn.q", "attn.k", "attn.v", "attn.o", "LayerNorm"),
}
_FAMILY = {"bert": "bert", "roberta": "bert", "xlm-roberta": "bert", "camembert": "bert", "mpnet": "mpnet"}
_OLD_NAMES = {"weight": "gamma", "bias": "beta"}
_POINTER = b"version https://git-lfs"
_RARE = "\u6f22\U0001f600\x00"

Told = TypeVar("Told")


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
    """By one name, or by a switch for each; none of them is the mean."""

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
        said = (self.prompts.get(name) for name in (*names, self.default_prompt_name) if name is not None)
        return next((prompt for prompt in said if prompt is not None), "")


class Model(msgspec.Struct, frozen=True):
    """`of_first`: the first token stands for a text, or else the mean of all. Prompts stand before what they are of."""

    transformer: Transformer
    tokenizer: Tokenizer
    of_first: bool
    lower_case: bool
    query_prompt: str
    document_prompt: str


def read_model(folder: Path) -> Model:
    config = _json(folder / CONFIG, _Config)
    family = _FAMILY.get(config.model_type)
    if family is None:
        raise ValueError(f"its model_type is {config.model_type[:40]!r}, none of {', '.join(_FAMILY)}")
    if config.hidden_act != "gelu" or config.position_embedding_type not in (None, "absolute"):
        raise ValueError("its hidden_act is not gelu, or its position_embedding_type not absolute")
    if any("Classification" in name for name in config.architectures or ()):
        raise ValueError("it says what class a text is of, and not how near two texts are")
    of_first = _of_first(folder)
    transformer = _transformer(config, family, _tensors(folder / WEIGHTS))
    check_fits(transformer)
    limits = _json(folder / LIMITS, _Limits) if (folder / LIMITS).is_file() else _Limits()
    tokenizer = _tokenizer(folder, transformer, limits.max_seq_length)
    if of_first and not tokenizer.num_special_tokens_to_add(is_pair=False):
        raise ValueError("the first token is to stand for a text, and its tokenizer puts none before it")
    prompts = _json(folder / PROMPTS, _Prompts) if (folder / PROMPTS).is_file() else _Prompts()
    asks, tells = prompts.first_of("query"), prompts.first_of("document", "passage")
    return Model(transformer, tokenizer, of_first, limits.do_lower_case, asks, tells)


def _tensors(path: Path) -> dict[str, Vectors]:
    if path.stat().st_size > FILE_BYTES_MAX:
        raise ValueError(f"{path.name} has more than {FILE_BYTES_MAX >> 30} GB")
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise ValueError(f"{path.name} only points to a large file, which was not fetched (`git lfs pull`)")
    try:
        return read_tensors(path)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _transformer(config: _Config, family: str, tensors: Mapping[str, Vectors]) -> Transformer:
    root = _root(tensors)

    def tensor(name: str, part: str = "weight") -> Vectors:
        old = f"{root}{name}.{_OLD_NAMES[part]}"
        return tensors[old] if old in tensors else tensors[f"{root}{name}.{part}"]

    def affine(name: str) -> Affine:
        return Affine(tensor(name), tensor(name, "bias"))

    def layer(at: int) -> Layer:
        names = (*(f"attention.{name}" for name in _ATTENTION[family]), *_EITHER)
        return Layer(*(affine(f"encoder.layer.{at}.{name}") for name in names))

    tokens = tensor("embeddings.word_embeddings")
    kinds = None if family == "mpnet" else tensor("embeddings.token_type_embeddings")
    return Transformer(
        tokens=tokens,
        places=tensor("embeddings.position_embeddings")[_first_place(config) :],
        base=np.zeros(tokens.shape[-1], np.float32) if kinds is None else kinds[0],
        normal=affine("embeddings.LayerNorm"),
        layers=tuple(map(layer, range(config.num_hidden_layers))),
        heads=config.num_attention_heads,
        epsilon=config.layer_norm_eps,
        distances=tensor("encoder.relative_attention_bias") if family == "mpnet" else None,
    )


def _first_place(config: _Config) -> int:
    """All but BERT leave room for what fills a batch, and number places from behind it; MPNet always the same."""
    after_filling = 2 if config.pad_token_id is None else config.pad_token_id + 1
    return {"bert": 0, "mpnet": 2}.get(config.model_type, after_filling)


def _root(tensors: Mapping[str, Vectors]) -> str:
    """What stands before all names, such as `bert.`, or nothing."""
    first = "embeddings.word_embeddings.weight"
    return next((name.removesuffix(first) for name in tensors if name.endswith(first)), "")


def _of_first(folder: Path) -> bool:
    place = _pooling(folder)
    chosen = (_json(place, _Pooling) if place else _Pooling()).chosen
    if chosen not in (("cls",), ("mean",)):
        raise ValueError("its Pooling is something else than the first token or the mean")
    return chosen == ("cls",)


def _pooling(folder: Path) -> Path | None:
    """Where it is said what stands for a text; None in a folder that knows nothing of it."""
    if not (folder / MODULES).is_file():
        usual = folder / POOLING / CONFIG
        return usual if usual.is_file() else None
    modules = _json(folder / MODULES, tuple[_Module, ...])
    if tuple(one.kind for one in modules) not in _KINDS or modules[0].path:
        raise ValueError(f"{MODULES} says something else than Transformer, Pooling, Normalize, the first of them here")
    path = modules[1].path
    place = folder / path / CONFIG
    if Path(path).name != path or not place.is_file():
        raise ValueError(f"it lacks {path[:80]}/{CONFIG}")
    return place


def _tokenizer(folder: Path, transformer: Transformer, said_max: int | None) -> Tokenizer:
    try:
        # It raises nothing more special than this, here and when it meets what it has no token for.
        tokenizer = Tokenizer.from_file(str(folder / TOKENS))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode(_RARE)
    except Exception as error:
        raise ValueError(f"{TOKENS} is no tokenizer, or does not know what to do with rare characters") from error
    if max(tokenizer.get_vocab().values(), default=-1) >= len(transformer.tokens):
        raise ValueError(f"{TOKENS} has tokens that {WEIGHTS} has no vectors for")
    if said_max is None and (folder / TOKENS_CONFIG).is_file():
        told = _json(folder / TOKENS_CONFIG, _TokensConfig).model_max_length
        said_max = None if told is None else int(min(told, TOKENS_MAX))
    longest = min(TOKENS_MAX, said_max or TOKENS_MAX, len(transformer.places))
    if longest <= tokenizer.num_special_tokens_to_add(is_pair=False):
        raise ValueError(f"it reads no more than {longest} tokens of a text")
    tokenizer.enable_truncation(longest)
    return tokenizer


def _json(path: Path, kind: type[Told]) -> Told:
    with path.open("rb") as file:
        said = file.read(JSON_BYTES_MAX + 1)
    if len(said) > JSON_BYTES_MAX:
        raise ValueError(f"{path.name} is too long")
    try:
        return msgspec.json.decode(said, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path.name}: {error}") from error
