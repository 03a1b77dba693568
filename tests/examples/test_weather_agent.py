"""The example project, tested as its authors would: offline, in a process of its own."""

import os
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
    ended = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=50, check=False
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_the_example_project_passes_its_tests(copy: Path) -> None:
    status, printed = run_tests(copy)
    assert status == 0, printed
    assert "3 passed" in printed
    assert "prompt caches (holdfast)" in printed


def test_a_clock_in_its_prompt_fails_its_tests_with_layer_and_byte(copy: Path) -> None:
    agent = copy / "agent.py"
    calm = agent.read_text()
    volatile = calm.replace("return RULES", 'return f"{RULES}\\nIt is {datetime.datetime.now()}."')
    assert volatile != calm
    agent.write_text(volatile.replace("import anthropic", "import datetime\n\nimport anthropic"))
    status, printed = run_tests(copy)
    assert status == 1, printed
    assert "the cached prefix changed: call 2 does not extend call 1" in printed
    assert "system.0 differs: layer system, block 1, byte 2" in printed
    assert "likely cause: clock (a date and time)" in printed
