"""Which calls may run while a skill with `allowed-tools` is loaded."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.support.agents import MakeAgent
from tests.support.scripted_sessions import new_session, scripted_provider, tool_result_texts, tool_use
from tests.support.skill_folders import write_project, write_skill

from holdfast.engine.tools.permissions import permits_call, skill_refusal_reason
from holdfast.events.payloads.session import SkillLoaded
from holdfast.sources.skills.skill import Skill
from holdfast.types.blocks import Json, ToolUse


def use(name: str, **arguments: Json) -> ToolUse:
    return ToolUse("t", name, msgspec.json.encode(arguments).decode())


def runs(command: str) -> ToolUse:
    return use("run_command", command=command)


def skill(name: str, *allowed: str) -> Skill:
    return Skill(name, "Does it.", "", "global", Path("/s"), allowed_tools=allowed)


@pytest.mark.parametrize(
    ("pattern", "call"),
    [
        ("read_file", use("read_file", path="a")),
        ("Read", use("read_file", path="a")),
        ("Write", use("write_file", path="a")),
        ("Edit", use("edit_file", path="a")),
        ("MultiEdit", use("edit_file", path="a")),
        ("Grep", use("grep_files", pattern="a")),
        ("Glob", use("list_dir")),
        ("LS", use("list_dir")),
        ("Read", use("Read")),
        ("mcp__docs__*", use("mcp__docs__find")),
        ("*", use("anything")),
        ("lookup(*)", use("lookup")),
        ("Bash", runs("make; make test")),
        ("Bash(*)", runs("make | tail")),
        ("Bash(git status)", runs(" git status\n")),
        ("Bash(git add:*)", runs("git add")),
        ("Bash(git add:*)", runs("git add -A src/*")),
        ("Bash(git add *)", runs("git add -A")),
        ("Bash(git add *)", runs("git add")),
        ("Bash(ls*)", runs("lsof")),
        ("Bash(source .env && uv run pytest *)", runs("source .env && uv run pytest -q")),
        ("Bash(git * main)", runs("git push origin main")),
        ("Bash(a*b*c)", runs("a-b-b-c")),
        ("Bash(echo:*)", runs("echo $HOME")),
        ("Edit(docs/**)", use("edit_file", path="docs/a/b.md")),
        ("Edit(/docs/**)", use("edit_file", path="./docs/a.md")),
        ("Edit(./docs/*.md)", use("edit_file", path="docs/a.md")),
        ("Read(src/**/test_*.py)", use("read_file", path="src/a/b/test_c.py")),
        ("Read(//etc/hosts)", use("read_file", path="/etc/hosts")),
        ("Glob(.)", use("list_dir")),
    ],
)
def test_a_pattern_permits_the_calls_it_names(pattern: str, call: ToolUse) -> None:
    assert permits_call(pattern, call)


@pytest.mark.parametrize(
    ("pattern", "call"),
    [
        ("Read", use("write_file", path="a")),
        ("read", use("read_file", path="a")),
        ("read_fil[e]", use("read_file", path="a")),
        ("read_fil?", use("read_file", path="a")),
        ("Bash(git status)", runs("git status -s")),
        ("Bash(git add:*)", runs("git addition")),
        ("Bash(git add:*)", runs("git commit")),
        ("Bash(git add:*)", runs("git add . && rm -rf /")),
        ("Bash(git add:*)", runs("git add .; rm x")),
        ("Bash(git add:*)", runs("git add . | sh")),
        ("Bash(git add:*)", runs("git add . > /etc/passwd")),
        ("Bash(git add:*)", runs("git add $(rm x)")),
        ("Bash(git add:*)", runs("git add `rm x`")),
        ("Bash(git add:*)", runs("git add .\nrm x")),
        ("Bash(git * main)", runs("git push; rm x main")),
        ("Bash(a*b*c)", runs("a;b-c")),
        ("Bash(a*b*c)", runs("a-c")),
        ("Bash(ab*bc)", runs("abc")),
        ("Bash()", runs("ls")),
        ("Edit(docs/*)", use("edit_file", path="docs/a/b.md")),
        ("Edit(docs/**)", use("edit_file", path="docs/../src/a.py")),
        ("Edit(**)", use("edit_file", path="../a.py")),
        ("Edit(**)", use("edit_file", path="..")),
        ("Edit(**)", use("edit_file", path="/etc/hosts")),
        ("Edit(//docs/**)", use("edit_file", path="docs/a.md")),
        ("WebFetch(domain:example.com)", use("WebFetch", url="https://example.com")),
        ("Bash(ls", runs("ls")),
        ("(ls)", runs("ls")),
        ("", runs("ls")),
    ],
)
def test_a_pattern_permits_no_other_call(pattern: str, call: ToolUse) -> None:
    assert not permits_call(pattern, call)


@pytest.mark.parametrize(
    ("skills", "is_refused"),
    [
        ([], False),
        ([skill("a")], False),
        ([skill("a", "Read")], True),
        ([skill("a", "Read"), skill("b")], True),
        ([skill("a", "Read"), skill("b", "Bash(git:*)")], False),
    ],
)
def test_a_call_permitted_by_any_loaded_skill_may_run(skills: Sequence[Skill], is_refused: bool) -> None:
    assert bool(skill_refusal_reason(skills, runs("git log"))) is is_refused


def test_the_reason_names_the_skills_and_their_allowed_tools() -> None:
    skills = [skill("a", "Read", "Grep"), skill("b", "Read"), skill("c")]
    reason = skill_refusal_reason(skills, runs("ls"))
    assert reason == "the skills that are loaded (a, b) allow only Read, Grep"


@pytest.mark.parametrize("name", ["skill_load", "skill_search"])
def test_skills_can_always_be_searched_and_loaded(name: str) -> None:
    assert skill_refusal_reason([skill("a", "Read")], use(name)) is None


def test_a_pattern_with_many_stars_is_matched_quickly() -> None:
    assert not permits_call(f"Bash({'*a' * 200}b)", runs("a" * 100_000))


GIT_ONLY = "allowed-tools: Read Bash(git status:*)\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return write_project(tmp_path / "project")


async def test_a_loaded_skill_restricts_the_tools_that_may_be_used(workspace: Path) -> None:
    write_skill(workspace / ".holdfast/skills", "status", more=GIT_ONLY)
    (workspace / "a.txt").write_text("A.\n")
    provider = scripted_provider(
        [tool_use("list_dir", path=".holdfast/skills")],
        [tool_use("skill_load", name="status"), tool_use("list_dir", path=".holdfast/skills")],
        [tool_use("list_dir")],
        [tool_use("read_file", path="a.txt")],
        [tool_use("run_command", command="git status; ls")],
        [tool_use("skill_load", name="pdf")],
        "Done.",
    )
    async with new_session(
        provider,
        workspace=workspace,
        skills=True,
        builtin_tools=True,
        confirm_for=[],
        enforce_allowed_tools=True,
    ) as session:
        await session.send("Go.")
        before, _, _, beside, listed, read, ran, loaded, _ = tool_result_texts(session)
    assert before == beside == "deploy/\nreview/\nstatus/"
    why = "This call is not allowed: the skills that are loaded (status) allow only Read, Bash(git status:*)"
    assert (listed, read, ran) == (why, "A.", why)
    assert loaded.startswith("# Skill: pdf")


async def test_skill_rules_apply_only_if_enforced(workspace: Path) -> None:
    write_skill(workspace / ".holdfast/skills", "status", more=GIT_ONLY)
    provider = scripted_provider([tool_use("skill_load", name="status")], [tool_use("list_dir")], "Done.")
    async with new_session(
        provider, workspace=workspace, skills=True, builtin_tools=["list_dir", "read_file"]
    ) as session:
        await session.send("Go.")
        assert tool_result_texts(session)[-1] == ".holdfast/"


@pytest.mark.parametrize(("is_enforced", "names"), [(False, ["open", "status"]), (True, ["open"])])
async def test_a_skill_with_enforced_rules_is_not_preloaded(
    agent: MakeAgent, tmp_path: Path, is_enforced: bool, names: list[str]
) -> None:
    write_skill(tmp_path, "open")
    write_skill(tmp_path, "status", more=GIT_ONLY)
    write_skill(tmp_path, "blank", body=" \n")
    harness = agent(skills=tmp_path, padding="always", enforce_allowed_tools=is_enforced)
    async with harness.session:
        pass
    assert [each.skill_id for each in harness.payloads if isinstance(each, SkillLoaded)] == names
