"""The checks of the tree find every offender and nothing else."""

import subprocess
import time
from pathlib import Path

import pytest
from benchmarks._results import read_sections, update_marks

from tests.tidy.checks import code, documents, figures, public_api, readme

PYPROJECT = """
[project]
name = "holdfast"
version = "1.2.3"
scripts = { holdfast = "holdfast.cli:main" }

[project.optional-dependencies]
server = []

[[tool.importlinter.contracts]]
type = "layers"
layers = ["near | (far)", "clock"]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def plant(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_module_can_have_600_lines_and_not_one_more(root: Path) -> None:
    plant(root, "src/holdfast/fits.py", "x = 1\n" * 600)
    plant(root, "src/holdfast/deep/long.py", "x = 1\n" * 601)
    assert code.long_modules(root) == ["src/holdfast/deep/long.py: 601 lines, at most 600"]


def test_function_can_have_80_lines_and_not_one_more(root: Path) -> None:
    plant(root, "src/holdfast/fits.py", "def fits():\n" + "    x = 1\n" * 79)
    plant(root, "src/holdfast/long.py", "class A:\n    async def long(self):\n" + "        x = 1\n" * 80)
    assert code.long_functions(root) == ["src/holdfast/long.py:2 long: 81 lines, at most 80"]


@pytest.mark.parametrize(
    ("pattern", "is_found"),
    [
        (r"\bsk-[\w-]{8,}", True),
        (r"\b(?:AKIA|ASIA)\w+", True),
        (r"://\S+:\S+@", True),
        (r"\w{8,}", False),
    ],
)
def test_a_second_list_of_secret_patterns_is_seen(root: Path, pattern: str, is_found: bool) -> None:
    plant(root, "src/holdfast/redaction.py", f"import re\nre.compile({pattern!r})\n")
    assert code.second_secret_patterns(root) == []
    plant(root, "src/holdfast/other.py", f"import re\nre.compile({pattern!r})\n")
    assert bool(code.second_secret_patterns(root)) == is_found


@pytest.mark.parametrize(
    ("lines", "importers", "is_found"),
    [
        (59, ("engine/loop.py",), True),
        (60, ("engine/loop.py",), False),
        (59, ("engine/loop.py", "engine/turn.py"), False),
        (59, ("cli/main.py",), False),
        (59, (), False),
    ],
)
def test_short_module_with_one_importer_in_its_folder_is_found(
    root: Path, lines: int, importers: tuple[str, ...], is_found: bool
) -> None:
    plant(root, "src/holdfast/engine/state.py", "x = 1\n" * lines)
    for importer in importers:
        plant(root, f"src/holdfast/{importer}", "def load():\n    from holdfast.engine.state import x\n")
    assert [line.split(":")[0] for line in code.tiny_single_importer_modules(root)] == (
        ["src/holdfast/engine/state.py"] if is_found else []
    )


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("def mend_surrogates(): ...", 1),
        ("class HeedsControls: ...", 1),
        ("def load(told): ...", 1),
        ("dearest_call = 1", 1),
        ("def untold(stolen, tolded): ...", 0),
        ("recommend, amended, manned = 1, 2, 3", 0),
    ],
)
def test_name_with_a_retired_word_is_found(root: Path, text: str, count: int) -> None:
    plant(root, "src/holdfast/names.py", text)
    assert len(code.retired_identifiers(root)) == count


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("test_a.py", "def test_whoever_asks_is_told(): ...", ["1 told", "1 whoever"]),
        ("test_a.py", "class Talk: ...\n\ndef load(scroll): ...", ["1 talk", "3 scroll"]),
        ("test_a.py", '"""The spelled request."""\n\nx = 1\n"""Heard twice."""', ["1 spelled", "4 heard"]),
        ("test_a.py", "x = 1  # Nobody waits.", ["1 nobody"]),
        ("test_a.py", 'x = "nobody was told"  # Quotes "told".', []),
        ("README.md", "One.\nTwo lifetimes.", ["2 lifetimes"]),
        ("two_lifetimes.json", '{"told": 1}', ["0 lifetimes"]),
    ],
)
def test_retired_word_in_a_clean_folder_is_found(root: Path, name: str, text: str, words: list[str]) -> None:
    plant(root, f"tests/clean/{name}", text)
    plant(root, "tests/clean_not/test_b.py", "told = 1")
    assert code.retired_words_in(root, ("tests/clean",)) == [f"tests/clean/{name}:{word}" for word in words]


@pytest.mark.parametrize(
    ("signature", "found"),
    [
        ("a, b, c, d", 0),
        ("self, a, b, c, d", 0),
        ("cls, a, b, c, d, *, e, f", 0),
        ("a, b, c, d, e", 1),
        ("a, b, /, c, d, e=1", 1),
        ("self, a, b, c, d, e", 1),
    ],
)
def test_four_parameters_can_be_positional(root: Path, signature: str, found: int) -> None:
    plant(root, "src/holdfast/calls.py", f"def call({signature}): ...\n")
    assert len(code.crowded_signatures(root)) == found


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ('"""Where prefixes broke."""\n', ""),
        ('"""Which?\n\nA rule that the types cannot say, and another. Both are\nlong.\n"""\n', ""),
        (f'"""{"x" * 119}. More."""\n', ""),
        (f'"""{"x" * 120}."""\n', "over 120 characters"),
        ('"""A sentence that goes\non."""\n', "does not end on its line"),
        ("x = 1\n", "no docstring"),
        ("", "no docstring"),
    ],
)
def test_module_without_a_short_first_sentence_is_found(root: Path, text: str, trouble: str) -> None:
    plant(root, "src/holdfast/module.py", text)
    found = code.unexplained_modules(root)
    assert [trouble in line for line in found] == ([True] if trouble else [])


@pytest.mark.parametrize(
    "name",
    ["SessionManager", "cache_helper", "HelperTable", "StringUtils", "LogImpl", "store_util"],
)
def test_vague_name_is_found(root: Path, name: str) -> None:
    plant(root, "src/holdfast/classes.py", f"class {name}: ...\n")
    plant(root, "src/holdfast/functions.py", f"def {name}(): ...\n")
    assert [line.split()[0] for line in code.vague_names(root)] == [
        "src/holdfast/classes.py:1",
        "src/holdfast/functions.py:1",
    ]


@pytest.mark.parametrize("name", ["Base64Source", "RequestHandler", "Session", "utility", "Database", "simplify"])
def test_name_that_only_resembles_a_vague_one_is_allowed(root: Path, name: str) -> None:
    plant(root, "src/holdfast/names.py", f"class {name}: ...\n")
    assert code.vague_names(root) == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("assert f()", 0),
        ("with pytest.raises(ValueError): f()", 0),
        ("check_golden(f())", 0),
        ("f()", 1),
        ("raise_nothing()", 1),
        ("'assert'", 1),
    ],
)
def test_that_asserts_nothing_is_found(root: Path, body: str, found: int) -> None:
    plant(root, "tests/engine/test_planted.py", f"def test_it():\n    {body}\n\ndef other():\n    f()\n")
    assert len(code.tests_without_assertion(root)) == found


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("see /" + "work/notes", "a path of one machine"),
        ("open('/" + "root/x')", "a path of one machine"),
        ("pip --index-" + "url x", "an index address"),
        ("https://packages.example/simp" + "le", "an index address"),
        ("# TO" + "DO: later", "a note to self"),
        ("X" + "XX", "a note to self"),
        ("framework/notes ./" + "work/x, a simple todolist", ""),
    ],
)
def test_text_of_one_machine_is_found_in_any_file(root: Path, text: str, what: str) -> None:
    plant(root, "notes/page.txt", f"first line\n{text}\n")
    found = code.foreign_text(root)
    assert [line.split(": ")[:2] for line in found] == ([["notes/page.txt:2", what]] if what else [])


def test_files_that_git_ignores_are_not_checked(root: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    plant(root, ".gitignore", "made/\n")
    plant(root, "made/log.txt", "TO" + "DO\n")
    plant(root, "kept.txt", "TO" + "DO\n")
    assert [line.split(":")[0] for line in code.foreign_text(root)] == ["kept.txt"]


def test_tool_output_is_not_checked_without_git(root: Path) -> None:
    plant(root, ".venv/lib/x.py", "TO" + "DO\n")
    plant(root, "kept.txt", "TO" + "DO\n")
    assert [line.split(":")[0] for line in code.foreign_text(root)] == ["kept.txt"]


def plant_packages(root: Path, *, table: str) -> None:
    plant(root, "pyproject.toml", PYPROJECT)
    plant(root, "src/holdfast/__init__.py", "")
    plant(root, "src/holdfast/clock.py", "")
    plant(root, "src/holdfast/near/__init__.py", "")
    for name in ("docs/architecture.md", "AGENTS.md"):
        plant(root, name, f"# A page\n\n| other | table |\n| --- | --- |\n| ghost | x |\n\n{table}")


def test_packages_named_everywhere_are_no_offence(root: Path) -> None:
    plant_packages(root, table="| package | answers |\n| --- | --- |\n| `near` | what |\n| (far) | later |\n")
    assert documents.unmapped_packages(root) == []


def test_undocumented_package_is_found_in_each_document(root: Path) -> None:
    plant_packages(root, table="")
    assert documents.unmapped_packages(root) == [
        "near is not in the package table of docs/architecture.md",
        "near is not in the package table of AGENTS.md",
    ]


def test_package_missing_from_the_import_contract_is_found(root: Path) -> None:
    plant_packages(root, table="| package | |\n| --- | --- |\n| near | |\n| new | |\n")
    plant(root, "src/holdfast/new/__init__.py", "")
    assert documents.unmapped_packages(root) == ["new is not in the import contract in pyproject.toml"]


def test_documented_package_that_does_not_exist_is_found(root: Path) -> None:
    plant_packages(root, table="| package | |\n| --- | --- |\n| near | |\n| gone | |\n")
    found = documents.unmapped_packages(root)
    assert found[0] == "gone is in the package table of docs/architecture.md, but not in src/holdfast"
    assert len(found) == 2


def test_bracketed_package_that_exists_is_found(root: Path) -> None:
    plant_packages(root, table="| package | |\n| --- | --- |\n| near | |\n| far | |\n")
    plant(root, "src/holdfast/far/__init__.py", "")
    assert documents.unmapped_packages(root) == [
        "far exists: take it out of its brackets in the import contract in pyproject.toml"
    ]


def test_index_and_its_mirror_list_the_existing_pages(root: Path) -> None:
    plant(root, "docs/one.md", "# One")
    plant(root, "docs/decisions/0001-a.md", "# A")
    plant(root, "docs/README.md", "[One](one.md#there), [Decisions](decisions/)")
    plant(root, "docs/AGENTS.md", "[Two](two.md), [Decisions](decisions/), [the index](README.md)")
    assert documents.unlisted_pages(root) == [
        "one.md is not in docs/AGENTS.md",
        "two.md is in docs/AGENTS.md, but does not exist",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x" * 15_000, []),
        ("x" * 15_001, ["docs/a/page.md: 15001 bytes, at most 15000"]),
        ("```text\n" + "x" * 15_000 + "\n```\n", ["docs/a/page.md: 15013 bytes, at most 15000"]),
        ("x" * 14_999 + "<!-- result: turn / a -->1<!-- end -->", []),
    ],
)
def test_page_has_at_most_15_kb_with_its_code_and_without_its_comments(root: Path, text: str, found: list[str]) -> None:
    plant(root, "docs/a/page.md", text)
    plant(root, "docs/clients.md", "x" * 20_000)
    assert documents.long_pages(root) == found


@pytest.mark.parametrize(
    ("lines", "found"),
    [(100, []), (101, ["AGENTS.md: 101 lines, at most 100"]), (0, ["AGENTS.md is missing or empty"])],
)
def test_contributor_page_has_at_most_100_lines(root: Path, lines: int, found: list[str]) -> None:
    plant(root, "AGENTS.md", "line\n" * lines)
    assert documents.long_agents_page(root) == found


def test_contributor_page_can_name_files_of_the_tree_and_the_package(root: Path) -> None:
    plant(root, "src/holdfast/clock.py", "")
    plant(root, "docs/decisions/0001-x.md", "")
    plant(root, "AGENTS.md", "`clock.py` `docs/decisions/NNNN-*.md` `docs/` `cli/<name>.py` `make test` `*_max`")
    assert documents.broken_paths(root) == []
    plant(root, "AGENTS.md", "`cli/gone.py` and `tests/`")
    assert documents.broken_paths(root) == ["AGENTS.md: there is no cli/gone.py", "AGENTS.md: there is no tests/"]


def test_makefile_has_at_most_12_targets_and_variables_do_not_count(root: Path) -> None:
    twelve = ".PHONY: a\nX := 1\nY = a:b\n.venv/.dev: x\n\ttouch x\n" + "".join(f"t{n}: a\n" for n in range(11))
    plant(root, "Makefile", twelve)
    assert documents.crowded_makefile(root) == []
    plant(root, "Makefile", twelve + "one-more:\n")
    assert documents.crowded_makefile(root)[0].startswith("Makefile: 13 targets, at most 12: .venv/.dev, t0")


def test_missing_makefile_is_found(root: Path) -> None:
    assert documents.crowded_makefile(root) == ["Makefile is missing or has no target"]


def test_requirement_without_an_existing_test_is_found(root: Path) -> None:
    plant(root, "tests/engine/test_a.py", "async def test_it(): ...\n\nclass T:\n    def test_hidden(self): ...\n")
    rows = (
        "| shown | `tests/engine/test_a.py::test_it` |\n"
        "| unproven | |\n"
        "| wrong name | `tests/engine/test_a.py::test_hidden` |\n"
        "| wrong file | `tests/engine/test_b.py::test_it` |\n"
    )
    plant(root, "tests/specification.md", f"# S\n\n| what | shown by |\n| --- | --- |\n{rows}")
    assert documents.unproven_requirements(root) == [
        "tests/specification.md: names no test: | unproven | |",
        "tests/specification.md: there is no tests/engine/test_a.py::test_hidden",
        "tests/specification.md: there is no tests/engine/test_b.py::test_it",
    ]


def test_specification_without_rows_is_found(root: Path) -> None:
    plant(root, "tests/specification.md", "# S\n\n| what | shown by |\n| --- | --- |\n")
    assert documents.unproven_requirements(root) == ["tests/specification.md is missing or has no rows"]


WHOLE_DECISION = "# T\n\n## Decision\n\n## Why\n\n## Rejected\n\n## What would change our mind\n"


def test_decision_with_a_number_gap_or_missing_heading_is_found(root: Path) -> None:
    plant(root, "docs/decisions/0001-first.md", WHOLE_DECISION)
    plant(root, "docs/decisions/0003-third.md", WHOLE_DECISION.replace("## Why", "## Because"))
    assert documents.disordered_decisions(root) == [
        "docs/decisions/0003-third.md: expected 0002-<words-with-hyphens>.md here",
        "docs/decisions/0003-third.md: no heading '## Why'",
    ]


def test_missing_decisions_are_found(root: Path) -> None:
    assert documents.disordered_decisions(root) == ["docs/decisions holds no decision"]


@pytest.mark.parametrize(
    ("changelog", "trouble"),
    [
        ("# Changelog\n\n## 1.2.3\n\n- x\n", ""),
        ("## [1.2.3] - a date\n", ""),
        ("## 1.2.4\n\n## 1.2.3\n", "'1.2.4', the version is 1.2.3"),
        ("## 11.2.3\n", "'11.2.3'"),
        ("", "missing or has no section"),
    ],
)
def test_newest_changelog_section_is_this_version(root: Path, changelog: str, trouble: str) -> None:
    plant(root, "pyproject.toml", PYPROJECT)
    plant(root, "CHANGELOG.md", changelog)
    assert [trouble in line for line in documents.stale_changelog(root)] == ([True] if trouble else [])


@pytest.mark.parametrize(
    ("attribute", "command", "found"),
    [
        ("1.2.3", "1.2.3", []),
        ("1.2.2", "1.2.3", ["holdfast.__version__ is '1.2.2', pyproject.toml says '1.2.3'"]),
        ("1.2.3", "1.2.4", ["holdfast --version is '1.2.4', pyproject.toml says '1.2.3'"]),
    ],
)
def test_differing_versions_are_found(root: Path, attribute: str, command: str, found: list[str]) -> None:
    plant(root, "pyproject.toml", PYPROJECT)
    plant(root, "src/holdfast/__init__.py", f"__version__ = {attribute!r}\n")
    plant(root, "src/holdfast/cli.py", f"def main():\n    print('holdfast, version {command}')\n")
    assert public_api.differing_versions(root) == found


PACKAGE = '''
__all__ = ["Session", "limit", "run"]
limit = 3

class Session(Exception):
    """Doc."""
    name: str = "x"
    def __init__(self, model: str, *, store: object = None) -> None: ...
    @property
    async def usage(self) -> int: ...
    def _hidden(self): ...

def run(a, b=1) -> int: ...
def private(): ...
'''

PAGE = """\
class Session(Exception)
    name: str = 'x'
    def __init__(self, model: str, *, store: object=None) -> None
    @property async def usage(self) -> int
