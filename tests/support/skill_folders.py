"""Folders of skills for tests, valid and broken."""

import os
from pathlib import Path
from typing import Any, Unpack

from tests.support.agents import MakeAgent, says

from holdfast.runtime.options import Options
from holdfast.sources.skills.discovery import SkillRoot
from holdfast.sources.skills.library import SkillLibrary, read_skill_library
from holdfast.sources.skills.skill import SkillMode, SkillReport, SkillSource
from holdfast.types.blocks import ToolUse

DESCRIPTION = "A test skill. Use it in tests."


def write_skill(root: Path, name: str, front: str | None = None, body: str = "# Steps\n", *, more: str = "") -> Path:
    """The folder of a skill with this front matter; by default a valid one followed by the lines in `more`."""
    front = f"name: {name}\ndescription: {DESCRIPTION}\n{more}" if front is None else front
    return write_raw(root, name, f"---\n{front.rstrip()}\n---\n\n{body}".encode())


def write_raw(root: Path, name: str, raw: bytes, *, file: str = "SKILL.md") -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(raw)
    return folder


def library_of(root: Path, mode: SkillMode = "seed", source: SkillSource = "workspace") -> SkillLibrary:
    return read_skill_library((SkillRoot(str(root), source),), mode)


def names_in(root: Path, mode: SkillMode = "seed", source: SkillSource = "workspace") -> list[str]:
    return [skill.name for skill in library_of(root, mode, source).store.list_skills()]


def rules_of(report: SkillReport, severity: str = "error") -> list[str]:
    return [finding.rule for finding in report.findings if finding.severity == severity]


INDEX = (
    "## Available skills\n"
    "Use `skill_search(query)` to filter and `skill_load(name)` to read a body.\n"
    "- deploy: A test skill. Use it in tests.\n"
    "- pdf: A test skill. Use it in tests.\n"
    "- review: A test skill. Use it in tests."
)
"""The index of the skills of `write_project` in a prompt."""


def write_project(folder: Path) -> Path:
    """A workspace with two skills of its own; the user has one more, and another version of one of them."""
    write_skill(folder / ".holdfast/skills", "review", body="Review it.\n")
    write_skill(folder / ".holdfast/skills", "deploy", body="Deploy it.\n")
    home = Path(os.environ["HOLDFAST_HOME"])
    write_skill(home / "skills", "pdf", body="Fill it.\n")
    write_skill(home / "skills", "review", body="Another review.\n")
    return folder


def load(name: str) -> ToolUse:
    return ToolUse(f"t_{name}", "skill_load", f'{{"name":"{name}"}}')


def system_texts(body: Any) -> list[str]:
    return [block["text"] for block in body["system"]]


def tool_names(body: Any) -> list[str]:
    return [tool["name"] for tool in body.get("tools", ())]


async def first_request(agent: MakeAgent, **options: Unpack[Options]) -> Any:
    """The first request of a session with these options."""
    one = agent(says("ok"), **options)
    async with one.session as session:
        await session.send("hello")
    return one.bodies[0]
