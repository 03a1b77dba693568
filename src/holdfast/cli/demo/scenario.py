"""The coding session of the demo: a small project with a bug, the tools to fix it, and the scripted replies.

Nothing in it depends on the machine, so that the demo prints the same numbers everywhere.
"""

import math
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from holdfast.catalog.schema import Model
from holdfast.catalog.token_count import count_tokens
from holdfast.engine.tools.definition import Tool, ToolError, tool
from holdfast.layers.system_prompt import SystemPromptBuilder

TEST_SECONDS_MAX = 30
_VERDICT = re.compile(r"(FAIL|ERROR): |\w*(Error|Exception)\b|Ran \d|OK|FAILED")

USER_MESSAGES = (
    "test_two_discounts_are_taken_one_after_the_other fails. Find out why and fix it.",
    "Good. Now let line_total refuse a negative quantity, with a test.",
    "Write one line for the changelog.",
)


@cache
def read_project_files() -> dict[str, str]:
    """The texts of the project by file name. They are stored as .txt, so that no tool takes them for code of ours."""
    files = sorted((Path(__file__).parent / "project").iterdir())
    return {file.name.removesuffix(".txt"): file.read_text(encoding="utf-8") for file in files}


def read_script() -> bytes:
    """The replies of the simulated model, call by call, in the simulator's file format: one reply per line."""
    return (Path(__file__).parent / "replies.jsonl").read_bytes()


def write_project(folder: Path) -> None:
    for name, text in read_project_files().items():
        (folder / name).write_text(text, encoding="utf-8")


def build_system_prompt(model: Model) -> str:
    """The guidance that ships with Holdfast and the project's own rules: all of it stays the same.

    The guidance is repeated in appendices until the prompt has at least twice the model's cache floor, so that every
    model caches it.
    """
    guidance = "\n\n".join(part.text for segment in SystemPromptBuilder().segments() for part in segment.system)
    rules = f"# Project instructions\n\n{read_project_files()['AGENTS.md']}"
    # Tokens missing to twice the floor, divided by the tokens of one appendix.
    missing = 2 * model.cache.tokens_min - count_tokens(guidance + rules, model.tokens_factor)
    times = max(0, math.ceil(missing / count_tokens(guidance, model.tokens_factor)))
    appendices = [f"# Appendix {number}\n\n{guidance}" for number in range(1, times + 1)]
    return "\n\n".join([guidance, *appendices, rules])


def make_work_state(folder: Path) -> Callable[[], str]:
    """Text that changes during the session: which files differ from the start."""

    def read() -> str:
        changed = [
            name for name, text in read_project_files().items() if (folder / name).read_text(encoding="utf-8") != text
        ]
        return f"Branch: main. Changed files: {', '.join(changed) or 'none'}."

    return read


def make_demo_tools(folder: Path) -> Sequence[Tool]:
    """Real tools that work on the demo's folder and refuse paths outside it."""

    def inside(path: str) -> Path:
        target = (folder / path).resolve()
        if not target.is_relative_to(folder.resolve()):
            raise ToolError(f"{path!r} is outside the project")
        return target

    def list_files() -> str:
        """List the files of the project, one per line, sorted by name. Use it before you guess at a path."""
        return "\n".join(sorted(path.name for path in folder.iterdir() if path.is_file()))

    def read_file(path: str) -> str:
        """Read one file of the project and return its whole text. Read a file before you change it."""
        try:
            return inside(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ToolError(f"there is no file {path!r}; list_files shows what there is") from None

    def edit_file(path: str, old: str, new: str) -> str:
        """Replace a piece of text in one file of the project. `old` must occur in the file exactly once, white
        space included; `new` replaces it. Otherwise nothing is written."""
        target = inside(path)
        text = target.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ToolError(f"the text to replace occurs {text.count(old)} times in {path!r}; it must occur once")
        target.write_text(text.replace(old, new), encoding="utf-8")
        return f"{path}: 1 place changed"

    def run_tests() -> str:
        """Run all tests of the project and return what failed, with the reason, and the count at the end."""
        ran = subprocess.run(
            [sys.executable, "-B", "-m", "unittest"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=TEST_SECONDS_MAX,
            check=False,
        )
        # Keep only lines that are the same everywhere: times and tracebacks differ by machine and Python version.
        summary = (line.partition(" (test_")[0] for line in ran.stderr.splitlines() if _VERDICT.match(line))
        return "\n".join(re.sub(r" in \d+\.\d+s", "", line) for line in summary)

    return [
        tool(list_files, side_effects="read"),
        tool(read_file, side_effects="read"),
        tool(edit_file, side_effects="write"),
        tool(run_tests, side_effects="execute"),
    ]
