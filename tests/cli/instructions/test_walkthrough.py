"""The walkthrough of docs/instructions.md and docs/instructions-rollout.md, command by command."""

import re
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.postgres_server import reused_database

from holdfast.cli.main import command
from holdfast.clock import ManualClock

DOCS = Path(__file__).parents[3] / "docs"
PAGES = (DOCS / "instructions.md", DOCS / "instructions-rollout.md")
# Of a block of bash: tests/conformance/test_instructions_walkthrough.py runs it, with Claude Code.
KINDS = {"bash": 1, "markdown": 1, "json": 1, "python": 1}
BLOCK = re.compile(r"(?:<!-- (?P<mark>[a-z]+): (?P<count>\d+)[^>]*-->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.S)


class Walker:
    def __init__(self, folder: Path, db: str) -> None:
        self.clock = ManualClock(time.time())
        self.environ = {"HOLDFAST_HOME": str(folder / "home"), "HOLDFAST_DB": db}
        self.token = ""

    def run(self, line: str) -> str:
        words = shlex.split(line.replace("$TOKEN", self.token))
        assert words[0] == "holdfast"
        result = CliRunner().invoke(command, words[1:], env=self.environ, obj=self.clock)
        failed = result.exception is not None and not isinstance(result.exception, SystemExit)
        output = f"holdfast: {result.exception}" if failed else result.output
        match = re.search(r"audi_\w+", output)
        self.token = match[0] if match else self.token
        return output


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command with the lines that the page says it prints."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        line, *printed = part.rstrip("\n").split("\n")
        yield line, printed


@pytest.fixture(params=["sqlite", "postgres"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "agent.db")
        return
    with reused_database() as url:
        yield url


def test_the_walkthrough_from_a_file_to_promoted_instructions_works_as_documented(
    tmp_path: Path, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    walker = Walker(tmp_path, db)
    ran = 0
    text = "\n".join(page.read_text() for page in PAGES)
    kinds = Counter(block["kind"] for block in BLOCK.finditer(text))
    assert {kind: count for kind, count in kinds.items() if kind != "console"} == KINDS, "no block is left out"
    for block in BLOCK.finditer(text):
        if block["kind"] == "markdown":
            (tmp_path / "AGENTS.md").write_text(block["text"])
        if block["kind"] == "json":
            (tmp_path / "trace.jsonl").write_text(block["text"])
        if block["kind"] == "python":
            exec(compile(block["text"].replace('"agent.db"', repr(db)), str(DOCS), "exec"), {})
        if block["kind"] != "console":
            continue
        if block["mark"] == "clock":
            walker.clock.advance(int(block["count"]) * 86_400)
        for _ in range(int(block["count"]) if block["mark"] == "repeat" else 1):
            for line, printed in commands(block["text"]):
                output_lines = [line_.rstrip() for line_ in walker.run(line).split("\n")]
                missing = [line_ for line_ in printed if not any(actual.startswith(line_) for actual in output_lines)]
                assert not missing, (line, missing, output_lines)
                ran += 1
    assert ran == 48
    assert (tmp_path / "docs" / "legacy-instructions" / "AGENTS.md").read_text().startswith("<!-- Moved: ")
