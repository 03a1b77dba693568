"""The example project, tested as its authors would: offline, in a process of its own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "weather_agent"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return shutil.copytree(EXAMPLE, tmp_path / "weather_agent", ignore=shutil.ignore_patterns("__pycache__"))


def run_tests(project: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "holdfast.testing.plugin"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    completed = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=50, check=False
    )
    return completed.returncode, completed.stdout + completed.stderr


def test_the_example_project_passes_its_tests(copy: Path) -> None:
    status, output = run_tests(copy)
    assert status == 0, output
    assert "3 passed" in output
    assert "prompt caches (holdfast)" in output
    rows = re.findall(r"(?m)^ *\d+ +[\d.]+% .*$", (EXAMPLE / "README.md").read_text())
    assert len(rows) == 3
    printed = {" ".join(line.split()) for line in output.splitlines()}
    assert [row for row in rows if " ".join(row.split()) not in printed] == [], output


def test_clock_in_the_prompt_fails_the_tests_with_layer_and_byte(copy: Path) -> None:
    agent = copy / "agent.py"
    source = agent.read_text()
    volatile = source.replace("return RULES", 'return f"{RULES}\\nIt is {datetime.datetime.now()}."')
    assert volatile != source
    agent.write_text(volatile.replace("import anthropic", "import datetime\n\nimport anthropic"))
    status, output = run_tests(copy)
    assert status == 1, output
    assert "the cached prefix changed: call 2 does not extend call 1" in output
    assert "system.0 differs: layer system, block 1, byte 2" in output
    assert "likely cause: clock (a date and time)" in output