limit: int
def run(a, b=1) -> int
"""


def test_api_snapshot_has_a_line_for_every_public_name_and_member(root: Path) -> None:
    plant(root, "src/holdfast/__init__.py", PACKAGE)
    assert public_api.public_api(root) == PAGE


def test_changed_signature_differs_from_the_api_snapshot(root: Path) -> None:
    plant(root, "src/holdfast/__init__.py", PACKAGE.replace("b=1", "b=2"))
    plant(root, "tests/tidy/public_api.txt", PAGE)
    assert public_api.unrecorded_names(root) == ["-def run(a, b=1) -> int", "+def run(a, b=2) -> int"]


def test_package_without_exports_is_found(root: Path) -> None:
    plant(root, "src/holdfast/__init__.py", "x = 1\n")
    assert "exports nothing" in public_api.unrecorded_names(root)[0]


def troubles_of(root: Path, language: str, text: str) -> list[str]:
    plant(root, "pyproject.toml", PYPROJECT)
    plant(root, "src/holdfast/__init__.py", "answer = 42\n")
    plant(
        root,
        "Makefile",
        "BIN := .venv/bin\n\nall: x\n\techo $(BIN)/made\n\ndemo: .venv\n\t@$(BIN)/echo played\n",
    )
    plant(root, "README.md", f"# R\n\n```{language}\n{text}\n```\n")
    return readme.broken_blocks(root)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "import holdfast; assert holdfast.answer == 42"),
        ("bash", 'test -z "$(ls -A "$HOME")"\npython -c "import holdfast"'),
        ("bash", "git clone https://example.org/x\nmake demo"),
        ("console", "$ echo a; echo b\na\nb"),
        ("console", "$ cd ..\n$ x=5\n$ echo $x \\\n  six\n5 six"),
        ("console", "$ seq 9\n1\n...\n9"),
        ("console", "$ echo took 3.2 s, cost 5\ntook ... s, cost 5"),
        ("console", "$ ls nowhere\nls: ...nowhere...: No such file or directory"),
        ("console", "$ make demo\nplayed"),
        ("console", "$ pip install 'holdfast-context[server]'\n$ make all"),
        ("bash", "systemctl enable x\npodman run y"),
    ],
)
def test_block_with_the_stated_output_is_no_offence(root: Path, language: str, text: str) -> None:
    assert troubles_of(root, language, text) == []


@pytest.mark.parametrize(
    ("language", "text", "trouble"),
    [
        ("python", "import holdfast; holdfast.question", "no attribute 'question'"),
        ("bash", "false\ntrue", "ends with status 1"),
        ("bash", "make demo\nmake gold", "no target 'gold'"),
        ("bash", "pip install 'holdfast-context[server, moon]'", "no extra 'moon'"),
        ("bash", "pip install . -c constraints.txt", "no file 'constraints.txt'"),
        ("bash", "podman compose -f deploy/compose.yaml up", "there is no 'deploy/compose.yaml'"),
        ("console", "$ echo a\nb", "`echo a` prints\na\n\nand not\nb"),
        ("console", "$ seq 3\n1\n3", "`seq 3` prints"),
        ("console", "$ seq 3\n1\n2", "`seq 3` prints"),
        ("console", "$ echo took 3 s, cost 5\ntook ... s, cost 4", "cost 5"),
        ("console", "$ ls nowhere", "ends with status 2"),
        ("console", "$ exit 3", "ends before its last command has"),
        ("console", "echo a", "begins with `$ `"),
        ("console", "$ make demo\nworked", "prints\nplayed"),
        ("sh", "true", "'sh' is not run"),
        ("", "true", "'' is not run"),
        ("json", "{}", "no block to run"),
    ],
)
def test_block_with_another_output_is_found(root: Path, language: str, text: str, trouble: str) -> None:
    found = troubles_of(root, language, text)
    assert len(found) == 1
    assert trouble in found[0]


def test_offending_block_is_named_by_its_line(root: Path) -> None:
    assert troubles_of(root, "python", "raise SystemExit(7)") == ["README.md:3: ends with status 7:\n"]


@pytest.mark.parametrize(
    ("lines", "shown", "found"),
    [
        (9, "5\n", []),
        (10, "5\n", ["takes 11 lines to type, at most 10"]),
        (1, "", ["shows no output"]),
    ],
)
def test_start_that_is_long_or_shows_nothing_is_found(root: Path, lines: int, shown: str, found: list[str]) -> None:
    block = f"```python\n# a.py\n\n{'x = 1' + chr(10)}".replace("x = 1\n", "x = 1\n\n" * lines) + "```\n"
    start = f"{block}```console\n$ python a.py\n{shown}```\n"
    titles = readme.README_SECTIONS
    parts = [start if title == titles[2] else "```console\n$ x\n1\n```\n" for title in titles]
    sections = [f"\n## {title}\n\n{part}" for title, part in zip(titles, parts, strict=True)]
    plant(root, "README.md", "# H\n" + "".join(sections))
    assert [offender.partition("' ")[2] for offender in readme.long_starts(root)] == found
    plant(root, "README.md", "# H\n" + "".join(reversed(sections)))
    assert len(readme.long_starts(root)) == 1


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("A line.\n\n    holdfast audit\n    holdfast report\n", [3]),
        ("A line.\n\n\tholdfast audit\n", [3]),
        ("```text\n$ holdfast audit\n```\n\n    x\n", [1, 5]),
        ("```text\nspent $1\n\n    4 spaces\n```\n", []),
        ("- An item\n    goes on.\n\n```console\n$ true\n```\n", []),
    ],
)
def test_block_that_nothing_runs_is_found(root: Path, text: str, lines: list[int]) -> None:
    plant(root, "docs/page.md", text)
    found = [int(offender.split(":")[1]) for offender in readme.hidden_blocks(root, "docs/page.md")]
    assert sorted(found) == lines


def has_ended(pid: int, *, within_seconds: float) -> bool:
    """Whether a killed process ended in time; one that no parent reaps stays as a zombie."""
    state = Path(f"/proc/{pid}/stat")
    deadline = time.monotonic() + within_seconds
    while time.monotonic() < deadline:
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


def test_processes_of_a_block_end_with_it(root: Path) -> None:
    assert troubles_of(root, "console", "$ sleep 600 &\n$ echo $! > " + str(root / "pid")) == []
    pid = (root / "pid").read_text().strip()
    assert has_ended(int(pid), within_seconds=10)


def test_endless_block_is_stopped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readme, "BLOCK_SECONDS_MAX", 0.2)
    assert "ends with status -9" in troubles_of(root, "bash", "sleep 600")[0]


def test_dependency_without_a_row_and_row_without_a_dependency_are_found(root: Path) -> None:
    plant(
        root,
        "pyproject.toml",
        """
