"""A model of one's own, from a folder: it says what the model says, or it is refused with the reason."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.custom_models import VOCABULARY, make_tensors, make_tokenizer, write_model, write_tensors

from holdfast.errors import UserError
from holdfast.retrieval.encoders import custom_model, granite
from holdfast.retrieval.encoders.combined import find_package_file
from holdfast.retrieval.encoders.custom_model import CustomEncoder
from holdfast.retrieval.encoders.model_folder import (
    CONFIG,
    LIMITS,
    MODULES,
    POOLING,
    PROMPTS,
    TOKENS,
    TOKENS_CONFIG,
    WEIGHTS,
)
from holdfast.retrieval.encoders.registry import (
    EncoderName,
    check_encoder_name,
    create_semantic_stage,
    find_certified_encoder,
    is_same_encoder,
    make_certified_name,
)
from holdfast.retrieval.index import SearchIndex
from holdfast.retrieval.units import SearchUnit
from holdfast.retrieval.vectors import normalize_rows
from holdfast.runtime.instructions.settings import load_instruction_config

TEXT = "Will it rain in the old town and is there wind?"
UNITS = [SearchUnit("weather", "weather", "Rain, wind and sunshine"), SearchUnit("forms", "forms", "Fill in a PDF")]

# By transformers 5.22 and torch 2.13, of the same numbers: the mean of all 39 tokens, and the first.
MEANS = {
    "bert": [-0.2719, -0.62904, 0.63245, 0.08408, 0.0808],
    "roberta": [-0.30818, -0.59189, 0.67011, 0.08031, 0.06388],
    "mpnet": [0.90806, -0.00504, -0.34848, -0.22522, 0.0945],
}
FIRSTS = {
    "bert": [1.05995, 0.47251, 1.16184, -0.29362, -0.70077],
    "roberta": [1.11742, 0.40403, 1.20303, -0.06026, -0.65468],
    "mpnet": [-0.48754, 0.34285, -1.23827, -1.87532, 1.15607],
}


@pytest.mark.parametrize("kind", MEANS)
def test_each_family_says_what_other_programs_say_of_the_same_weights(kind: str, tmp_path: Path) -> None:
    tokens = len(make_tokenizer().encode(TEXT).ids)
    (mean,) = CustomEncoder(write_model(tmp_path / "mean", kind)).encode([TEXT]) / tokens
    (first,) = CustomEncoder(write_model(tmp_path / "first", kind, first=True)).encode([TEXT])
    assert mean[:5] == pytest.approx(MEANS[kind], abs=2e-5)
    assert first[:5] == pytest.approx(FIRSTS[kind], abs=2e-5)


def test_a_folder_says_what_a_pack_of_the_same_model_says(tmp_path: Path) -> None:
    packed = granite.GraniteEncoder(find_package_file(granite.PACKAGE, granite.PACK), "packed")
    transformer = packed._transformer
    places = np.vstack(
        [np.zeros((2, transformer.position_embeddings.shape[1]), np.float32), transformer.position_embeddings]
    )
    tensors = {
        "embeddings.word_embeddings.weight": transformer.token_embeddings,
        "embeddings.position_embeddings.weight": places,
        "embeddings.token_type_embeddings.weight": transformer.token_type_embedding[None],
    }
    affine = {"embeddings.LayerNorm": transformer.embedding_norm}
    for at, layer in enumerate(transformer.layers):
        within = f"encoder.layer.{at}"
        affine |= {
            f"{within}.attention.self.query": layer.query,
            f"{within}.attention.self.key": layer.key,
            f"{within}.attention.self.value": layer.value,
            f"{within}.attention.output.dense": layer.attention_output,
            f"{within}.attention.output.LayerNorm": layer.attention_norm,
            f"{within}.intermediate.dense": layer.intermediate,
            f"{within}.output.dense": layer.output,
            f"{within}.output.LayerNorm": layer.output_norm,
        }
    for name, one in affine.items():
        tensors |= {f"{name}.weight": one.weights, f"{name}.bias": one.bias}
    shape: dict[str, object] = {"num_hidden_layers": len(transformer.layers), "num_attention_heads": transformer.heads}
    shape |= {"pad_token_id": 1, "layer_norm_eps": transformer.epsilon}
    folder = write_model(tmp_path / "granite", "roberta", first=True, config=shape)
    # As those write it who train a head on top.
    write_tensors(folder / WEIGHTS, {f"roberta.{name}": tensor for name, tensor in tensors.items()})
    packed._tokenizer.save(str(folder / TOKENS))
    texts = [TEXT, "Please review my pull request.", "rain " * 300, ""]
    assert normalize_rows(CustomEncoder(folder).encode(texts)) == pytest.approx(
        normalize_rows(packed.encode(texts)), abs=1e-5
    )


@pytest.mark.parametrize("text", ["", " ", "\ud800", "\x00", "a" * 50_000, "漢字 かな", "\n\t " * 100, "rain " * 500])
def test_any_text_has_a_vector(text: str, tmp_path: Path) -> None:
    (row,) = CustomEncoder(write_model(tmp_path / "model")).encode([text])
    assert np.isfinite(row).all()
    assert row.any()


def test_no_more_is_read_of_a_text_than_the_model_has_places_for(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "bert")
    one, other = CustomEncoder(folder).encode(["rain " * 300, "rain " * 300 + "and wind"])
    assert (one == other).all()
    (folder / LIMITS).write_text('{"max_seq_length": 6}')
    custom_model.fingerprint.cache_clear()
    cut, same = CustomEncoder(folder).encode(["rain", "rain and wind"])
    assert (cut == same).all()


def test_the_length_and_the_case_are_those_that_the_model_was_made_for(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "bert")
    (folder / TOKENS_CONFIG).write_text('{"model_max_length": 6}')
    cut, same = CustomEncoder(folder).encode(["rain", "rain and wind"])
    assert (cut == same).all()
    (folder / TOKENS_CONFIG).write_text('{"model_max_length": 1000000000000000019884624838656}')
    custom_model.fingerprint.cache_clear()
    one, other = CustomEncoder(folder).encode(["rain", "rain and wind"])
    assert not (one == other).all()
    with_tokens(folder, lambda told: told.update(normalizer=None))
    custom_model.fingerprint.cache_clear()
    small, large = CustomEncoder(folder).encode(["rain", "RAIN"])
    assert not (small == large).all()
    rewritten(folder, LIMITS, do_lower_case=True)
    custom_model.fingerprint.cache_clear()
    small, large = CustomEncoder(folder).encode(["rain", "RAIN"])
    assert (small == large).all()


@pytest.mark.parametrize(
    ("said", "first"), [({"pooling_mode": "cls"}, True), ({"pooling_mode": ["mean"]}, False), ({}, False)]
)
def test_what_stands_for_a_text_is_said_in_the_old_way_or_the_new(
    said: dict[str, object], first: bool, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "new")
    (folder / POOLED).write_text(json.dumps({"embedding_dimension": 16, "include_prompt": True, **said}))
    old = write_model(tmp_path / "old", first=first)
    assert (CustomEncoder(folder).encode([TEXT]) == CustomEncoder(old).encode([TEXT])).all()
    shutil.rmtree(folder / POOLING)
    (folder / MODULES).unlink()
    custom_model.fingerprint.cache_clear()
    bare, mean = CustomEncoder(folder), CustomEncoder(write_model(tmp_path / "mean"))
    assert (bare.encode([TEXT]) == mean.encode([TEXT])).all()


def test_where_the_first_token_counts_there_must_be_one_before_the_text(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", first=True)
    with_tokens(folder, lambda told: told.update(post_processor=None))
    with pytest.raises(UserError, match="its tokenizer adds no special token"):
        CustomEncoder(folder)


def test_old_names_of_tensors_are_known(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "bert")
    (row,) = CustomEncoder(folder).encode([TEXT])
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {}
    for name, tensor in make_tensors("bert").items():
        renamed[next((name.replace(new, was) for new, was in old.items() if name.endswith(new)), name)] = tensor
    write_tensors(folder / WEIGHTS, renamed)
    custom_model.fingerprint.cache_clear()
    assert (CustomEncoder(folder).encode([TEXT]) == row).all()


@pytest.mark.parametrize(
    ("prompts", "query", "document"),
    [
        ({"query": "find ", "document": "text "}, "find ", "text "),
        ({"query": "find ", "passage": "page "}, "find ", "page "),
        ({"query": "find ", "document": None}, "find ", ""),
        ({"query": "find ", "usual": "any "}, "find ", "any "),
        ({"sts": "alike "}, "", ""),
        ({}, "", ""),
    ],
)
def test_what_a_model_wants_before_queries_and_texts_is_put_there(
    prompts: dict[str, str | None], query: str, document: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model")
    plain = CustomEncoder(folder)
    before = custom_model.fingerprint(folder)
    (folder / PROMPTS).write_text(json.dumps({"prompts": prompts, "default_prompt_name": "usual"}))
    custom_model.fingerprint.cache_clear()
    assert custom_model.fingerprint(folder) != before
    asked, told, _ = custom_model.load_custom_encoders(folder)
    assert (asked.encode([TEXT]) == plain.encode([query + TEXT])).all()
    assert (told.encode([TEXT]) == plain.encode([document + TEXT])).all()
    stage = create_semantic_stage(str(folder))
    stage.add(0, SearchUnit("a", "", TEXT))
    near = (normalize_rows(asked.encode(["rain"])) @ normalize_rows(told.encode([TEXT])).T).item()
    zero = CustomEncoder(folder).zero
    assert stage.match("rain", slots=1) == pytest.approx([max(0, (near - zero) / (1 - zero))], abs=2e-3)


def test_a_model_that_is_written_while_it_is_read_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    assert custom_model.fingerprint(folder) == CustomEncoder(folder).model_version.partition("@")[2]
    write_tensors(folder / WEIGHTS, make_tensors("mpnet", seed=1.0))
    with pytest.raises(UserError, match="changed while it was read"):
        CustomEncoder(folder)


def test_a_model_that_is_in_use_needs_its_folder_no_more(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    before = SearchIndex(UNITS, meaning=create_semantic_stage(str(folder)))
    shutil.rmtree(folder)
    assert SearchIndex(UNITS, meaning=create_semantic_stage(str(folder))).digest == before.digest


def test_what_all_texts_have_in_common_is_taken_off(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    _, encoder, zero = custom_model.load_custom_encoders(folder)
    assert zero == CustomEncoder(folder).zero == 0.709
    stage = create_semantic_stage(str(folder))
    stage.add(0, UNITS[0])
    row, wanted = normalize_rows(encoder.encode([f"{UNITS[0].description}", TEXT]))
    name = normalize_rows(encoder.encode(["weather"]))[0]
    both = normalize_rows(np.asarray([row + 0.3 * name]))[0]
    assert stage.match(TEXT, slots=1) == pytest.approx([max(0, (both @ wanted - zero) / (1 - zero))], abs=1e-3)
    assert stage.match(UNITS[0].description, slots=1)[0] > 0.85


@pytest.mark.parametrize("beside", ["", "wordllama+", "paired+", "joined+"])
def test_it_is_used_alone_or_beside_another(beside: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    index = SearchIndex(UNITS, meaning=create_semantic_stage(f"{beside}{folder}"))
    named = index.embedding_model_version
    assert f"mine@{custom_model.fingerprint(folder)}" in named
    assert ("wordllama" in named) is bool(beside)
    assert 0.05 < index.floor < 0.5
    assert index.search("rain and wind", floor=0).hits[0].id == "weather"


@pytest.mark.parametrize("other", ["wordllama", "paired"])
def test_beside_another_it_has_its_share_of_what_both_say(other: EncoderName, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    near = []
    for encoder in (other, str(folder), f"{other}+{folder}"):
        stage = create_semantic_stage(encoder)
        stage.add(0, UNITS[0])
        near += stage.match(TEXT, slots=1)
    share = custom_model.SHARES[other]
    assert near[2] == pytest.approx((1 - share) * near[0] + share * near[1])
    assert abs(near[0] - near[1]) > 0.05


def rewritten(folder: Path, name: str, **changed: object) -> None:
    path = folder / name
    told = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**told, **changed}))


def without(folder: Path, tensor: str) -> None:
    left = make_tensors("mpnet")
    del left[tensor]
    write_tensors(folder / WEIGHTS, left)


def with_numbers(folder: Path, of: float) -> None:
    write_tensors(folder / WEIGHTS, {name: np.full_like(tensor, of) for name, tensor in make_tensors("mpnet").items()})


def with_modules(folder: Path, *kinds: str, path: str = "", pooling: str = POOLING) -> None:
    places = {"Transformer": path, "Pooling": pooling}
    told = [{"type": f"sentence_transformers.models.{kind}", "path": places.get(kind, "")} for kind in kinds]
    (folder / MODULES).write_text(json.dumps(told))


def with_tensor(folder: Path, name: str, *shape: int) -> None:
    write_tensors(folder / WEIGHTS, {**make_tensors("mpnet"), name: np.ones(shape, np.float32)})


def with_tokens(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    told = json.loads((folder / TOKENS).read_text())
    change(told)
    (folder / TOKENS).write_text(json.dumps(told))


VECTORS, DISTANCES = "embeddings.word_embeddings.weight", "encoder.relative_attention_bias.weight"
POOLED = f"{POOLING}/{CONFIG}"
SIZES = "the sizes of its layers are inconsistent"
UNFIT: dict[str, tuple[Callable[[Path], object], str]] = {
    "another family": (
        lambda at: rewritten(at, CONFIG, model_type="modernbert"),
        "model_type 'modernbert' is not one of",
    ),
    "another bend": (lambda at: rewritten(at, CONFIG, hidden_act="relu"), "only hidden_act gelu"),
    "other places": (lambda at: rewritten(at, CONFIG, position_embedding_type="relative_key"), "position_embedding_t"),
    "a judge": (
        lambda at: rewritten(at, CONFIG, architectures=["MPNetForSequenceClassification"]),
        "it is a classifier",
    ),
    "no number": (lambda at: rewritten(at, CONFIG, num_hidden_layers="two"), "config.json: Expected `int`"),
    "fewer than none": (
        lambda at: rewritten(at, CONFIG, num_hidden_layers=-1),
        "config.json: Expected `int` >= 1",
    ),
    "a place before all": (lambda at: rewritten(at, CONFIG, pad_token_id=-5), "config.json: Expected `int` >= 0"),
    "no JSON": (lambda at: (at / CONFIG).write_text("{"), "config.json: Input data was truncated"),
    "deep JSON": (lambda at: (at / CONFIG).write_text('{"a": ' + "[" * 100_000), "its values are invalid"),
    "long JSON": (lambda at: (at / CONFIG).write_text(" " * 2_000_000), "config.json is too long"),
    "other heads": (lambda at: rewritten(at, CONFIG, num_attention_heads=3), SIZES),
    "no head": (lambda at: rewritten(at, CONFIG, num_attention_heads=0), "config.json: Expected `int` >= 1"),
    "too many layers": (lambda at: rewritten(at, CONFIG, num_hidden_layers=3), "missing 'encoder.layer.2."),
    "a lost tensor": (lambda at: without(at, "embeddings.LayerNorm.bias"), "missing 'embeddings.LayerNorm.bias'"),
    "a vector for all": (lambda at: with_tensor(at, VECTORS, 16), SIZES),
    "a number for all": (lambda at: with_tensor(at, VECTORS), "its values are invalid"),
    "a short bias": (lambda at: with_tensor(at, "encoder.layer.1.output.dense.bias", 1), SIZES),
    "narrow places": (lambda at: with_tensor(at, "embeddings.position_embeddings.weight", 64, 1), SIZES),
    "no distances": (lambda at: with_tensor(at, DISTANCES, 0, 2), SIZES),
    "few distances": (lambda at: with_tensor(at, DISTANCES, 3, 2), SIZES),
    "distances of others": (lambda at: with_tensor(at, DISTANCES, 32, 3), SIZES),
    "no tensors": (
        lambda at: (at / WEIGHTS).write_bytes(b"PK\x03\x04 something else"),
        "model.safetensors: not a safetensors file",
    ),
    "a pointer": (lambda at: (at / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1"), "git lfs pull"),
    "cut tensors": (
        lambda at: (at / WEIGHTS).write_bytes((at / WEIGHTS).read_bytes()[:-9]),
        "tensors? (lies outside|overlap)",
    ),
    "numbers beyond": (lambda at: with_numbers(at, float("nan")), "it gives all texts the same vector"),
    "nothing to say": (lambda at: with_numbers(at, 0.0), "it gives all texts the same vector"),
    "a dense layer": (lambda at: with_modules(at, "Transformer", "Pooling", "Dense"), "modules.json must list"),
    "no pooling": (lambda at: with_modules(at, "Transformer"), "modules.json must list"),
    "a folder of its own": (
        lambda at: with_modules(at, "Transformer", "Pooling", path="0_Tr"),
        "modules.json must list",
    ),
    "lost pooling": (lambda at: with_modules(at, "Transformer", "Pooling", pooling="2_P"), "missing 2_P/config.json"),
    "pooling elsewhere": (lambda at: with_modules(at, "Transformer", "Pooling", pooling="../1_P"), "missing ../1_P/"),
    "the largest": (
        lambda at: rewritten(at, POOLED, pooling_mode_max_tokens=True),
        "only pooling by first token or mean",
    ),
    "both": (lambda at: rewritten(at, POOLED, pooling_mode_cls_token=True), "only pooling by first token or mean"),
    "the largest, by name": (
        lambda at: rewritten(at, POOLED, pooling_mode="max"),
        "only pooling by first token or mean",
    ),
    "both, by name": (
        lambda at: rewritten(at, POOLED, pooling_mode=["cls", "mean"]),
        "only pooling by first token or mean",
    ),
    "no tokenizer": (lambda at: (at / TOKENS).write_text("{}"), "tokenizer.json is not a tokenizer"),
    "too few vectors": (lambda at: with_tensor(at, VECTORS, 9, 16), "has tokens that model.safetensors has no vectors"),
    "a token beyond": (
        lambda at: with_tokens(at, lambda told: told["model"]["vocab"].update(q=999)),
        "has tokens that",
    ),
    "no unknown": (lambda at: with_tokens(at, lambda told: told["model"].update(unk_token="?!")), "rare characters"),
    "no limit": (lambda at: rewritten(at, LIMITS, max_seq_length="long"), "sentence_bert_config.json: Expected"),
    "nothing is read": (lambda at: rewritten(at, LIMITS, max_seq_length=2), "accepts only 2 tokens"),
    "nothing at all": (lambda at: rewritten(at, LIMITS, max_seq_length=-1), "sentence_bert_config.json: Expected"),
    "a long prompt": (lambda at: rewritten(at, PROMPTS, prompts={"query": "a" * 1_001}), "Expected `str` of length <="),
    "no place": (lambda at: with_tensor(at, "embeddings.position_embeddings.weight", 3, 16), "accepts only 1 tokens"),
}


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("unfit", UNFIT)
def test_what_cannot_be_computed_is_refused_with_the_reason(unfit: str, tmp_path: Path) -> None:
    change, reason = UNFIT[unfit]
    folder = write_model(tmp_path / "model")
    change(folder)
    with pytest.raises(UserError, match=f"model is not a supported model: .*{reason}"):
        CustomEncoder(folder)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, TOKENS])
def test_a_folder_without_a_model_is_refused_before_it_is_used(name: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / name).unlink()
    for spec in (str(folder), f"paired+{folder}"):
        with pytest.raises(
            UserError, match=f"model lacks {name}: expected a folder in the sentence-transformers format"
        ):
            check_encoder_name(spec)


def test_the_name_of_an_encoder_is_one_of_those_known_or_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "a+b@c")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_encoder_name("~/a+b@c") == str(folder)
    assert check_encoder_name("paired+~/a+b@c") == f"paired+{folder}"
    assert (
        check_encoder_name("wordllama")
        == make_certified_name("wordllama")
        == find_certified_encoder("wordllama")
        == "wordllama"
    )
    for unknown in ("glove", "paired+glove", "paired+", "+", "", "paired+joined", f"paird+{folder}", f"none+{folder}"):
        with pytest.raises(UserError, match="use one of wordllama, paired, minilm, joined, none, the folder of a mod"):
            check_encoder_name(unknown)
    with pytest.raises(UserError, match="there is no home folder for '~nobody-of-that-name/model'"):
        check_encoder_name("~nobody-of-that-name/model")
    with pytest.raises(UserError, match="cannot be read: File name too long"):
        check_encoder_name("/" + "a" * 300)
    assert check_encoder_name(f" paired + {folder}") == f"paired+{folder}"
    with pytest.raises(UserError, match="there is no model folder '/models/none'"):
        check_encoder_name("paired+/models/none")
    for relative in ("./model", "models/model", "paired+models/model"):
        with pytest.raises(UserError, match="the absolute path of a model folder"):
            check_encoder_name(relative)


def test_a_model_is_certified_by_its_contents(tmp_path: Path) -> None:
    spec = f"wordllama+{write_model(tmp_path / 'model')}"
    name = make_certified_name(spec)
    assert find_certified_encoder(name) == spec
    custom_model.fingerprint.cache_clear()
    shutil.rmtree(tmp_path / "model")
    assert find_certified_encoder(name) is None
    write_model(tmp_path / "model", seed=1.0)
    assert make_certified_name(spec) != name
    assert find_certified_encoder(name) is None
    assert find_certified_encoder("glove") is None


def test_a_model_is_the_same_wherever_it_lies(tmp_path: Path) -> None:
    here, there = (make_certified_name(f"paired+{write_model(tmp_path / name)}") for name in ("here", "th@re"))
    alone = make_certified_name(str(tmp_path / "here"))
    other = make_certified_name(f"paired+{write_model(tmp_path / 'other', seed=1.0)}")
    assert is_same_encoder(here, there)
    assert is_same_encoder("paired", "paired")
    assert not any(is_same_encoder(here, one) for one in (alone, other, "paired", "none"))


def test_settings_name_a_folder(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models" / "mine")
    (tmp_path / "config.toml").write_text(f'[instructions]\nencoder = "paired+{folder}"\n')
    assert load_instruction_config({"HOLDFAST_HOME": str(tmp_path)}).settings.encoder == f"paired+{folder}"
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"there is no model folder '.*mine'"):
        load_instruction_config({"HOLDFAST_HOME": str(tmp_path)})


def test_the_vocabulary_of_the_tests_is_that_of_their_weights() -> None:
    assert make_tokenizer().get_vocab_size() == len(VOCABULARY) == len(make_tensors("bert")[VECTORS])


def test_commands_compute_by_one_thread_unless_told_otherwise(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from click.testing import CliRunner\n"
        "from holdfast.cli.main import command\n"
        "CliRunner().invoke(command, ['instructions', 'encoder', '--db', sys.argv[1]])\n"
        "print(os.environ['OPENBLAS_NUM_THREADS'])\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "none.db")]
    environ = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    for more, told in (({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")):
        done = subprocess.run(words, env={**environ, **more}, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == told
