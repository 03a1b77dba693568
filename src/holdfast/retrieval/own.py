"""Vectors by a model of one's own: a folder as sentence-transformers writes it, of a transformer of the BERT family.

It is read as data and computed here; no program of others runs, and nothing is downloaded. Beside an encoder that
packages bring it has a share of what both say.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from tokenizers import Tokenizer

from holdfast.errors import UserError
from holdfast.retrieval.sides import SideBySide
from holdfast.retrieval.tensors import read_tensors
from holdfast.retrieval.transformer import Affine, Layer, Transformer
from holdfast.retrieval.vectors import Encoder, Remembering, Sums, Vectors, VectorStage, by_sentences, directions

CONFIG, WEIGHTS, TOKENS = "config.json", "model.safetensors", "tokenizer.json"
MODULES, POOLING, LIMITS = "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"
TOKENS_MAX = 256
HASH_DIGITS = 16
SHARES = {"wordllama": 0.7, "paired": 0.5, "minilm": 0.6, "joined": 0.3}
"""How much it says beside each; chosen with all-mpnet-base-v2 on one set of queries, on a flat top."""
WORDS_SHARE = 0.5
FLOOR = 0.145
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

_MODULES = ("Transformer", "Pooling", "Normalize")
_EITHER = ("intermediate.dense", "output.dense", "output.LayerNorm")
_ATTENTION = {
    "bert": ("self.query", "self.key", "self.value", "output.dense", "output.LayerNorm"),
    "mpnet": ("attn.q", "attn.k", "attn.v", "attn.o", "LayerNorm"),
}
_FAMILY = {"bert": "bert", "roberta": "bert", "xlm-roberta": "bert", "camembert": "bert", "mpnet": "mpnet"}

Told = TypeVar("Told")


class _Config(msgspec.Struct, frozen=True):
    model_type: str
    num_hidden_layers: int
    num_attention_heads: int
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    position_embedding_type: str = "absolute"


class _Module(msgspec.Struct, frozen=True):
    type: str


class _Pooling(msgspec.Struct, frozen=True):
    """None of them: the mean."""

    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False


class _Limits(msgspec.Struct, frozen=True):
    max_seq_length: int | None = None


class OwnEncoder:
    """The sum of the last layer over a text's tokens, or what it says at the first; text by text. Raises UserError."""

    def __init__(self, folder: Path) -> None:
        self.model_version = f"{folder.name}@{fingerprint(folder)}"
        try:
            self._transformer = _read(folder)
            self._of_first = _of_first(folder)
            self._tokenizer = _tokenizer(folder, self._transformer)
            self.dimensions = self._transformer.tokens.shape[1]
            # What does not fit together shows itself here, and not when somebody asks.
            self.zero = _zero(self)
        except (ValueError, KeyError, IndexError, msgspec.DecodeError) as error:
            raise UserError(f"{folder} is no model that can be computed here: {_told(error)}") from error

    def encode(self, texts: Sequence[str]) -> Sums:
        sums = np.zeros((len(texts), self.dimensions), np.float64)
        for row, text in enumerate(texts):
            if ids := self._tokenizer.encode(text.encode(errors="replace").decode()).ids:
                rows = self._transformer.rows(ids)
                sums[row] = rows[0] if self._of_first else rows.sum(axis=0, dtype=np.float64)
        return sums


def check_folder(folder: Path) -> None:
    """Refuses a folder without the files of a model, before any of them is read."""
    if not folder.is_absolute():
        raise UserError(f"name the folder of a model by its whole path, not {str(folder)[:200]!r}")
    if missing := [name for name in (CONFIG, WEIGHTS, TOKENS) if not (folder / name).is_file()]:
        raise UserError(f"{folder} lacks {', '.join(missing)}: a folder as sentence-transformers writes it is meant")


