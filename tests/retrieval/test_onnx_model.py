"""A user's own ONNX model: its vectors, its settings, and why a folder is rejected."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from tests.support.onnx_models import MODEL, PLACES, build_model, build_tokenizer, write_model, write_modules

from holdfast.errors import UserError
from holdfast.retrieval.encoders import model_folder, onnx_model
from holdfast.retrieval.encoders.model_folder import (
    LIMITS,
    MODULES,
    POOLING,
    PROMPTS,
    TOKENS,
    TOKENS_CONFIG,
    fingerprint,
)
from holdfast.retrieval.encoders.onnx_model import OnnxEncoder
from holdfast.retrieval.encoders.registry import (
    check_encoder_name,
    create_semantic_stage,
    find_certified_encoder,
    is_same_encoder,
    make_certified_name,
)
from holdfast.retrieval.index import SearchIndex, StageWeights
from holdfast.retrieval.units import SearchUnit
from holdfast.retrieval.vectors import normalize_rows
from holdfast.runtime.instructions.settings import load_instruction_config

TEXT = "Will it rain in the old town and is there wind?"
UNITS = [SearchUnit("weather", "weather", "Rain, wind and sunshine"), SearchUnit("forms", "forms", "Fill in a PDF")]


def test_vectors_match_the_onnx_reference_implementation(tmp_path: Path) -> None:
    ids = np.array([build_tokenizer().encode(TEXT).ids])
    (computed,) = ReferenceEvaluator(build_model()).run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    tokens = np.asarray(computed)
    (mean,) = OnnxEncoder(write_model(tmp_path / "mean")).encode([TEXT]) / ids.size
    (first,) = OnnxEncoder(write_model(tmp_path / "first", first=True)).encode([TEXT])
    (pooled,) = OnnxEncoder(write_model(tmp_path / "pooled", output="sentence_embedding")).encode([TEXT])
    assert mean == pytest.approx(tokens[0].mean(axis=0), abs=1e-5)
    assert first == pytest.approx(tokens[0][0], abs=1e-5)
    assert pooled == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize("text", ["", " ", "\ud800", "\x00", "a" * 50_000, "漢字 かな", "\n\t " * 100, "rain " * 500])
def test_any_text_has_a_vector(text: str, tmp_path: Path) -> None:
    (row,) = OnnxEncoder(write_model(tmp_path / "model")).encode([text])
    assert np.isfinite(row).all()
    assert row.any()


def test_model_in_the_folder_itself_and_texts_without_tokens_are_supported(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / MODEL).rename(folder / "model.onnx")
    change_tokens(folder, lambda tokens: tokens.update(post_processor=None))
    rows = OnnxEncoder(folder).encode([TEXT, ""])
    assert rows.any(axis=1).tolist() == [True, False]


def test_texts_are_truncated_to_the_length_of_the_model(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    one, other = OnnxEncoder(folder).encode(["rain " * 300, "rain " * 300 + "and wind"])
    assert (one == other).all()
    for name, limit in ((LIMITS, {"max_seq_length": 6}), (TOKENS_CONFIG, {"model_max_length": 6})):
        (folder / LIMITS).unlink(missing_ok=True)
        rewrite(folder, name, **limit)
        fingerprint.cache_clear()
        cut, same = OnnxEncoder(folder).encode(["rain", "rain and wind"])
        assert (cut == same).all()
    rewrite(folder, TOKENS_CONFIG, model_max_length=10**30)
    rewrite(folder, LIMITS, max_seq_length=PLACES)
    fingerprint.cache_clear()
    one, other = OnnxEncoder(folder).encode(["rain", "rain and wind"])
    assert not (one == other).all()


def test_texts_are_lowercased_if_the_settings_say_so(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    change_tokens(folder, lambda tokens: tokens.update(normalizer=None))
    small, large = OnnxEncoder(folder).encode(["rain", "RAIN"])
    assert not (small == large).all()
    rewrite(folder, LIMITS, do_lower_case=True)
    fingerprint.cache_clear()
    small, large = OnnxEncoder(folder).encode(["rain", "RAIN"])
    assert (small == large).all()


@pytest.mark.parametrize(
    ("pooling", "first"), [({"pooling_mode": "cls"}, True), ({"pooling_mode": ["mean"]}, False), ({}, False)]
)
def test_pooling_mode_is_read_in_both_formats(pooling: dict[str, object], first: bool, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "new")
    (folder / POOLING).write_text(json.dumps({"embedding_dimension": 16, "include_prompt": True, **pooling}))
    old = write_model(tmp_path / "old", first=first)
    assert (OnnxEncoder(folder).encode([TEXT]) == OnnxEncoder(old).encode([TEXT])).all()
    shutil.rmtree((folder / POOLING).parent)
    (folder / MODULES).unlink()
    fingerprint.cache_clear()
    bare, mean = OnnxEncoder(folder), OnnxEncoder(write_model(tmp_path / "mean"))
    assert (bare.encode([TEXT]) == mean.encode([TEXT])).all()


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
def test_prompts_are_prepended_to_queries_and_documents(
    prompts: dict[str, str | None], query: str, document: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model")
    plain = OnnxEncoder(folder)
    before = fingerprint(folder)
    (folder / PROMPTS).write_text(json.dumps({"prompts": prompts, "default_prompt_name": "usual"}))
    fingerprint.cache_clear()
    assert fingerprint(folder) != before
    queries, documents, zero = onnx_model.load_onnx_encoders(folder)
    assert (queries.encode([TEXT]) == plain.encode([query + TEXT])).all()
    assert (documents.encode([TEXT]) == plain.encode([document + TEXT])).all()
    stage = create_semantic_stage(str(folder))
    stage.add({0: SearchUnit("a", "", TEXT)})
    near = (normalize_rows(queries.encode(["rain"])) @ normalize_rows(documents.encode([TEXT])).T).item()
    assert stage.match("rain", slots=1) == pytest.approx([max(0, (near - zero) / (1 - zero))], abs=2e-3)


def test_model_that_changes_while_it_is_read_is_rejected(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    assert fingerprint(folder) == OnnxEncoder(folder).model_version.partition("@")[2]
    onnx.save(build_model(seed=1.0), folder / MODEL)
    with pytest.raises(UserError, match="changed while it was read"):
        OnnxEncoder(folder)


def test_loaded_model_does_not_need_its_folder(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    before = SearchIndex(UNITS, meaning=create_semantic_stage(str(folder)))
    shutil.rmtree(folder)
    assert SearchIndex(UNITS, meaning=create_semantic_stage(str(folder))).digest == before.digest


def test_similarity_of_unrelated_texts_is_subtracted(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    _, encoder, zero = onnx_model.load_onnx_encoders(folder)
    assert 0.2 < zero == OnnxEncoder(folder).zero < 0.9
    stage = create_semantic_stage(str(folder))
    stage.add({0: UNITS[0]})
    row, wanted = normalize_rows(encoder.encode([f"{UNITS[0].description}", TEXT]))
    name = normalize_rows(encoder.encode(["weather"]))[0]
    both = normalize_rows(np.asarray([row + 0.3 * name]))[0]
    assert stage.match(TEXT, slots=1) == pytest.approx([max(0, (both @ wanted - zero) / (1 - zero))], abs=1e-3)
    assert stage.match(UNITS[0].description, slots=1)[0] > 0.85


def test_model_halves_the_weight_of_words_and_is_named_in_the_result(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    index = SearchIndex(UNITS, meaning=create_semantic_stage(str(folder)))
    answer = index.search("rain and wind", floor=0)
    assert answer.hits[0].id == "weather"
    assert answer.embedding_model_version == f"mine@{fingerprint(folder)}"
    assert answer.weights == StageWeights(0.175, 0.675, 0.15)


def test_combined_similarity_is_the_mean_of_both_encoders(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    words, mine, both = (create_semantic_stage(name) for name in ("wordllama", str(folder), f"wordllama+{folder}"))
    for stage in (words, mine, both):
        stage.add({0: UNITS[0]})
        stage.add({1: UNITS[1]})
        stage.remove(1)
    near = [stage.match(TEXT, slots=2) for stage in (words, mine, both)]
    assert near[2] == pytest.approx([(near[0][0] + near[1][0]) / 2, 0])
    assert abs(near[0][0] - near[1][0]) > 0.05
    assert both.model_version == f"{words.model_version}+{mine.model_version}"
    assert both.floor == pytest.approx((words.floor + mine.floor) / 2)
    assert both.words_share == mine.words_share < words.words_share


@pytest.mark.parametrize(
    "weights", [StageWeights(1, 0, 0), StageWeights(0, 1, 0), StageWeights(0, 0, 1), StageWeights(0.8, 0, 0.2)]
)
def test_scaling_leaves_weights_of_a_single_stage_unchanged(weights: StageWeights) -> None:
    assert weights.scale_lexical(0.5) == weights


def rewrite(folder: Path, name: str, **changed: object) -> None:
    path = folder / name
    settings = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**settings, **changed}))


def change_tokens(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tokens = json.loads((folder / TOKENS).read_text())
    change(tokens)
    (folder / TOKENS).write_text(json.dumps(tokens))


POOLING_REASON = "only pooling by first token or mean"
DEFECTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "not ONNX": (lambda at: (at / MODEL).write_bytes(b"PK\x03\x04 something else"), ".*INVALID_PROTOBUF"),
    "git-lfs pointer": (lambda at: (at / MODEL).write_text("version https://git-lfs.github.com/spec/v1"), ".*PROTOBUF"),
    "truncated model": (lambda at: (at / MODEL).write_bytes((at / MODEL).read_bytes()[:-900]), ".*(PROTOBUF|INVALID)"),
    "classifier": (lambda at: onnx.save(build_model(output="logits"), at / MODEL), "its output 'logits' is no list of"),
    "unknown input": (lambda at: onnx.save(build_model(extra_input="position_ids"), at / MODEL), ".*position_ids"),
    "not a number": (
        lambda at: onnx.save(build_model(factor=float("nan")), at / MODEL),
        "it gives all texts the same vector",
    ),
    "all zeros": (lambda at: onnx.save(build_model(factor=0.0), at / MODEL), "it gives all texts the same vector"),
    "too few positions": (lambda at: rewrite(at, LIMITS, max_seq_length=PLACES + 1), ".*(broadcast|Add)"),
    "no JSON": (lambda at: (at / LIMITS).write_text("{"), "sentence_bert_config.json: Input data was truncated"),
    "deep JSON": (lambda at: (at / LIMITS).write_text('{"a": ' + "[" * 100_000), "maximum recursion depth"),
    "long JSON": (lambda at: (at / LIMITS).write_text(" " * 2_000_000), "sentence_bert_config.json is too long"),
    "dense layer": (lambda at: write_modules(at, "Transformer", "Pooling", "Dense"), "modules.json must list"),
    "no pooling": (lambda at: write_modules(at, "Transformer"), "modules.json must list"),
    "max pooling": (lambda at: rewrite(at, POOLING, pooling_mode_max_tokens=True), POOLING_REASON),
    "two poolings": (lambda at: rewrite(at, POOLING, pooling_mode_cls_token=True), POOLING_REASON),
    "max pooling by name": (lambda at: rewrite(at, POOLING, pooling_mode="max"), POOLING_REASON),
    "two poolings by name": (lambda at: rewrite(at, POOLING, pooling_mode=["cls", "mean"]), POOLING_REASON),
    "no tokenizer": (lambda at: (at / TOKENS).write_text("{}"), ""),
    "token without vector": (
        lambda at: change_tokens(at, lambda tokens: tokens["model"]["vocab"].update(q=999)),
        ".*out of data",
    ),
    "no unknown token": (lambda at: change_tokens(at, lambda tokens: tokens["model"].update(unk_token="?!")), ".*UNK"),
    "text as limit": (lambda at: rewrite(at, LIMITS, max_seq_length="long"), "sentence_bert_config.json: Expected"),
    "negative limit": (lambda at: rewrite(at, LIMITS, max_seq_length=-1), "sentence_bert_config.json: Expected"),
    "long prompt": (lambda at: rewrite(at, PROMPTS, prompts={"query": "a" * 1_001}), ".*Expected `str` of length"),
}


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("defect", DEFECTS)
def test_unsupported_model_is_rejected_with_the_reason(
    defect: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    change, reason = DEFECTS[defect]
    folder = write_model(tmp_path / "model")
    change(folder)
    with pytest.raises(UserError, match=f"model is not a supported model: {reason}") as rejection:
        OnnxEncoder(folder)
    assert "\n" not in str(rejection.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", [MODEL, TOKENS])
def test_folder_without_a_model_is_rejected_before_use(name: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"model lacks {Path(name).name}: expected a sentence-transformers model expo"):
        check_encoder_name(str(folder))


def test_encoder_name_is_wordllama_or_a_folder_or_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "a+b@c")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_encoder_name("~/a+b@c") == check_encoder_name(f" {folder} ") == str(folder)
    assert check_encoder_name(" wordllama") == "wordllama"
    assert check_encoder_name("wordllama+~/a+b@c") == f"wordllama+{folder}"
    for unknown in ("glove", "", "wordllama+glove", "wordllama+", "paired"):
        with pytest.raises(UserError, match="use wordllama, none, the folder of an ONNX model, or both, such as wordl"):
            check_encoder_name(unknown)
    with pytest.raises(UserError, match="there is no home folder for '~nobody-of-that-name/model'"):
        check_encoder_name("~nobody-of-that-name/model")
    with pytest.raises(UserError, match="cannot be read: File name too long"):
        check_encoder_name("/" + "a" * 300)
    with pytest.raises(UserError, match="there is no model folder '/models/none'"):
        check_encoder_name("/models/none")
    for relative in ("./model", "models/model", "wordllama+models/model", f"paired+{folder}"):
        with pytest.raises(UserError, match="the absolute path of a model folder"):
            check_encoder_name(relative)


def test_model_is_certified_by_its_contents(tmp_path: Path) -> None:
    folder = str(write_model(tmp_path / "model"))
    name = make_certified_name(folder)
    assert find_certified_encoder(name) == folder
    fingerprint.cache_clear()
    shutil.rmtree(folder)
    assert find_certified_encoder(name) is None
    write_model(tmp_path / "model", seed=1.0)
    assert make_certified_name(folder) != name
    assert find_certified_encoder(name) is None
    assert find_certified_encoder("glove") is None


def test_fingerprint_covers_weights_stored_beside_the_model(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    onnx.save(
        build_model(), folder / MODEL, save_as_external_data=True, location="model.onnx_data", size_threshold=1_000
    )
    name, rows = make_certified_name(str(folder)), OnnxEncoder(folder).encode([TEXT])
    assert (rows == OnnxEncoder(write_model(tmp_path / "whole")).encode([TEXT])).all()
    (folder / "onnx/model.onnx_data").write_bytes((folder / "onnx/model.onnx_data").read_bytes()[::-1])
    fingerprint.cache_clear()
    assert make_certified_name(str(folder)) != name


def test_moved_model_keeps_its_certification(tmp_path: Path) -> None:
    folders = [write_model(tmp_path / "here"), write_model(tmp_path / "th@re"), write_model(tmp_path / "c", seed=1.0)]
    for prefix in ("", "wordllama+"):
        here, there, other = (make_certified_name(f"{prefix}{folder}") for folder in folders)
        assert is_same_encoder(here, there)
        assert find_certified_encoder(there) == f"{prefix}{folders[1]}"
        assert not any(is_same_encoder(here, one) for one in (other, make_certified_name("wordllama"), "none"))
    assert not is_same_encoder(here, make_certified_name(str(folders[0])))


def test_settings_accept_a_folder(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models" / "mine")
    (tmp_path / "config.toml").write_text(f'[instructions]\nencoder = "{folder}"\n')
    assert load_instruction_config({"HOLDFAST_HOME": str(tmp_path)}).settings.encoder == str(folder)
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"there is no model folder '.*mine'"):
        load_instruction_config({"HOLDFAST_HOME": str(tmp_path)})


def test_missing_extra_is_named_with_the_command_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(write_model(tmp_path / "mine"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnxruntime" else object())
    for use in (check_encoder_name, create_semantic_stage):
        with pytest.raises(UserError, match=r"needs onnxruntime: pip install 'holdfast-context\[onnx\]'"):
            use(folder)


def test_model_sends_no_telemetry_and_prints_nothing(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from holdfast.retrieval.encoders.registry import create_semantic_stage as create\n"
        "create(sys.argv[1]).match('rain', slots=0)"
    )
    folder, home = write_model(tmp_path / "mine"), tmp_path / "home"
    home.mkdir()
    # Without what marks a machine that builds, on which the runtime below is silent of itself.
    environ = {"HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(words, env=environ, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert list(home.rglob("*")) == []


def test_commands_use_one_blas_thread_by_default(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from click.testing import CliRunner\n"
        "from holdfast.cli.main import command\n"
        "CliRunner().invoke(command, ['instructions', 'encoder', '--db', sys.argv[1]])\n"
        "print(os.environ['OPENBLAS_NUM_THREADS'])\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "none.db")]
    environ = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    for more, threads in (({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")):
        done = subprocess.run(words, env={**environ, **more}, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == threads


def test_checking_a_name_loads_neither_numpy_nor_onnxruntime(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from holdfast.retrieval.encoders.registry import check_encoder_name, make_certified_name\n"
        "make_certified_name(check_encoder_name(sys.argv[1]))\n"
        "print({'numpy', 'onnxruntime', 'tokenizers'} & sys.modules.keys())\n"
    )
    words = [sys.executable, "-c", program, str(write_model(tmp_path / "mine"))]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "set()\n"


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / TOKENS_CONFIG).mkdir()
    with pytest.raises(UserError, match=r"tokenizer_config\.json cannot be read: Is a directory"):
        model_folder.digest_files(folder)
