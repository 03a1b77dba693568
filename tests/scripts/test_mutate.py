"""The mutation tool on a small project, some of whose functions are well tested and some not."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "scripts" / "mutate.py"

MODULE = '''
import functools
import logging

logger = logging.getLogger(__name__)


def is_small(number: int) -> bool:
    """Whether 10 is more."""
    return number < 10


def is_forgotten(number: int) -> bool:
    return number < 10


def is_looked_at(number: int) -> bool:
    return number < 10


@functools.cache
def limit() -> int:
    return 10


def stated(text: str) -> str:
    return text + "!"
'''

TESTS = r"""
import subprocess
import sys

from planted import is_looked_at, is_small, limit


def test_small_ends_at_ten():
    assert is_small(9) and not is_small(10)


def test_looked_at_can_be_called():
    is_looked_at(1)


def test_limit_can_be_called():
    limit()


def test_limit_is_ten():
    assert limit() == 10


def test_stated_ends_with_a_mark():
    command = [sys.executable, "-c", "from planted import stated; print(stated('a'))"]
    assert subprocess.run(command, capture_output=True, text=True, env={}).stdout == "a!\n"
"""

SETTINGS = "[pytest]\n"


def plant(root: Path, module: str, tests: str) -> None:
    for name, text in (("src/planted.py", module), ("tests/test_planted.py", tests), ("pytest.ini", SETTINGS)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def mutate(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "--root", str(root), "--jobs", "1", "--seed", "7", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_mutant_is_killed_by_the_test_that_covers_its_change(tmp_path: Path) -> None:
    plant(tmp_path, MODULE, TESTS)
    report = tmp_path / "verdicts.json"
    run = mutate(tmp_path, "--json", str(report))
    assert run.returncode == 1, run.stdout + run.stderr
    document = json.loads(report.read_text())
    found = {row["function"]: (row["status"], row["killed_by"]) for row in document["mutants"]}
    assert found == {
        "src/planted.py::is_small": ("killed", "tests/test_planted.py::test_small_ends_at_ten"),
        "src/planted.py::is_forgotten": ("untested", ""),
        "src/planted.py::is_looked_at": ("survived", ""),
        "src/planted.py::limit": ("killed", "tests/test_planted.py::test_limit_is_ten"),
        "src/planted.py::stated": ("killed", "tests/test_planted.py::test_stated_ends_with_a_mark"),
    }
    assert (document["seed"], document["killed"], document["count"], document["score"]) == (7, 3, 5, 0.6)
    assert "seed 7: 3 of 5 mutants failed a test, 60%" in run.stdout
    shown = {row["function"] for row in document["mutants"] if row["diff"] in run.stdout}
    assert shown == {"src/planted.py::is_forgotten", "src/planted.py::is_looked_at"}
    assert (tmp_path / "src" / "planted.py").read_text() == MODULE


def test_endless_mutant_is_killed(tmp_path: Path) -> None:
    module = "def wait(times):\n    while times > 0:\n        times -= 1\n"
    plant(tmp_path, module, "from planted import wait\ndef test_it():\n    wait(3)\n")
    run = mutate(tmp_path, "--patience", "1")
    assert "timed out" in run.stdout
    assert "wait arithmetic: `-` -> `+`" in run.stdout
    assert "1 of 1 mutants failed a test (1 ran out of time), 100%" in run.stdout
    assert run.returncode == 0


def test_tests_that_fail_on_the_unchanged_tree_stop_the_run(tmp_path: Path) -> None:
    plant(tmp_path, "def one():\n    return 1\n", "from planted import one\ndef test_one():\n    assert one() == 2\n")
    run = mutate(tmp_path)
    assert run.returncode == 2
    assert "the tests must be green before anything is broken" in run.stdout
    assert "FAILED tests/test_planted.py::test_one" in run.stdout


def test_tree_without_a_function_to_mutate_is_reported(tmp_path: Path) -> None:
    plant(tmp_path, "class Log:\n    def read(self): ...\n", "")
    run = mutate(tmp_path)
    assert (run.returncode, run.stdout) == (2, "there is no function to mutate\n")


def test_seed_always_draws_the_same_mutants(tmp_path: Path) -> None:
    plant(tmp_path, MODULE, TESTS)
    first, again, other = (mutate(tmp_path, "--list", "--seed", seed).stdout for seed in ("1", "1", "2"))
    assert first == again
    assert first != other
    assert len(first.splitlines()) == 5


def test_requested_number_of_functions_is_drawn(tmp_path: Path) -> None:
    plant(tmp_path, MODULE, TESTS)
    assert len(mutate(tmp_path, "--list", "--count", "2").stdout.splitlines()) == 2
    assert mutate(tmp_path, "--list", "--only", "limit").stdout.startswith("src/planted.py:23 limit ")


def changes(line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every replacement of this line by a mutant of a function that contains it."""
    monkeypatch.syspath_prepend(TOOL.parent)
    mutants = importlib.import_module("mutants")
    text = f"async def f(a, b):\n    a = 0\n    {line}\n    done\n"
    ((function, node),) = mutants.functions_of("m.py", text)
    found = [mutant for mutant in mutants.mutants_of(function, node, text) if mutant.line == 3]
    assert all(mutants.compiles(mutant.apply(text)) for mutant in found)
    return [mutant.apply(text).split("\n")[2].strip() for mutant in found]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a < b", ["a <= b", "a >= b"]),
        ("a is not b", ["a is b"]),
        ("(a) not  in b == é", ["(a) in b == é", "(a) not  in b != é"]),
        ("a + b", ["a - b"]),
        ("a **= b", ["a *= b", "pass"]),
        ("a and b or c", ["a and b and c", "a or b or c"]),
        ("not (a)", ["(a)"]),
        ("if a: b", ["if not (a): b"]),
        ("[x for x in a if x]", ["[x for x in a if not (x)]"]),
        ("a if not b else c", ["a if b else c"]),
        ("x = True", ["x = False"]),
        ("x = 1.5", ["x = 2.5"]),
        ("x = 'é', b'y'", ["x = 'XXé', b'y'", "x = 'é', b'XXy'"]),
        ("return a", ["return None"]),
        ("yield a", ["yield None"]),
        ("return", ["pass"]),
        ("a = b", ["pass"]),
        ("a.c = b", ["pass"]),
        ("del a[b]", ["pass"]),
        ("await a(b, c, d)", ["pass", "await a(c, b, d)"]),
        ("raise A(b, 'kind') from c", ["pass", "raise A('kind', b) from c", "raise A(b, 'XXkind') from c"]),
    ],
)
def test_line_is_mutated_in_every_way_a_test_could_notice(
    line: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert changes(line, monkeypatch) == expected


@pytest.mark.parametrize(
    "line",
    [
        "x = b",
        "del a",
        "pass",
        "return None",
        "'a docstring'",
        "f'{a + 1} text'",
        "logger.warning('text %d', 1)",
        "x = max(a, b)",
        "x: dict[str, 'A | B'] = b",
        "assert a, 'text'",
        "def g(x: 'A') -> 'B': ...",
    ],
)
def test_details_no_test_should_depend_on_are_not_mutated(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert changes(line, monkeypatch) == []


def test_error_wording_is_not_mutated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changes("raise UserError('say it better', f'{a}')", monkeypatch)[0] == "pass"
    assert not [line for line in changes("raise UserError('say it better')", monkeypatch) if "XX" in line]
