"""Which skills a session has: those of the usual folders, explicitly named ones, or none."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.agents import Agent, MakeAgent, ReplayTransport, says
from tests.support.scripted_sessions import tool_result_texts
from tests.support.skill_folders import INDEX, first_request, load, system_texts, tool_names, write_project, write_skill

from holdfast import MemoryStore, Session, UserError
from holdfast.errors import SkillValidationError
from holdfast.events.log import Event
from holdfast.events.payloads.session import EpochOpened
from holdfast.runtime.options import Options
from holdfast.sources.skills.library import load_skills
from holdfast.sources.skills.store import SkillStore


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return write_project(tmp_path / "project")


async def open_and_list_events(agent: Agent) -> list[Event]:
    async with agent.session:
        pass
    return agent.events


async def test_without_skills_there_is_neither_an_index_nor_a_tool(agent: MakeAgent, tmp_path: Path) -> None:
    plain = await first_request(agent, system_prompt="Be kind.")
    assert await first_request(agent, system_prompt="Be kind.", skills=True) == plain
    assert await first_request(agent, system_prompt="Be kind.", skills=tmp_path) == plain
    assert await first_request(agent, system_prompt="Be kind.", skills=False) == plain
    assert "tools" not in plain


async def test_skills_are_not_loaded_unless_enabled(agent: MakeAgent, workspace: Path) -> None:
    assert tool_names(await first_request(agent, workspace=workspace)) == []


async def test_the_seed_profile_has_skills_and_both_tools_unless_skills_are_off(
    agent: MakeAgent, workspace: Path
) -> None:
    body = await first_request(agent, profile="seed", workspace=workspace, padding="never")
    assert tool_names(body) == ["skill_load", "skill_search"]
    assert INDEX in system_texts(body)
    assert tool_names(await first_request(agent, profile="seed", skills=SkillStore.empty())) == [
        "skill_load",
        "skill_search",
    ]
    off = await first_request(agent, profile="seed", workspace=workspace, padding="never", skills=False)
    assert (tool_names(off), INDEX in system_texts(off)) == ([], False)


def listed_skills(body: dict[str, Any]) -> list[str]:
    (index,) = (text for text in system_texts(body) if text.startswith("## Available skills"))
    return [line.split(":")[0].removeprefix("- ") for line in index.splitlines()[2:]]


async def test_skill_folders_of_other_programs_are_loaded_on_request(
    agent: MakeAgent, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    write_skill(workspace / ".claude/skills", "theirs")
    write_skill(tmp_path / "me/.agents/skills", "mine")
    write_skill(workspace / ".metis/skills", "older")
    usual = ["deploy", "pdf", "review"]
    assert listed_skills(await first_request(agent, workspace=workspace, skills=True)) == usual
    with_others: Options = {"workspace": workspace, "skills": True, "also_skills": [".agents/skills", ".claude/skills"]}
    assert listed_skills(await first_request(agent, **with_others)) == ["deploy", "mine", "pdf", "review", "theirs"]
    seed: Options = {"workspace": workspace, "profile": "seed", "padding": "never", "also_skills": [".metis/skills"]}
    assert listed_skills(await first_request(agent, **seed)) == ["deploy", "older", "pdf", "review"]
    (workspace / ".holdfast/config.toml").write_text('also_skills = [".claude/skills"]\n')
    assert listed_skills(await first_request(agent, workspace=workspace, skills=True)) == [*usual, "theirs"]
    assert listed_skills(await first_request(agent, workspace=workspace, skills=True, also_skills=[])) == usual


async def test_the_seed_profile_reads_the_folders_of_the_seed_and_no_nested_skills(
    agent: MakeAgent, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    write_skill(workspace / ".metis/skills", "here")
    write_skill(tmp_path / "me/.metis/skills", "at-home")
    write_skill(workspace / ".metis/skills", "review", body="Overridden.\n")
    # These are read by the seed's own rules, not leniently.
    write_skill(workspace / ".metis/skills", "odd", "name: Other\ndescription: x\n")
    write_skill(workspace / ".holdfast/skills/group", "nested")
    usual = ["deploy", "pdf", "review"]
    seed: Options = {"workspace": workspace, "profile": "seed", "padding": "never"}
    harness = agent(says(load("review")), says("ok"), **seed)
    async with harness.session as session:
        await session.send("hello")
        assert tool_result_texts(session)[0].endswith("Review it.\n")
    assert listed_skills(harness.bodies[0]) == ["at-home", "deploy", "here", "pdf", "review"]
    # A resumed session has the same skills, whatever profile is configured now.
    transport = ReplayTransport([says(load("at-home")), says("ok")])
    async with Session.resume(session.id, store=harness.store, transport=transport, clock=harness.clock) as again:
        await again.send("more")
        assert tool_result_texts(again)[-2].startswith("# Skill: at-home (source: global)")
    default = await first_request(agent, workspace=workspace, skills=True)
    assert listed_skills(default) == ["deploy", "nested", *usual[1:]]


async def test_the_seed_profile_lists_every_skill_whatever_the_size_of_the_index(
    agent: MakeAgent, tmp_path: Path
) -> None:
    for number in range(40):
        about = f"name: s{number:02}\ndescription: {'long ' * 200}\n"
        write_skill(tmp_path, f"s{number:02}", about)
    seed = await first_request(agent, profile="seed", skills=tmp_path, padding="never")
    assert len(listed_skills(seed)) == 40
    (index,) = system_texts(await first_request(agent, skills=tmp_path, padding="never"))
    assert "more skills are not listed" in index


async def test_folders_of_other_programs_are_read_leniently_unless_a_mode_is_set(
    agent: MakeAgent, workspace: Path
) -> None:
    write_skill(workspace / ".claude/skills", "theirs", "name: Their Skill\ndescription: x\n")
    write_skill(workspace / ".holdfast/skills", "ours", "name: Our Skill\ndescription: x\n")
    write_skill(workspace / ".holdfast/skills", "extra", more="color: red\n")
    chosen: Options = {"workspace": workspace, "skills": True, "also_skills": [".claude/skills"]}
    usual = ["deploy", "extra", "pdf", "review"]
    assert listed_skills(await first_request(agent, **chosen)) == ["Their Skill", *usual]
    everything = listed_skills(await first_request(agent, **(chosen | Options(skills_mode="lenient"))))
    assert everything == ["Our Skill", "Their Skill", *usual]
    assert listed_skills(await first_request(agent, **(chosen | Options(skills_mode="seed")))) == usual
    (workspace / ".holdfast/config.toml").write_text('skills_mode = "strict"\n')
    assert listed_skills(await first_request(agent, **chosen)) == ["deploy", "pdf", "review"]
    assert listed_skills(await first_request(agent, **(chosen | Options(skills_mode="seed")))) == usual


async def test_a_skill_over_the_hard_cap_is_marked_in_the_index_and_says_what_to_do(
    agent: MakeAgent, workspace: Path
) -> None:
    write_skill(workspace / ".holdfast/skills", "manual", body="x" * 400)
    (workspace / ".holdfast/config.toml").write_text("skill_tokens_max = 100\n")
    harness = agent(says(load("manual")), says("ok"), workspace=workspace, skills=True)
    async with harness.session as session:
        await session.send("hello")
        (refusal,) = tool_result_texts(session)
    assert listed_skills(harness.bodies[0]) == ["deploy", "manual [not loadable]", "pdf", "review"]
    assert refusal.startswith("activation budget exhausted: 0 tokens of skills already activated this session, and")
    file = workspace / ".holdfast/skills/manual/SKILL.md"
    assert refusal.endswith(f"This skill alone is over the limit and is never loaded: read {file} in parts.")
    (workspace / ".holdfast/config.toml").write_text("skill_tokens_max = 101\n")
    assert "manual" in listed_skills(await first_request(agent, workspace=workspace, skills=True))


async def test_skills_may_be_a_store_a_folder_or_several(agent: MakeAgent, tmp_path: Path) -> None:
    write_skill(tmp_path / "a", "one")
    write_skill(tmp_path / "b", "two")
    store = load_skills(global_dir=tmp_path / "a", workspace_dir=None)
    both: list[str | Path] = [tmp_path / "a", str(tmp_path / "b")]
    choices: list[tuple[SkillStore | str | list[str | Path], list[str]]] = [
        (store, ["one"]),
        (str(tmp_path / "b"), ["two"]),
        (both, ["one", "two"]),
        (str(tmp_path / "a/one"), ["one"]),
        ([tmp_path / "a/one", tmp_path / "b"], ["one", "two"]),
    ]
    for choice, names in choices:
        assert listed_skills(await first_request(agent, skills=choice)) == names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"skills": 3}, "skills must be True, False, a folder, a list of folders or a SkillStore, not int"),
        ({"skills": b"x"}, "skills must be .* not bytes"),
        ({"skills": [3]}, "skills must be .* not list"),
        ({"skills": "/nowhere/at/all"}, "skills: '/nowhere/at/all' is not a folder"),
        ({"skills": True, "skills_mode": "loose"}, "skills_mode must be one of seed, strict, lenient, not 'loose'"),
        ({"also_skills": [".vim/skills"]}, r"also_skills must be some of \.agents/skills, .* not \['\.vim/skills'\]"),
        ({"also_skills": ".claude/skills"}, "also_skills must be a list, not str"),
        ({"enforce_allowed_tools": "yes"}, "enforce_allowed_tools must be True or False, not str"),
    ],
)
async def test_an_invalid_skills_option_is_refused(agent: MakeAgent, options: Options, message: str) -> None:
    with pytest.raises(UserError, match=message):
        await agent(**options).session.__aenter__()


async def test_an_explicitly_named_skill_that_is_invalid_is_an_error(agent: MakeAgent, tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "pdf", front="name: Other\n")
    with pytest.raises(SkillValidationError, match="description"):
        await agent(skills=folder).session.__aenter__()


async def test_an_old_session_of_the_seed_profile_continues_without_skills(
    agent: MakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    harness = agent(profile="seed")
    store = MemoryStore()
    events = [
        msgspec.structs.replace(event, payload=msgspec.structs.replace(event.payload, tools=()))
        if isinstance(event.payload, EpochOpened)
        else event
        for event in await open_and_list_events(harness)
    ]
    store.append(events)
    async with Session.resume(events[0].session_id, store=store, transport=ReplayTransport([says("ok")])) as session:
        await session.send("hello")
    assert caplog.records == []


async def test_a_lenient_session_accepts_skills_that_break_a_rule(agent: MakeAgent, tmp_path: Path) -> None:
    write_skill(tmp_path, "folder", front="name: Other\ndescription: Works.\n")
    assert tool_names(await first_request(agent, skills=tmp_path)) == []
    (index,) = system_texts(await first_request(agent, skills=tmp_path, skills_mode="lenient"))
    assert index.endswith(": Works.")


async def test_a_lenient_session_can_load_a_skill_whose_name_is_too_long(agent: MakeAgent, tmp_path: Path) -> None:
    name = "long-" * 20
    write_skill(tmp_path, name, front=f"name: {name}\ndescription: Works.\n", body="Do it.\n")
    harness = agent(says(load(name)), says("ok"), skills=tmp_path, skills_mode="lenient")
    async with harness.session as session:
        await session.send("hello")
        assert tool_result_texts(session)[0] == f"# Skill: {name} (source: global)\n\nDo it.\n"


async def test_links_out_of_a_workspace_are_refused_and_out_of_the_users_folder_followed(
    agent: MakeAgent, tmp_path: Path
) -> None:
    write_skill(tmp_path / "elsewhere", "pdf")
    workspace = tmp_path / "project"
    for root in (workspace / "skills", tmp_path / "own"):
        root.mkdir(parents=True)
        (root / "pdf").symlink_to(tmp_path / "elsewhere/pdf")
    assert tool_names(await first_request(agent, workspace=workspace, skills=workspace / "skills")) == []
    assert tool_names(await first_request(agent, workspace=workspace, skills=tmp_path / "own")) == [
        "recall_history",
        "skill_load",
        "skill_search",
    ]
