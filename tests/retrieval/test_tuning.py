"""Encoders that were turned towards what serves a request, and what they were turned by."""

import hashlib
import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from holdfast.errors import UserError
from holdfast.retrieval.encoders import custom_model, granite, joined, minilm, paired, universal
from holdfast.retrieval.encoders.registry import (
    REVISIONS,
    create_semantic_stage,
    find_certified_encoder,
    is_revised,
    is_same_encoder,
    make_certified_name,
)
from holdfast.retrieval.encoders.tuning import (
    QUANTIZATION_STEP,
    TunedEncoder,
    create_tuned_stage,
    load_tuning,
    read_tuning,
    write_tuning,
)
from holdfast.retrieval.units import SearchUnit
from holdfast.retrieval.vectors import CachingEncoder, Sums, Vectors, VectorStage, encode_by_sentences, normalize_rows

ROOT = Path(__file__).parents[2]
run_collector = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts/collect_requests.py")))
fitting = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts/fit_tuning.py")))

FIT_SETTINGS = fitting.FitSettings()
DESCRIPTION = """
# Tides

[![build](badge.svg)](there)

**Tides** tells how high the water is, and when it will be,
for any harbour of the world.

Say "What is the tide in Brest tomorrow?" or “Show me the *next* low water”, not "low water" alone.

Set "Name of the harbour" and "Run pip install tides first".

## What you can ask

- Find a harbour near me with enough water for my boat
- Harbours, sorted by depth
1. "Compare high waters of this week and the last"

```
User: When can I leave the harbour with two metres of draught?
Find low-water marks of 2.5 metres near me
tides --harbour brest
```

```python
print("Show me what no one would ask for")
- Find what is in the code for me
```

## Licence

- Use it for what you like in the open
"""


def test_requests_are_what_is_quoted_or_shown_as_an_example() -> None:
    assert run_collector.requests_in(DESCRIPTION) == [
        "What is the tide in Brest tomorrow?",
        "Show me the next low water",
        "Find a harbour near me with enough water for my boat",
        "Compare high waters of this week and the last",
        "When can I leave the harbour with two metres of draught?",
        "Find low-water marks of 2.5 metres near me",
    ]


def test_a_purpose_is_what_a_package_is_for_by_its_summary_and_by_how_it_begins() -> None:
    begins = "Tides tells how high the water is, and when it will be, for any harbour of the world."
    summary = "A Model Context Protocol (MCP) server for the tides of any harbour"
    assert run_collector.purposes_in(summary, DESCRIPTION) == ["The tides of any harbour", begins]
    assert run_collector.purposes_in("MCP server", "# Tides\n\nShort.\n") == []


PAGE = """<a href="/simple/tides-mcp/">tides-mcp</a> <a href="/simple/gone-mcp/">gone</a> <a href="/simple/numpy/">n</a>
<a href="/simple/odd-mcp/">odd</a> <a href="/simple/mcp%2e%2e/">no name</a> <a href="/simple/mcp?x/">no name</a>"""


