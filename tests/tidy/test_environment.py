"""The environment of every test: an empty home, no user's keys, checked goldens, empty databases."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.goldens import check_golden
from tests.support.postgres_server import reused_database, run

PLANTED = """
import os
from hypothesis import settings

def test_it():
    assert not [name for name in os.environ if name.startswith(("ANTHROPIC_", "OPENAI_", "HOLDFAST_MODEL"))]
    assert settings.default.derandomize
    assert os.environ["HOLDFAST_GOLDEN"] == "kept"
"""


def test_tests_get_no_keys_and_no_randomness_of_the_user(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    (tmp_path / "conftest.py").write_bytes((tests / "conftest.py").read_bytes())
    (tmp_path / "test_planted.py").write_text(PLANTED)
    lent = {"ANTHROPIC_API_KEY": "k", "OPENAI_BASE_URL": "u", "HOLDFAST_MODEL": "m", "HOLDFAST_GOLDEN": "kept"}
    environment = {name: value for name, value in os.environ.items() if name != "HYPOTHESIS_PROFILE"} | lent
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    run = subprocess.run(
        command,
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": os.pathsep.join((str(tests.parent), str(tests.parent / "src")))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_home_is_an_empty_folder() -> None:
    assert list(Path.home().iterdir()) == []


def test_holdfast_home_is_inside_home_and_not_created_yet() -> None:
    home = Path(os.environ["HOLDFAST_HOME"])
    assert home.is_relative_to(Path.home())
    assert not home.exists()


def test_differing_golden_shows_the_difference(tmp_path: Path) -> None:
    path = tmp_path / "reply.json"
    path.write_bytes(b"same\nagreed\n")
    with pytest.raises(AssertionError, match=r"make golden[\s\S]*-agreed\n\+other"):
        check_golden(path, b"same\nother\n")


def test_missing_golden_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"no new\.json yet"):
        check_golden(tmp_path / "new.json", b"x")


def test_golden_is_written_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_GOLDEN", "write")
    check_golden(tmp_path / "deep" / "new.json", b"x")
    monkeypatch.delenv("HOLDFAST_GOLDEN")
    check_golden(tmp_path / "deep" / "new.json", b"x")


def test_reused_database_is_empty_for_the_next_test() -> None:
    with reused_database() as url:
        before = [
            run(url, f"SELECT * FROM holdfast.{table} ORDER BY 1") for table in ("ledger", "versions", "settings")
        ]
        run(url, "DELETE FROM holdfast.ledger", "INSERT INTO holdfast.settings VALUES ('a', '1')")
    with reused_database() as again:
        assert again == url
        assert [
            run(url, f"SELECT * FROM holdfast.{table} ORDER BY 1") for table in ("ledger", "versions", "settings")
        ] == before


@pytest.mark.parametrize("change", ["DROP TABLE holdfast.charges", "CREATE SEQUENCE tries"])
def test_database_with_changed_tables_is_not_reused(change: str) -> None:
    with reused_database() as url:
        run(url, change)
    with reused_database() as another:
        assert another != url