[build-system]
requires = ["hatchling>=1.27"]
[project]
dependencies = ["msgspec>=0.22", "PyYAML>=6"]
[project.optional-dependencies]
semantic = ["uvloop>=0.22; sys_platform != 'win32'", "psycopg[binary]>=3.3"]
""",
    )
    page = ["| `hatchling` | builds |", "| `pyyaml` | reads |", "| `uvloop` | runs |", "| `psycopg` | stores |"]
    page += ["| `gone` | nothing |", "| rich | mdurl (MIT, 4), typing_extensions (PSF-2.0, 1,052), old (MIT, 1) |"]
    plant(root, "docs/dependencies.md", "\n".join(page))
    plant(root, "constraints.txt", "mdurl==1\ntyping-extensions==4\nh11==1\nmsgspec==1\nPyYAML==6\n")
    assert documents.unexplained_dependencies(root) == [
        "msgspec has no row in docs/dependencies.md",
        "docs/dependencies.md: nothing requires gone",
        "h11 is pinned, but not in docs/dependencies.md",
        "msgspec is pinned, but not in docs/dependencies.md",
        "docs/dependencies.md: old is not pinned",
    ]


RESULTS = """# Results

## turn

2026-11-18, Linux

- holdfast, 10 messages: 2.9 ms, 2.5 ms of processor time
- sdk 2.10.0, 10 messages: 1,701.5 ms, 1.8 ms of processor time
- sdk 2.10.0, 100 messages: not measured
- sum: of all: 7 ms
"""


@pytest.mark.parametrize(
    ("quoted", "problem"),
    [
        ("<!-- result: turn / holdfast, 10 messages -->2.9 ms<!-- end -->", ""),
        ("<!-- result: turn / holdfast, 10 messages #2 -->about 2.5<!-- end -->", ""),
        ("<!-- result: turn / sdk *, 10 messages -->1,701.5 ms<!-- end -->", ""),
        ("<!-- result: turn / sum: of all -->7 ms<!-- end -->", ""),
        ("<!-- result: turn / holdfast, 10 messages -->3 ms<!-- end -->", "3, but 2.9 in RESULTS.md"),
        ("<!-- result: turn / holdfast, 10 messages -->2.9 to 3 ms<!-- end -->", "one number can be quoted"),
        ("<!-- result: turn / holdfast, 10 messages #3 -->3 ms<!-- end -->", "has no number 3"),
        ("<!-- result: turn / sdk *, 100 messages -->3 ms<!-- end -->", "has no number 1"),
        ("<!-- result: turn / sdk* -->3 ms<!-- end -->", "has 2 rows"),
        ("<!-- result: turn / holdfast -->3 ms<!-- end -->", "has 0 rows"),
        ("<!-- result: nothing / holdfast -->3 ms<!-- end -->", "no section 'nothing'"),
        ("<!-- result: turn / holdfast, 10 messages -->2.9 ms", "a mark without its pair"),
        ("\n<!-- result: turn / sum: of all -->7 ms<!-- end -->", "a line starts with a mark"),
    ],
)
def test_figure_that_differs_from_the_results_is_found(root: Path, quoted: str, problem: str) -> None:
    plant(root, "benchmarks/RESULTS.md", RESULTS)
    plant(root, "README.md", f"It takes {quoted}.")
    offenders = figures.stale_figures(root)
    assert len(offenders) == bool(problem)
    assert all(problem in offender for offender in offenders)


def test_figures_are_updated_from_the_results_and_unknown_ones_stay() -> None:
    page = "<!-- result: turn / sdk*, 10 messages -->1 ms<!-- end -->, <!-- result: other / row -->1 ms<!-- end -->"
    assert update_marks(page, read_sections(RESULTS)) == page.replace("1 ms", "1,701.5 ms", 1)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A turn takes 3 ms.", ["'3 ms'"]),
        (
            "It took 1.15 to 1.94 ms, 40 % and 1,200 calls a second.",
            ["'1.15 to 1.94 ms'", "'40 %'", "'1,200 calls a second'"],
        ),
        ("A turn takes <!-- result: turn / a -->3 ms<!-- end -->.", []),
        ("```console\n$ turn\n3 ms\n```\n`--wait 3 ms`, 12 s and 2 KB, version 2 msgs, $3 times", []),
    ],
)
def test_measured_figure_without_a_mark_is_found(root: Path, text: str, found: list[str]) -> None:
    plant(root, "README.md", text)
    assert figures.unmarked_figures(root) == [f"README.md:1: {figure} is not marked" for figure in found]


def test_stated_figure_is_none_that_was_measured_and_has_to_be_there(root: Path) -> None:
    plant(root, "README.md", "")
    plant(root, "docs/service.md", "A notice comes at 80 % or more of a key's budget.")
    assert figures.unmarked_figures(root) == []
    plant(root, "docs/service.md", "A notice comes.")
    assert figures.unmarked_figures(root) == [
        'docs/service.md: does not say "80 % or more of a key\'s budget" any more: take it out of STATED'
    ]