class Packages(BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        about = {"version": "1.0", "summary": "The tides of any harbour", "description": DESCRIPTION}
        said = {"/pypi/tides-mcp/json": json.dumps({"info": about}), "/pypi/odd-mcp/json": "[]", "/simple/": PAGE}
        body = said.get(self.path, "").encode()
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_packages_are_read_once_and_what_could_not_be_read_is_asked_for_again(tmp_path: Path) -> None:
    into = tmp_path / "requests.jsonl"
    with ThreadingHTTPServer(("127.0.0.1", 0), Packages) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        command = (sys.executable, str(ROOT / "scripts/collect_requests.py"))
        told = (*command, "--index", f"http://127.0.0.1:{server.server_port}", "--wait", "0", str(into))
        first = subprocess.run(told, capture_output=True, text=True, check=False)
        with into.open("a") as file:
            file.write('{"name": "odd-m')
        Packages.asked.clear()
        second = subprocess.run(told, capture_output=True, text=True, check=False)
        server.shutdown()
    assert (first.returncode, second.returncode) == (1, 1)
    assert "odd-mcp: ValidationError" in first.stderr
    assert "1 packages could not be read" in second.stderr
    assert {*Packages.asked} == {"/simple/", "/pypi/odd-mcp/json"}
    rows = {row["name"]: row for row in map(json.loads, into.read_text().splitlines())}
    assert {name: len(row["requests"]) for name, row in rows.items()} == {"tides-mcp": 6, "gone-mcp": 0}
    assert rows["tides-mcp"]["purposes"][0] == "The tides of any harbour"


def test_a_request_is_that_of_the_first_who_tells_it_and_of_nobody_where_many_do(tmp_path: Path) -> None:
    def row(name: str, *requests: str) -> str:
        told = ", ".join(f'"{one}"' for one in requests)
        return f'{{"name": "{name}", "version": "1", "purposes": ["What it is for"], "requests": [{told}]}}'

    path = tmp_path / "requests.jsonl"
    many = [row(f"z{at}", "list all") for at in range(4)]
    path.write_text("\n".join([row("b", "Find me", "list all"), row("a", "find me", "Only here"), *many]))
    assert [(one.name, one.requests) for one in fitting.read(path)] == [("a", ("find me", "Only here"))]


def test_what_was_fitted_finds_what_was_turned_away() -> None:
    """Requests lie a quarter of a turn from what serves them, in every pair of dimensions."""
    drawn = np.random.default_rng(0)
    purposes = normalize_rows(drawn.normal(size=(300, 16)))
    away = np.empty_like(purposes)
    away[:, ::2], away[:, 1::2] = -purposes[:, 1::2], purposes[:, ::2]
    texts = fitting.Texts(
        requests=away.astype(np.float32),
        askers=np.arange(300),
        purposes=purposes.astype(np.float32),
        servers=np.arange(300),
    )
    nothing = np.zeros((16, 16), np.float32)
    asked, found = fitting.fit_matrices(texts, fitting.FitSettings(rounds=200, step=0.01, margin=3.0))
    assert float(fitting.hits(texts, nothing, nothing).split()[1]) < 0.05
    assert float(fitting.hits(texts, asked.added, found.added).split()[0]) > 0.95


def test_slopes_are_those_of_the_loss() -> None:
    drawn = np.random.default_rng(1)
    requests, purposes = (normalize_rows(drawn.normal(size=(size, 8))).astype(np.float32) for size in (6, 4))
    owners = np.array([0, 0, 1, 2, 3, 3])
    before = requests @ purposes.T

    def loss(near: Sums) -> float:
        logits = FIT_SETTINGS.sharpness * near
        logits[before > before[np.arange(6), owners][:, None] + FIT_SETTINGS.margin] = -np.inf
        shares = logits[np.arange(6), owners] - np.log(np.exp(logits).sum(axis=1))
        return -sum(float(shares[owners == one].mean()) for one in range(4)) / 4

    slopes = fitting.slopes_of(FIT_SETTINGS, before.copy(), before, owners)
    for at in np.ndindex(6, 4):
        moved = before.astype(np.float64)
        moved[at] += 1e-6
        slope = (loss(moved) - loss(before.astype(np.float64))) / 1e-6
        assert slopes[at] == pytest.approx(slope, abs=1e-3)


def test_slopes_along_a_matrix_are_those_through_the_length_of_1() -> None:
    drawn = np.random.default_rng(3)
    rows, weights = drawn.normal(size=(5, 4)), drawn.normal(size=(5, 4))
    added = drawn.normal(scale=0.1, size=(4, 4))
    moved, lengths = fitting.apply_matrix(rows, added)
    slopes = rows.T @ fitting.before_length(weights, moved, lengths)
    for at in np.ndindex(4, 4):
        step = np.zeros((4, 4))
        step[at] = 1e-6
        slope = ((fitting.apply_matrix(rows, added + step)[0] - moved) * weights).sum() / 1e-6
        assert slopes[at] == pytest.approx(slope, abs=1e-4)


def test_a_matrix_is_read_once_however_many_agents_there_are() -> None:
    assert load_tuning("universal") is load_tuning("universal")


def test_what_is_written_is_read_to_half_a_byte_and_told_by_its_version(tmp_path: Path) -> None:
    drawn = np.random.default_rng(2)
    asked, found = (drawn.normal(scale=0.005, size=(8, 8)).astype(np.float32) for _ in range(2))
    tuning = read_tuning(write_tuning(tmp_path / "one.npy", asked, found))
    assert np.abs(tuning.query_matrix - asked).max() <= QUANTIZATION_STEP / 2 + 1e-7
    assert np.abs(tuning.document_matrix - found).max() <= QUANTIZATION_STEP / 2 + 1e-7
    other = read_tuning(write_tuning(tmp_path / "other.npy", found, asked))
    assert other.version != tuning.version
    assert read_tuning(write_tuning(tmp_path / "again.npy", asked, found)).version == tuning.version


@pytest.mark.parametrize("stored", [b"", b"something else", b"\x93NUMPY\x01\x00", b"\x80\x04K\x01."])
def test_a_matrix_that_cannot_be_read_is_told_by_its_name(tmp_path: Path, stored: bytes) -> None:
    (tmp_path / "minilm.npy").write_bytes(stored)
    with pytest.raises(UserError, match=r"minilm\.npy of this package cannot be read; reinstall holdfast"):
        read_tuning(tmp_path / "minilm.npy")


@pytest.mark.parametrize(
    ("script", "words", "told"),
    [
        ("collect_requests.py", ("--index", "nowhere", "out.jsonl"), "nowhere is no package index that can be read"),
        ("fit_tuning.py", ("none.jsonl", "out"), "none.jsonl was not written by collect_requests.py"),
        ("fit_tuning.py", ("bad.jsonl", "out"), "bad.jsonl was not written by collect_requests.py"),
        ("fit_tuning.py", ("few.jsonl", "out"), "few.jsonl has too few packages"),
    ],
)
def test_what_a_script_cannot_use_is_told_in_a_line(
    tmp_path: Path, script: str, words: tuple[str, ...], told: str
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "few.jsonl").write_text("")
    command = (sys.executable, str(ROOT / "scripts" / script), *words)
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (ended.returncode, ended.stderr.startswith(told)) == (1, True), ended.stderr
    assert not (tmp_path / "out").exists()


class Letters:
    model_version, dimensions = "letters", 3

    def encode(self, texts: Sequence[str]) -> Sums:
        return np.array([[text.count(letter) for letter in "abc"] for text in texts], np.float64)


def test_what_is_turned_has_what_the_matrix_adds() -> None:
    added: Vectors = np.zeros((3, 3), np.float32)
    added[0, 2] = 0.5
    turned = TunedEncoder(Letters(), added, "1")
    assert turned.encode(["aab", "c"]).tolist() == [[2, 1, 1], [0, 0, 1]]
    assert (turned.model_version, turned.dimensions) == ("letters/tuned-1", 3)


SERVED = (
    ("I'd like to see how my company's stock did last month", "finance", "Prices of shares, and charts of them."),
    ("what do I need to wear tomorrow in Oslo?", "weather", "Forecasts for any place and day."),
    ("my package has not arrived yet, where is it?", "parcels", "Tracks shipments of all carriers."),
    ("put something on for the kids to fall asleep", "stories", "Plays audio books and lullabies."),
)


def ahead(stage: VectorStage) -> float:
    """By how much the right unit is nearer than the nearest other, on the mean of the requests."""
    for slot, (_, unit, description) in enumerate(SERVED):
        stage.add(slot, SearchUnit(unit, unit, description))
    told = [stage.compute_similarities(request, slots=len(SERVED)) for request, _, _ in SERVED]
    return float(np.mean([near[slot] - np.delete(near, slot).max() for slot, near in enumerate(told)]))


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("universal", universal.load_universal_encoder),
        ("minilm", minilm.load_minilm_encoder),
        ("granite", granite.load_granite_encoder),
    ],
)
def test_a_tuned_encoder_brings_requests_nearer_to_what_serves_them(
    name: str, load: Callable[[], CachingEncoder]
) -> None:
    encoder = load()
    stage = create_tuned_stage(encoder, name)
    assert "/tuned-" in stage.model_version
    assert ahead(stage) > ahead(VectorStage(encoder, encode_by_sentences)) > 0


