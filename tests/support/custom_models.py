"""Small models as sentence-transformers writes them: real in form, with numbers by a formula."""

import json
from collections.abc import Mapping
from pathlib import Path
from string import ascii_lowercase

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from holdfast.retrieval.encoders.model_folder import CONFIG, MODULES, POOLING, TOKENS, WEIGHTS
from holdfast.retrieval.vectors import Vectors

HIDDEN, INNER, LAYERS, HEADS, PLACES, BUCKETS = 16, 32, 2, 2, 64, 32
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
VOCABULARY = (*SPECIAL, "?", ".", *ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase))
_ATTENTION = {"mpnet": ("attn.q", "attn.k", "attn.v", "attn.o", "LayerNorm")}
_ATTENTION_OF_BERT = ("self.query", "self.key", "self.value", "output.dense", "output.LayerNorm")


def tensor_shapes(kind: str) -> dict[str, tuple[int, ...]]:
    sizes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(VOCABULARY), HIDDEN),
        "embeddings.position_embeddings.weight": (PLACES, HIDDEN),
    }
    if kind == "mpnet":
        sizes["encoder.relative_attention_bias.weight"] = (BUCKETS, HEADS)
    else:
        sizes["embeddings.token_type_embeddings.weight"] = (2, HIDDEN)
    affine: dict[str, tuple[int, ...]] = {"embeddings.LayerNorm": (HIDDEN,)}
    for layer in range(LAYERS):
        for name in _ATTENTION.get(kind, _ATTENTION_OF_BERT):
            place = f"encoder.layer.{layer}.attention.{name}"
            affine[place] = (HIDDEN,) if name.endswith("LayerNorm") else (HIDDEN, HIDDEN)
        affine[f"encoder.layer.{layer}.intermediate.dense"] = (INNER, HIDDEN)
        affine[f"encoder.layer.{layer}.output.dense"] = (HIDDEN, INNER)
        affine[f"encoder.layer.{layer}.output.LayerNorm"] = (HIDDEN,)
    for name, size in affine.items():
        sizes |= {f"{name}.weight": size, f"{name}.bias": size[:1]}
    return sizes


def make_tensors(kind: str, *, seed: float = 0.0) -> dict[str, Vectors]:
    """Without chance, so that another program can be asked what it makes of the same."""
    made = {}
    for at, (name, size) in enumerate(sorted(tensor_shapes(kind).items())):
        waves = np.sin(np.arange(np.prod(size), dtype=np.float64) ** 2 * 0.37 + at + seed).reshape(size)
        if len(size) == 1:
            waves = waves / 10 + name.endswith("LayerNorm.weight")
        # Texts are to differ by their words.
        made[name] = (waves * (3 if "word" in name else 0.4 if len(size) > 1 else 1)).astype(np.float32)
    return made


def write_tensors(path: Path, tensors: Mapping[str, Vectors]) -> None:
    head: dict[str, object] = {}
    body = b""
    for name, tensor in tensors.items():
        stored = np.ascontiguousarray(tensor, np.float32).tobytes()
        place = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(stored)]}
        head[name] = place
        body += stored
    said = json.dumps(head).encode()
    said += b" " * (-len(said) % 8)
    path.write_bytes(len(said).to_bytes(8, "little") + said + body)


def write_model(
    folder: Path, kind: str = "mpnet", *, first: bool = False, seed: float = 0.0, config: Mapping[str, object] = {}
) -> Path:
    """`first`: the first token stands for a text, and not the mean of all."""
    (folder / POOLING).mkdir(parents=True, exist_ok=True)
    shape = {
        "model_type": kind,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": PLACES,
        "vocab_size": len(VOCABULARY),
        "layer_norm_eps": 1e-5,
        "pad_token_id": 0,
    }
    (folder / CONFIG).write_text(json.dumps({**shape, **config}))
    write_tensors(folder / WEIGHTS, make_tensors(kind, seed=seed))
    pooling = {"pooling_mode_cls_token": first, "pooling_mode_mean_tokens": not first}
    (folder / POOLING / CONFIG).write_text(json.dumps(pooling))
    places = {"Transformer": "", "Pooling": POOLING, "Normalize": "2_Normalize"}
    modules = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in places.items()]
    (folder / MODULES).write_text(json.dumps(modules))
    make_tokenizer().save(str(folder / TOKENS))
    return folder


def make_tokenizer() -> Tokenizer:
    made = Tokenizer(WordPiece({piece: at for at, piece in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    made.normalizer = Lowercase()
    made.pre_tokenizer = BertPreTokenizer()
    made.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, VOCABULARY.index(name)) for name in ("[CLS]", "[SEP]")]
    )
    return made
