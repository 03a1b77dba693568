"""What files and settings add to a session's prompt: presets, personas, the project, its name."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.agents import MakeAgent, says
from tests.support.skill_folders import first_request, system_texts

from holdfast import Session, UserError
from holdfast.runtime.options import Options
from holdfast.sources.instruction_files import TEXT_BYTES_MAX, list_named_texts, read_named_text
from holdfast.types.prompt import LayerText


@pytest.fixture
def home() -> Path:
    return Path(os.environ["HOLDFAST_HOME"])


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


async def test_a_preset_and_a_persona_are_files_of_the_workspace_or_of_the_user(
    agent: MakeAgent, home: Path, tmp_path: Path
) -> None:
    write(home / "presets/reviewer.md", "The user's reviewer.\n")
    write(home / "personas/calm.md", "\ufeffYou are calm.\r\nAlways.\n")
    write(tmp_path / ".holdfast/presets/reviewer.md", "The project's reviewer.\n")
    body = await first_request(agent, workspace=tmp_path, preset_name="reviewer", persona_name="calm")
    assert system_texts(body) == ["The project's reviewer.", "You are calm.\nAlways."]
    body = await first_request(agent, preset_name="reviewer")
    assert system_texts(body) == ["The user's reviewer."]


async def test_a_resumed_session_keeps_its_preset(agent: MakeAgent, home: Path) -> None:
    write(home / "presets/reviewer.md", "Before.")
    made_agent = agent(says("ok"), says("ok"), preset_name="reviewer")
    async with made_agent.session as session:
        await session.send("hello")
    write(home / "presets/reviewer.md", "After.")
    async with Session.resume(
        session.id, store=made_agent.store, transport=made_agent.transport, preset_name="reviewer"
    ) as again:
        await again.send("again")
    assert system_texts(made_agent.bodies[1]) == ["Before."]


def test_an_unknown_name_is_refused_with_a_list_of_the_known_ones(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no persona 'calm'; there are no personas yet"):
        read_named_text("personas", "calm", workspace=tmp_path, home=home)
    write(home / "personas/stern.md", "Stern.")
    write(home / "personas/notes.txt", "No persona.")
    write(tmp_path / ".holdfast/personas/brief.md", "Brief.")
    assert list_named_texts("personas", workspace=tmp_path, home=home) == ("brief", "stern")
    with pytest.raises(UserError, match="there is no persona 'calm'; there are brief, stern"):
        read_named_text("personas", "calm", workspace=tmp_path, home=home)


@pytest.mark.parametrize("name", ["", "../secret", "a/b", ".hidden", "a\0b", "x" * 65])
def test_a_name_is_never_a_path(home: Path, name: str) -> None:
    with pytest.raises(UserError, match="is not a valid name"):
        read_named_text("presets", name, workspace=None, home=home)


def test_a_link_out_of_the_workspace_is_refused_and_out_of_the_home_followed(home: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere.md", "Elsewhere.")
    workspace = tmp_path / "project"
    for folder in (workspace / ".holdfast/presets", home / "presets"):
        folder.mkdir(parents=True)
        (folder / "it.md").symlink_to(tmp_path / "elsewhere.md")
    with pytest.raises(UserError, match="is a link that leads out of the workspace"):
        read_named_text("presets", "it", workspace=workspace, home=home)
    assert read_named_text("presets", "it", workspace=None, home=home) == "Elsewhere."


def test_a_special_or_too_long_file_is_refused(home: Path) -> None:
    (home / "presets/folder.md").mkdir(parents=True)
    (home / "presets/broken.md").symlink_to(home / "nowhere")
    write(home / "presets/long.md", "x" * (TEXT_BYTES_MAX + 1))
    write(home / "presets/full.md", "x" * TEXT_BYTES_MAX)
    for name, reason in (("folder", "not a regular file"), ("broken", "ENOENT"), ("long", "more than 200000 bytes")):
        with pytest.raises(UserError, match=reason):
            read_named_text("presets", name, workspace=None, home=home)
    assert len(read_named_text("presets", "full", workspace=None, home=home)) == TEXT_BYTES_MAX


@pytest.mark.parametrize(
    "options",
    [{"preset_name": "a", "system_prompt": "b"}, {"persona_name": "a", "persona": "b"}],
)
def test_a_text_and_a_file_for_the_same_setting_are_refused(options: Options) -> None:
    with pytest.raises(UserError, match="exclude each other"):
        Session.create(**options)


PROJECT = '''
[project]
name = "shop"
languages = ["python", "sql"]
since = 2019
context = """
Prices are in cents.
Never round twice.
"""
'''


async def test_the_configuration_describes_the_project(agent: MakeAgent, tmp_path: Path) -> None:
    write(tmp_path / ".holdfast/config.toml", PROJECT)
    write(tmp_path / "AGENTS.md", "Use tabs.\n")
    (text,) = system_texts(await first_request(agent, workspace=tmp_path))
    assert text == (
        "# Project\n - name: shop\n - languages: python, sql\n - since: 2019\n\n"
        "## context\n\nPrices are in cents.\nNever round twice.\n\n"
        "# Project instructions\n\n## AGENTS.md\n\nUse tabs."
    )


async def test_a_workspace_extends_the_users_project_description(agent: MakeAgent, home: Path, tmp_path: Path) -> None:
    write(home / "config.toml", '[project]\nname = "any"\nowner = "me"\n')
    write(tmp_path / ".holdfast/config.toml", '[project]\nname = "shop"\n')
    (text,) = system_texts(await first_request(agent, workspace=tmp_path))
    assert text == "# Project\n - name: shop\n - owner: me"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('project = "shop"', "project must be a table"),
        ("[project.inner]\na = 1", "project.inner must be text, a number or a list of these"),
        ("[project]\nday = 2026-01-01", "project.day must be text"),
        (f'[project]\na = "{"x" * 4000}"', "project has more than 4000 characters"),
    ],
)
async def test_an_invalid_project_description_is_refused(
    agent: MakeAgent, tmp_path: Path, text: str, message: str
) -> None:
    write(tmp_path / ".holdfast/config.toml", text)
    with pytest.raises(UserError, match=message):
        await agent(workspace=tmp_path).session.__aenter__()


def user_texts(body: Any) -> list[str]:
    return [block["text"] for message in body["messages"] if message["role"] == "user" for block in message["content"]]


async def test_the_name_of_a_session_is_sent_once_after_the_prefix(agent: MakeAgent) -> None:
    made_agent = agent(says("ok"), says("ok"), says("ok"), name="fix\nthe parser")
    async with made_agent.session as session:
        await session.send("hello")
        await session.send("again")
    metadata = "<context layer='metadata'>\n# Session\n - Name: fix\ufffdthe parser\n</context>"
    assert user_texts(made_agent.bodies[1]) == [metadata, "hello", "again"]
    async with Session.resume(session.id, store=made_agent.store, transport=made_agent.transport) as resumed:
        await resumed.send("go on")
    assert user_texts(made_agent.bodies[2]) == [metadata, "hello", "again", "go on"]


async def test_a_callers_own_metadata_replaces_the_name(agent: MakeAgent) -> None:
    body = await first_request(agent, name="parser", volatile=[LayerText("metadata", "Two roles.")])
    assert user_texts(body) == ["<context layer='metadata'>\nTwo roles.\n</context>", "hello"]
