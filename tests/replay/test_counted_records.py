"""Which records of a transcript are counted, as `docs/audit.md` says beside ccusage."""

import csv
import re
from collections import Counter
from pathlib import Path

import pytest
from benchmarks._transcript_cases import CASES, Case, name_project, write_cases
from click.testing import CliRunner

from holdfast.cli.main import command

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """Tokens by project."""
    folder = tmp_path_factory.mktemp("cases")
    write_cases(folder)
    words = ["audit", str(folder / "projects"), "--csv", "--no-cache"]
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    tokens = Counter[str]()
    for row in csv.DictReader(result.stdout.splitlines()):
        tokens[row["project"]] += int(row["tokens"])
    return tokens


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_record_is_counted_as_the_page_says(case: Case, counted: Counter[str]) -> None:
    assert counted[name_project(CASES.index(case))] == case.tokens
    row = re.search(rf"(?m)^\| {re.escape(case.name)} \| ([\d,]+) \|", PAGE.read_text())
    assert row
    assert row[1] == str(case.tokens)
