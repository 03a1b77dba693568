"""Small ONNX models in the folders that sentence-transformers writes: real in form, with numbers by a formula."""

import json
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from holdfast.retrieval.encoders.model_folder import MODULES, POOLING, TOKENS

MODEL = "onnx/model.onnx"
HIDDEN, PLACES = 16, 64
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
VOCABULARY = (*SPECIAL, "?", ".", *ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase))


def write_model(folder: Path, *, first: bool = False, seed: float = 0.0, output: str = "last_hidden_state") -> Path:
    """`first`: the first token represents a text, not the mean of all. Texts of more than `PLACES` tokens fail."""
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    (folder / POOLING).parent.mkdir(exist_ok=True)
    onnx.save(build_model(seed=seed, output=output), folder / MODEL)
    pooling = {"pooling_mode_cls_token": first, "pooling_mode_mean_tokens": not first}
    (folder / POOLING).write_text(json.dumps(pooling))
    write_modules(folder, "Transformer", "Pooling", "Normalize")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": PLACES}))
    build_tokenizer().save(str(folder / TOKENS))
    return folder


def write_modules(folder: Path, *kinds: str) -> None:
    (folder / MODULES).write_text(json.dumps([{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]))


def build_model(
    *, seed: float = 0.0, output: str = "last_hidden_state", factor: float = 3.0, extra_input: str = ""
) -> onnx.ModelProto:
    """The vector of a token is that of its piece, its place and the sum of all pieces, so the first differs too."""
    pieces = np.sin(np.arange(len(VOCABULARY) * HIDDEN, dtype=np.float64) ** 2 * 0.37 + seed).reshape(-1, HIDDEN)
    places = np.cos(np.arange(PLACES * HIDDEN, dtype=np.float64) ** 2 * 0.11).reshape(-1, HIDDEN) / 10
    constants: dict[str, NDArray[Any]] = {
        "pieces": (factor * pieces).astype(np.float32),
        "places": (places * (factor != 0)).astype(np.float32),
        "one": np.array([1], np.int64),
        "zero": np.array([0], np.int64),
        "two": np.array([2], np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["pieces", "input_ids"], ["words"]),
        helper.make_node("Shape", ["input_ids"], ["shape"]),
        helper.make_node("Slice", ["shape", "one", "two", "zero"], ["length"]),
        helper.make_node("Slice", ["places", "zero", "length", "zero"], ["used"]),
        helper.make_node("ReduceSum", ["words", "one"], ["all"], keepdims=1),
        helper.make_node("Add", ["words", "all"], ["mixed"]),
        helper.make_node("Add", ["mixed", "used"], ["tokens"]),
    ]
    is_pooled = output in ("sentence_embedding", "logits")
    last = helper.make_node("ReduceMean", ["tokens"], [output], axes=[1], keepdims=0)
    nodes.append(last if is_pooled else helper.make_node("Identity", ["tokens"], [output]))
    inputs = ["input_ids", "attention_mask", *([extra_input] if extra_input else [])]
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, TensorProto.INT64, [1, "length"]) for name in inputs],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def build_tokenizer() -> Tokenizer:
    made = Tokenizer(WordPiece({piece: at for at, piece in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    made.normalizer = Lowercase()
    made.pre_tokenizer = BertPreTokenizer()
    made.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, VOCABULARY.index(name)) for name in ("[CLS]", "[SEP]")]
    )
    return made
