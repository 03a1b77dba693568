"""Every text that names the distribution uses the right name; the wheel itself is built in CI."""

import re
import runpy
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHECK = runpy.run_path(str(ROOT / "scripts" / "check_wheel.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENT = re.compile(
    r"\b([\w-]+)\[((?:server|codings|semantic|onnx|postgres|otel|mcp|instructions|prices|testing)[\w,]*)\]"
)


def test_every_extra_is_installed_and_used_by_the_check() -> None:
    assert CHECK["PROGRAMS"].keys() == {"", *PROJECT["optional-dependencies"]} - {"dev", "docs"}


def test_every_text_that_names_an_extra_names_our_distribution() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("pyproject.toml")]
    wrong = [
        f"{page.relative_to(ROOT)}: {requirement[0]}"
        for page in (*pages, *(ROOT / "src").rglob("*.py"))
        for requirement in REQUIREMENT.finditer(page.read_text())
        if requirement[1] != PROJECT["name"]
        or not set(requirement[2].split(",")) <= PROJECT["optional-dependencies"].keys()
    ]
    assert wrong == []
