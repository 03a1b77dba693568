"""The packaged encoder: the weights that were measured, whichever release of the package carries them."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.errors import UserError
from holdfast.retrieval.encoders import registry
from holdfast.retrieval.encoders.registry import (
    default_encoder,
    find_certified_encoder,
    is_revised,
    is_same_encoder,
    make_certified_name,
)
from holdfast.retrieval.encoders.wordllama import (
    FLOOR,
    PACKAGE,
    TOKENS,
    TOKENS_SHA256,
    WEIGHTS,
    WEIGHTS_SHA256,
    load_wordllama_encoder,
    read_pinned,
)
from holdfast.retrieval.vectors import normalize_rows


def installed(name: str) -> bytes:
    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], name).read_bytes()


def test_vectors_stay_the_same_across_releases() -> None:
    rows = normalize_rows(load_wordllama_encoder().encode(["Will it rain tomorrow?", "the weather forecast", "taxes"]))
    assert rows[0][:4] == pytest.approx([0.05261, -0.01114, -0.11569, -0.00828], abs=1e-5)
    assert rows[0] @ rows[1:].T == pytest.approx([0.46355, 0.03987], abs=1e-5)


def test_stop_words_do_not_change_a_vector_unless_there_are_no_others() -> None:
    rows = load_wordllama_encoder().encode(["What about the weather?", "weather", "what about that"])
    assert (rows[0] == rows[1]).all()
    assert rows[2].any()


@pytest.mark.parametrize(("name", "sha256"), [(WEIGHTS, WEIGHTS_SHA256), (TOKENS, TOKENS_SHA256)])
def test_file_with_other_contents_is_rejected_by_name(name: str, sha256: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"the installed package wordllama lacks {name}: pip install"):
        read_pinned([str(tmp_path)], name, sha256)
    path = tmp_path / name
    path.parent.mkdir()
    path.write_bytes(installed(name)[:-9] + b"something")
    with pytest.raises(UserError, match=f"wordllama has another version of {name}: pip install"):
        read_pinned([str(tmp_path)], name, sha256)


def test_trailing_line_break_of_the_tokenizer_is_ignored(tmp_path: Path) -> None:
    (tmp_path / TOKENS).parent.mkdir()
    for end in (b"", b"\n"):
        (tmp_path / TOKENS).write_bytes(installed(TOKENS).rstrip() + end)
        assert read_pinned([str(tmp_path)], TOKENS, TOKENS_SHA256) == installed(TOKENS).rstrip()


@pytest.mark.parametrize(
    ("missing", "encoder"), [("", "wordllama"), ("safetensors", None), ("onnxruntime", "wordllama")]
)
def test_it_is_the_default_if_it_is_installed(
    missing: str, encoder: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else object())
    assert default_encoder() == encoder


def test_it_is_certified_by_its_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_certified_name("wordllama")
    monkeypatch.setattr(registry, "WORDLLAMA_REVISION", registry.WORDLLAMA_REVISION + 1)
    now = make_certified_name("wordllama")
    assert find_certified_encoder(before) == find_certified_encoder(now) == "wordllama"
    assert is_revised(before, now)
    assert not is_same_encoder(before, now)
    assert not is_revised(now, now)
    assert not any(is_revised(now, other) for other in ("none", "/models/mine@0123456789abcdef"))


def test_changed_weights_or_floor_need_a_new_revision() -> None:
    """Where this fails, count up `WORDLLAMA_REVISION`, so that stores measure their manifests again."""
    assert (registry.WORDLLAMA_REVISION, WEIGHTS_SHA256[:8], TOKENS_SHA256[:8], FLOOR) == (
        2,
        "64b47a2d",
        "bf467c9e",
        0.135,
    )