def test_a_request_is_turned_by_one_matrix_and_what_is_found_by_the_other() -> None:
    encoder = universal.load_universal_encoder()
    tuning = read_tuning(Path(universal.__file__).parents[1] / "tunings" / "universal.npy")
    stage = create_tuned_stage(encoder, "universal")
    request, _, description = SERVED[0]
    stage.add(0, SearchUnit("unit", "", description))
    asked, found = encoder.encode([request]), encoder.encode([description])
    near = (
        normalize_rows(asked + asked @ tuning.query_matrix)[0]
        @ normalize_rows(found + found @ tuning.document_matrix)[0]
    )
    assert stage.compute_similarities(request, slots=1)[0] == pytest.approx(near, abs=1e-3)
    other = (
        normalize_rows(asked + asked @ tuning.document_matrix)[0]
        @ normalize_rows(found + found @ tuning.query_matrix)[0]
    )
    assert abs(near - other) > 0.003


def test_an_encoder_that_was_turned_is_certified_as_another_than_before() -> None:
    for name in ("paired", "minilm", "joined"):
        assert make_certified_name(name) == f"{name}.{REVISIONS[name]}"
        assert find_certified_encoder(f"{name}.{REVISIONS[name]}") == find_certified_encoder(f"{name}.1") == name
        assert not is_same_encoder(make_certified_name(name), name)
        assert is_revised(make_certified_name(name), name)
    assert not is_revised(make_certified_name("paired"), "joined")
    assert not is_revised("paired.1", "paired.1")
    assert make_certified_name("wordllama") == find_certified_encoder("wordllama") == "wordllama"
    assert create_semantic_stage("paired").model_version.count("/tuned-") == 1


def test_who_changes_what_an_encoder_says_counts_its_revision_up() -> None:
    """Where this fails, count up `REVISIONS` of the encoders that changed, so that stores measure their manifests
    anew, and write down what is said now."""
    folder = Path(universal.__file__).parents[1] / "tunings"
    numbers = (
        *(read_tuning(folder / f"{name}.npy").version for name in ("granite", "minilm", "universal")),
        (paired.SENTENCES_SHARE, paired.WORDS_SHARE, paired.FLOOR),
        (minilm.WORDS_SHARE, minilm.FLOOR),
        (joined.SHARES, joined.SHARES_WITH_CUSTOM_MODEL, joined.WORDS_SHARE, joined.FLOOR),
        (joined.WORDS_SHARE_WITH_CUSTOM_MODEL, custom_model.SHARES, custom_model.WORDS_SHARE, custom_model.FLOOR),
    )
    said = hashlib.sha256(repr(numbers).encode()).hexdigest()[:12]
    assert (dict(REVISIONS), said) == ({"paired": 2, "minilm": 2, "joined": 2}, "3b034920d4a3")
