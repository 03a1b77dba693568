"""The limits of scripts/tree_report.py hold, and each of its measures can fail."""

from pathlib import Path

import pytest

from tree_report import Measure, Walk, static_measures, walk_measures, walk_one_send

LINES = "lines in all Python files of src/holdfast"
# The one limit that is not met: removing what is duplicated or unused does not reach it. Strict, so that this mark has
# to go as soon as the limit holds.
NOT_MET_YET = pytest.mark.xfail(
    reason="103,000 lines, 20,000 of them features that came later; 75,000 wanted", strict=True
)


@pytest.mark.parametrize(
    "measure",
    [
        pytest.param(measure, id=measure.name, marks=NOT_MET_YET if measure.name == LINES else ())
        for measure in static_measures()
    ],
)
def test_tree_stays_within_its_limits(measure: Measure) -> None:
    assert measure.holds, "\n".join((f"{measure.value:g}, limit {measure.limit:g}", *measure.where[:50]))


@pytest.fixture(scope="module")
def walk() -> Walk:
    return walk_one_send()


def test_one_send_visits_few_files_in_few_frames(walk: Walk) -> None:
    missed = [measure for measure in walk_measures(walk) if not measure.holds]
    assert not missed, "\n".join(f"{measure.name}: {measure.value:g}: {measure.where}" for measure in missed)


def test_walk_reaches_the_transport(walk: Walk) -> None:
    assert "providers/transport.py" in walk.files
    assert walk.frames[0].startswith("engine/")


def test_entering_a_file_twice_is_a_cycle() -> None:
    assert Walk(frozenset(), ("a.py", "a.py", "b.py")).cycles == ()
    assert Walk(frozenset(), ("a.py", "b.py", "a.py")).cycles == ("a.py",)


PLANTED = {
    "functions named by a bare participle": {
        "src/holdfast/a.py": "def _told(): ...\nclass A:\n    def kept(self): ...\n"
    },
    "public names defined in more than one module": {
        "src/holdfast/a.py": "def load(): ...\nclass X: ...\ndef _private(): ...\n",
        "src/holdfast/b.py": "def load(): ...\nclass X: ...\ndef _private(): ...\n",
    },
    "retired words in src, docs and README": {"docs/a.md": "It was mended.\n", "README.md": "Told once.\n"},
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_offenders_are_counted(name: str, tmp_path: Path) -> None:
    for path, text in {"src/holdfast/other.py": "", "README.md": "", **PLANTED[name]}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    counts = {measure.name: measure.value for measure in static_measures(tmp_path)}
    assert counts[name] == 2