@cache
def fingerprint(folder: Path) -> str:
    """Of all that decides what the model says."""
    digest = hashlib.sha256()
    for name in (CONFIG, WEIGHTS, TOKENS, MODULES, POOLING, LIMITS):
        try:
            with (folder / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except FileNotFoundError:
            digest.update(bytes(digest.digest_size))
        except OSError as error:
            raise UserError(f"{folder / name} cannot be read: {error.strerror}") from error
    return digest.hexdigest()[:HASH_DIGITS]


@cache
def encoder(folder: Path) -> tuple[Remembering, float]:
    """With its zero."""
    own = OwnEncoder(folder)
    return Remembering(own), own.zero


def stage(folder: Path, beside: tuple[str, SideBySide] | None) -> SideBySide:
    """Alone, or beside what packages bring."""
    own, zero = encoder(folder)
    alone = VectorStage(own, by_sentences, zero=zero)
    if beside is None:
        return SideBySide([(1.0, alone)], floor=FLOOR, words_share=WORDS_SHARE)
    name, other = beside
    share = SHARES[name]
    floor = share * FLOOR + (1 - share) * other.floor
    return SideBySide(
        [(1 - share, other), (share, alone)], floor=floor, words_share=min(WORDS_SHARE, other.words_share)
    )


def _read(folder: Path) -> Transformer:
    config = _json(folder / CONFIG, _Config)
    family = _FAMILY.get(config.model_type)
    if family is None:
        raise ValueError(f"its model_type is {config.model_type[:40]!r}, none of {', '.join(_FAMILY)}")
    if config.hidden_act != "gelu" or config.position_embedding_type != "absolute":
        raise ValueError("its hidden_act is not gelu, or its position_embedding_type not absolute")
    modules = _json(folder / MODULES, tuple[_Module, ...]) if (folder / MODULES).is_file() else ()
    if others := [one.type for one in modules if one.type.rpartition(".")[2] not in _MODULES]:
        raise ValueError(f"{MODULES} has more than {', '.join(_MODULES)}: {others[0][:80]!r}")
    return _transformer(config, family, read_tensors(folder / WEIGHTS))


def _transformer(config: _Config, family: str, tensors: Mapping[str, Vectors]) -> Transformer:
    root = _root(tensors)

    def affine(name: str) -> Affine:
        weights = tensors[f"{root}{name}.weight"]
        bias = tensors[f"{root}{name}.bias"]
        return Affine(weights, bias)

    def layer(at: int) -> Layer:
        names = (*(f"attention.{name}" for name in _ATTENTION[family]), *_EITHER)
        return Layer(*(affine(f"encoder.layer.{at}.{name}") for name in names))

    # All but BERT leave room for what fills a batch, and number places from behind it; MPNet always the same.
    offset = {"bert": 0, "mpnet": 2}.get(config.model_type, (config.pad_token_id or 0) + 1)
    tokens = tensors[f"{root}embeddings.word_embeddings.weight"]
    kinds = tensors.get(f"{root}embeddings.token_type_embeddings.weight")
    return Transformer(
        tokens=tokens,
        places=tensors[f"{root}embeddings.position_embeddings.weight"][offset:],
        base=np.zeros(tokens.shape[1], np.float32) if kinds is None else kinds[0],
        normal=affine("embeddings.LayerNorm"),
        layers=tuple(map(layer, range(config.num_hidden_layers))),
        heads=config.num_attention_heads,
        epsilon=config.layer_norm_eps,
        distances=tensors[f"{root}encoder.relative_attention_bias.weight"] if family == "mpnet" else None,
    )


def _root(tensors: Mapping[str, Vectors]) -> str:
    """What stands before all names, such as `bert.`, or nothing."""
    first = "embeddings.word_embeddings.weight"
    return next((name.removesuffix(first) for name in tensors if name.endswith(first)), "")


def _of_first(folder: Path) -> bool:
    """Whether the first token stands for the whole, or else the mean of all."""
    pooling = _json(folder / POOLING, _Pooling) if (folder / POOLING).is_file() else _Pooling()
    chosen = {name for name, value in msgspec.structs.asdict(pooling).items() if value}
    if chosen - {"pooling_mode_cls_token", "pooling_mode_mean_tokens"} or len(chosen) > 1:
        raise ValueError(f"{POOLING} asks for something else than the first token or the mean")
    return pooling.pooling_mode_cls_token


def _tokenizer(folder: Path, transformer: Transformer) -> Tokenizer:
    try:
        # It raises nothing more special than this.
        tokenizer = Tokenizer.from_file(str(folder / TOKENS))
    except Exception as error:
        raise ValueError(f"{TOKENS} is no tokenizer") from error
    if tokenizer.get_vocab_size() > len(transformer.tokens):
        raise ValueError(f"{TOKENS} has more tokens than {WEIGHTS} has vectors for")
    limits = _json(folder / LIMITS, _Limits) if (folder / LIMITS).is_file() else _Limits()
    tokenizer.no_padding()
    tokenizer.enable_truncation(max(1, min(TOKENS_MAX, limits.max_seq_length or TOKENS_MAX, len(transformer.places))))
    return tokenizer


def _zero(own: Encoder) -> float:
    rows = directions(own.encode(APART))
    near = float(np.mean([one @ other for one, other in combinations(rows, 2)]))
    if not np.isfinite(near) or near > ZERO_MAX or not rows.any(axis=1).all():
        raise ValueError("to it all texts are the same")
    return round(max(near, 0.0), 3)


def _json(path: Path, kind: type[Told]) -> Told:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _told(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)
