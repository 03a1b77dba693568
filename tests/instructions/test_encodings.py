"""A unit is encoded once: its vectors are kept in the store, and no state of them breaks a recall."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.instruction_service import open_store_of_kind
from tests.support.onnx_models import write_model
from tests.support.operations import OperationCounter

from holdfast.clock import ManualClock
from holdfast.instructions.models import LoadTriggers, Manifest, ManifestEntry, Provenance
from holdfast.instructions.recall.selection import InstructionSet, UnitContent
from holdfast.instructions.recall.snapshot import ENCODINGS_UNUSED_MS_MAX, KeptEncodings
from holdfast.retrieval.vectors import digest_program
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.sqlite.read_only import ReadOnlySqliteStore

TEXTS = {
    "weather": "Look up rain, wind and sunshine before a trip. " * 20,
    "forms": "Fill in the fields of a PDF form.",
    "travel": "Book trains and hotels, and ask before you pay.",
}
ENCODE = "/retrieval/vectors.py:UnitEncoder._encode"
KEEP = "/stores/instructions/store.py:InstructionStore.keep_encodings"


class Recalls:
    """Each recall is that of a new process. `encoded` is how many units the last one encoded."""

    def __init__(self, store: DatabaseEventLog) -> None:
        self.store, self.clock = store, ManualClock()
        self.encoder = "wordllama"
        self.encoded = self.kept = 0
        # Operations of encoding one unit.
        with OperationCounter().counting() as operations:
            assert _make_set({"one": "A text."}, self.encoder).index
        self._one = operations[ENCODE]

    def recall(self, texts: Mapping[str, str] = TEXTS) -> list[tuple[str, float]]:
        encodings = KeptEncodings(self.store.instructions, lambda: int(self.clock() * 1000))
        units = _make_set(texts, self.encoder, encodings)
        with OperationCounter().counting() as operations:
            assert len(units.index) == len(texts)
        self.encoded, self.kept = operations[ENCODE] // self._one, operations[KEEP]
        return rank(units)


def rank(units: InstructionSet) -> list[tuple[str, float]]:
    return [(unit.id, unit.score) for unit in units.rank("will it rain?").units]


def _make_set(texts: Mapping[str, str], encoder: str, encodings: KeptEncodings | None = None) -> InstructionSet:
    entries = tuple(ManifestEntry(name, "", (), load_triggers=LoadTriggers((f"use {name}",))) for name in texts)
    contents = {name: UnitContent(text, 10, "stigmem") for name, text in texts.items()}
    manifest = Manifest("m", "a", "v1", "uri", 1, entries, 0, "stigmem", Provenance("ann"))
    return InstructionSet(manifest, contents, encoder=encoder, encodings=encodings)


@pytest.fixture(params=["sqlite", "postgres"])
def recalls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Recalls]:
    with open_store_of_kind(request.param, tmp_path) as store:
        yield Recalls(store)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Recalls]:
    with open_store_of_kind("sqlite", tmp_path) as store:
        yield Recalls(store)


def run_sql(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(statement)


def test_another_process_encodes_no_unit_again_and_ranks_them_the_same(recalls: Recalls) -> None:
    first = recalls.recall()
    assert recalls.encoded == len(TEXTS)
    assert recalls.recall() == first
    assert recalls.encoded == 0
    assert rank(_make_set(TEXTS, "wordllama")) == first


def test_a_changed_unit_is_the_only_one_that_is_encoded(recalls: Recalls) -> None:
    recalls.recall()
    recalls.recall({**TEXTS, "forms": "Fill in the fields of a web form."})
    assert recalls.encoded == 1


def test_other_contents_of_a_model_encode_all_units(local: Recalls, tmp_path: Path) -> None:
    for folder, encoded in ((write_model(tmp_path / "a"), 3), (tmp_path / "a", 0), (tmp_path / "b", 3)):
        if not folder.exists():
            write_model(folder, seed=1.0)
        local.encoder = str(folder)
        local.recall()
        assert local.encoded == encoded
    # Both encoders have their own vectors of a unit.
    local.encoder = f"wordllama+{tmp_path / 'a'}"
    local.recall()
    assert local.encoded == 3
    local.recall()
    assert local.encoded == 0


def test_other_code_that_reads_units_is_another_revision(tmp_path: Path) -> None:
    (tmp_path / "encoders").mkdir()
    (tmp_path / "units.py").write_text("a = 1")
    before = digest_program.__wrapped__(tmp_path)
    (tmp_path / "encoders" / "words.py").write_text("b = 1")
    assert before != digest_program.__wrapped__(tmp_path) is not None
    assert digest_program.__wrapped__(tmp_path / "an archive") is None


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE instruction_encodings SET vectors = zeroblob(length(vectors))",
        "UPDATE instruction_encodings SET vectors = substr(vectors, 1, 20)",
        "UPDATE instruction_encodings SET vectors = x''",
        "UPDATE instruction_encodings SET vectors = 'text', kept_at = 'text'",
        "UPDATE instruction_encodings SET vectors = (SELECT max(vectors) FROM instruction_encodings)",
        "DELETE FROM instruction_encodings",
    ],
)
def test_damaged_encodings_are_encoded_again(local: Recalls, tmp_path: Path, damage: str) -> None:
    before = local.recall()
    run_sql(tmp_path / "log.db", damage)
    assert local.recall() == before
    assert local.encoded >= 2
    local.recall()
    assert local.encoded == 0


def test_a_recall_works_without_a_table_of_encodings(local: Recalls, tmp_path: Path) -> None:
    before = local.recall()
    run_sql(tmp_path / "log.db", "DROP TABLE instruction_encodings")
    assert local.recall() == before
    assert local.encoded == 3


def test_a_locked_store_is_waited_for_once(local: Recalls, tmp_path: Path) -> None:
    texts = {f"unit{number}": f"Text number {number}." for number in range(500)}
    local.recall(texts)
    once = local.kept
    changed = {name: f"{text} Changed." for name, text in texts.items()}
    with closing(sqlite3.connect(tmp_path / "log.db")) as file:
        file.execute("BEGIN IMMEDIATE")
        local.recall(changed)
        assert local.encoded == 500
        assert 0 < local.kept < once / 2
        file.execute("ROLLBACK")
    local.recall(changed)
    assert local.encoded == 500
    local.recall(changed)
    assert local.encoded == 0


def test_a_store_that_is_only_read_answers_with_what_is_kept(local: Recalls, tmp_path: Path) -> None:
    local.recall()
    with ReadOnlySqliteStore(tmp_path / "log.db") as store:
        reader = Recalls(store)
        reader.recall()
        assert reader.encoded == 0
        for _ in range(2):
            reader.recall({"new": "A new text."})
            assert reader.encoded == 1


def test_encodings_that_no_recall_used_for_a_month_are_forgotten(local: Recalls, tmp_path: Path) -> None:
    local.recall()
    for _ in range(3):
        local.clock.advance(ENCODINGS_UNUSED_MS_MAX / 2_000)
        local.recall({"weather": TEXTS["weather"]})
        assert local.encoded == 0
    with closing(sqlite3.connect(tmp_path / "log.db")) as file:
        assert file.execute("SELECT count(*) FROM instruction_encodings").fetchone() == (1,)


def test_most_recalls_write_nothing(local: Recalls) -> None:
    local.recall()
    local.recall()
    assert local.kept == 0
