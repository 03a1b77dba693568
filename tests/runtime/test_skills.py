"""Sessions with skills against the simulator: the index in the prompt, and the bodies that are loaded."""

import logging
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.agents import MakeAgent, ReplayTransport, changed_prefixes, says
from tests.support.scripted_sessions import new_session, scripted_provider, tool_result_texts, tool_use
from tests.support.skill_folders import INDEX, first_request, load, system_texts, write_project, write_skill

from holdfast import MemoryStore, ProviderError, Session, UserError
from holdfast.engine.reducer import fold_events
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted, ToolFailed
from holdfast.events.payloads.session import EpochOpened, MessagesWithdrawn, SessionStarted, SkillLoaded, TurnStarted
from holdfast.types.blocks import Text, ToolResult, ToolUse


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return write_project(tmp_path / "project")


async def test_the_index_is_in_the_cached_prefix_and_is_read_by_the_second_call(workspace: Path) -> None:
    provider = scripted_provider([tool_use("skill_load", name="review")], "Reviewed.", "Bye.")
    store = MemoryStore()
    async with new_session(provider, workspace=workspace, skills=True, persona="Calm.", store=store) as session:
        await session.send("Review this.")
        await session.send("Thanks.")
        events = list(store.read(session.id))
    payloads = [event.payload for event in events]
    (epoch,) = (payload for payload in payloads if isinstance(payload, EpochOpened))
    assert [(layer_text.layer, layer_text.text) for layer_text in epoch.system][1:] == [
        ("persona", "Calm."),
        ("skills", INDEX),
    ]
    assert epoch.skills == ("deploy", "pdf", "review")
    usages = [payload.usage for payload in payloads if isinstance(payload, LlmCallCompleted)]
    assert usages[1].cache_read > len(INDEX) // 8
    assert all(after.cache_read == before.cache_read + before.cache_write for before, after in pairwise(usages))
    assert changed_prefixes(events) == []


async def test_a_body_is_part_of_the_history_and_the_system_prompt_stays_unchanged(
    agent: MakeAgent, workspace: Path
) -> None:
    harness = agent(says(load("review")), says("ok"), workspace=workspace, skills=True)
    async with harness.session as session:
        await session.send("Review this.")
    first, second = harness.bodies
    assert [block["text"] for block in second["messages"][2]["content"][0]["content"]] == [
        "# Skill: review (source: workspace)\n\nReview it.\n",
        f"The files of this skill are in {workspace}/.holdfast/skills/review",
    ]
    first, second = without_breakpoints(first), without_breakpoints(second)
    assert (first["system"], first["tools"]) == (second["system"], second["tools"])
    assert [
        (each.payload.triggered_by_tool_use_id, each.turn_id is not None)
        for each in harness.events
        if isinstance(each.payload, SkillLoaded)
    ] == [("t_review", True)]


async def test_the_reason_for_a_refusal_reaches_the_model(agent: MakeAgent, workspace: Path) -> None:
    write_skill(workspace / ".holdfast/skills", "test")
    calls = [load(name) for name in ("deploy", "pdf", "review")]
    harness = agent(says(*calls), says(load("test")), says(load("tset")), says("ok"), workspace=workspace, skills=True)
    async with harness.session as session:
        await session.send("Do it all.")
    refused = harness.bodies[3]["messages"]
    (budget,) = refused[4]["content"]
    assert budget["is_error"]
    assert budget["content"][0]["text"] == (
        "activation budget exhausted: 3 skills already activated this session\n"
        "(limit 3). Already loaded: [deploy, pdf, review]. To free\n"
        "budget, summarize and discard previously loaded skill bodies in your\n"
        "next response."
    )
    (unknown,) = refused[6]["content"]
    assert unknown["content"][0]["text"] == "no skill registered with name 'tset'; near matches: test"
    assert [each.error_class for each in harness.payloads if isinstance(each, ToolFailed)] == ["execution_error"] * 2


async def test_limits_are_set_by_the_workspace(agent: MakeAgent, workspace: Path) -> None:
    (workspace / ".holdfast/config.toml").write_text("skill_loads_max = 1\n")
    harness = agent(says(load("pdf"), load("review")), says("ok"), workspace=workspace, skills=True)
    async with harness.session as session:
        await session.send("Both.")
        assert [text.partition("\n")[0] for text in tool_result_texts(session)] == [
            "# Skill: pdf (source: global)",
            f"The files of this skill are in {os.environ['HOLDFAST_HOME']}/skills/pdf",
            "activation budget exhausted: 1 skills already activated this session",
        ]


@pytest.mark.parametrize(
    "setting",
    ["skill_loads_max = -1", "skill_tokens_max = true", 'skill_tokens_warn = "many"', "skill_loads_max = 1.5"],
)
async def test_a_limit_that_is_not_a_number_is_refused(agent: MakeAgent, workspace: Path, setting: str) -> None:
    (workspace / ".holdfast/config.toml").write_text(setting)
    with pytest.raises(UserError, match="must be a whole number of at least 0"):
        await agent(workspace=workspace).session.__aenter__()


async def test_bodies_that_fill_the_prefix_to_its_minimum_are_preloaded_by_name(
    agent: MakeAgent, tmp_path: Path
) -> None:
    for name, size in (
        ("b-small", 3_000),
        ("a-small", 3_000),
        ("c-huge", 40_000),
        ("d-large", 12_000),
        ("e-left", 900),
    ):
        write_skill(tmp_path, name, body=f"{'word ' * (size // 5)}\n")
    harness = agent(
        says("ok"), says(load("a-small")), says("ok"), skills=tmp_path, padding="always", system_prompt="Be kind."
    )
    async with harness.session as session:
        await session.send("hello")
        await session.send("again")
    names = ["a-small", "b-small", "d-large"]
    started, epoch, *rest = harness.events
    assert isinstance(started.payload, SessionStarted)
    assert isinstance(epoch.payload, EpochOpened)
    preloaded = rest[: len(names)]
    assert [(each.payload.skill_id, each.turn_id) for each in preloaded if isinstance(each.payload, SkillLoaded)] == [
        (name, None) for name in names
    ]
    assert all(
        (each.payload.load_reason, each.payload.triggered_by_tool_use_id) == ("always", None)
        for each in preloaded
        if isinstance(each.payload, SkillLoaded)
    )
    assert isinstance(rest[len(names)].payload, TurnStarted)
    assert len([each for each in harness.payloads if isinstance(each, SkillLoaded)]) == len(names)
    _, index, padding = system_texts(harness.bodies[0])
    assert [line.split(":")[0] for line in index.splitlines()[2:]] == [
        "- a-small [preloaded]",
        "- b-small [preloaded]",
        "- c-huge",
        "- d-large [preloaded]",
        "- e-left",
    ]
    assert [line for line in padding.splitlines() if line.startswith("# Skill: ")] == [
        f"# Skill: {name}" for name in names
    ]
    assert 'Re-read the system prompt section "# Skill: a-small"' in tool_result_texts(session)[0]


async def test_a_system_prompt_that_looks_like_the_index_is_left_unchanged(agent: MakeAgent, tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf", body="word " * 3_700)
    body = await first_request(agent, skills=tmp_path, padding="always", system_prompt="- pdf: mine.")
    assert system_texts(body)[0] == "- pdf: mine."
    assert "- pdf [preloaded]: " in system_texts(body)[1]


async def test_a_preloaded_prefix_stays_within_its_bounds(agent: MakeAgent, tmp_path: Path) -> None:
    for number in range(40):
        write_skill(tmp_path, f"skill-{number:02}", body="word " * 100)
    body = await first_request(agent, skills=tmp_path, padding="always")
    characters = sum(map(len, system_texts(body))) + sum(
        len(tool["name"] + tool["description"] + msgspec.json.encode(tool["input_schema"]).decode())
        for tool in body["tools"]
    )
    assert 4_500 <= characters // 4 <= 5_500


async def test_a_session_keeps_its_skills_and_the_next_one_sees_the_new_ones(agent: MakeAgent, workspace: Path) -> None:
    harness = agent(says(load("review")), says("ok"), workspace=workspace, skills=True)
    async with harness.session as session:
        write_skill(workspace / ".holdfast/skills", "review", body="Something else.\n")
        write_skill(workspace / ".holdfast/skills", "xyz")
        await session.send("Review.")
        assert tool_result_texts(session)[0].endswith("\n\nReview it.\n")
    (index,) = system_texts(await first_request(agent, workspace=workspace, skills=True))
    assert "- xyz: " in index


async def test_files_of_a_skill_can_be_read_and_never_written(workspace: Path) -> None:
    own = workspace / ".holdfast/skills/review/notes.md"
    own.write_text("Look twice.\n")
    theirs = Path(os.environ["HOLDFAST_HOME"]) / "skills/pdf"
    (theirs / "form.md").write_text("Field one.\n")
    provider = scripted_provider(
        [tool_use("read_file", path=str(theirs / "form.md"))],
        [tool_use("list_dir", path=str(theirs))],
        [tool_use("grep_files", pattern="one", path=str(theirs))],
        [tool_use("write_file", path=str(theirs / "form.md"), content="")],
        [tool_use("write_file", path=".holdfast/skills/review/notes.md", content="")],
        [tool_use("read_file", path=str(theirs.parent.parent / "config.toml"))],
        "Done.",
    )
    async with new_session(provider, workspace=workspace, skills=True, builtin_tools=True, confirm_for=[]) as session:
        await session.send("Go.")
        read, listed, found, *refused = tool_result_texts(session)
    assert (read, listed) == ("Field one.", "SKILL.md\nform.md")
    assert "Field one." in found
    assert ["refused" in text for text in refused] == [True, True, True]
    assert own.read_text() == "Look twice.\n"


async def test_a_memory_edit_does_not_change_the_prefix_with_its_skills(agent: MakeAgent, workspace: Path) -> None:
    add = ToolUse("t", "memory_add", '{"text":"Ship on Fridays."}')
    harness = agent(says(load("deploy")), says(add), says("ok"), workspace=workspace, skills=True, memory=True)
    async with harness.session as session:
        await session.send("Deploy.")
    before, after = (body.partition(b'"messages":')[0] for body in harness.transport.bodies[1:])
    assert before == after
    assert b"Ship on Fridays." in harness.transport.bodies[2]
    assert changed_prefixes(harness.events) == []


def resume_in_another_process(session_id: str, store: Path, *names: str) -> bytes:
    """The last request of another process that continues the session and loads these skills."""
    root = Path(__file__).parents[2]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join((*sys.path, str(root)))}
    program = [sys.executable, str(root / "tests" / "support" / "resume_session.py"), session_id, str(store), *names]
    return subprocess.run(program, env=environ, capture_output=True, check=True).stdout


def without_breakpoints(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_breakpoints(each) for key, each in value.items() if key != "cache_control"}
    return [without_breakpoints(each) for each in value] if isinstance(value, list) else value


async def test_another_process_sends_the_same_prefix_even_if_all_files_have_changed(
    agent: MakeAgent, workspace: Path, tmp_path: Path
) -> None:
    store = tmp_path / "log.db"
    transport = ReplayTransport([says(load("review")), says("ok")])
    write_skill(workspace / ".holdfast/skills", "gone", body="word " * 2_000)
    write_skill(workspace / ".holdfast/skills", "review", body="word " * 5_000)
    async with Session.create(
        model="anthropic:claude-sonnet-5-5",
        store=store,
        padding="always",
        workspace=workspace,
        skills=True,
        transport=transport,
    ) as session:
        await session.send("Review.")
    (workspace / ".holdfast/skills/gone/SKILL.md").unlink()
    write_skill(workspace / ".holdfast/skills", "new")
    write_skill(workspace / ".holdfast/skills", "review", front="name: review\ndescription: Else.\n", body="Else.\n")
    sent = resume_in_another_process(session.id, store, "review", "gone")
    before, after = (without_breakpoints(msgspec.json.decode(body)) for body in (transport.bodies[1], sent))
    assert (after["tools"], after["system"]) == (before["tools"], before["system"])
    assert "- gone [preloaded]: " in after["system"][0]["text"]
    assert after["messages"][: len(before["messages"])] == before["messages"]
    already_loaded, missing = after["messages"][-1]["content"][:2]
    assert "already loaded in the message history" in already_loaded["content"][0]["text"]
    assert missing["content"][0]["text"] == "no skill registered with name 'gone'"


async def test_a_resumed_session_names_its_missing_skills(
    agent: MakeAgent, workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harness = agent(workspace=workspace, skills=True)
    async with harness.session as session:
        pass
    (workspace / ".holdfast/skills/deploy/SKILL.md").unlink()
    with caplog.at_level(logging.WARNING):
        async with Session.resume(session.id, store=harness.store, transport=harness.transport):
            pass
    assert [record.getMessage() for record in caplog.records] == [
        "skills that this session had are missing now: deploy"
    ]


async def test_loaded_skills_still_count_after_a_resume(agent: MakeAgent, workspace: Path) -> None:
    write_skill(workspace / ".holdfast/skills", "test")
    calls = [load(name) for name in ("deploy", "pdf", "review")]
    harness = agent(says(*calls), says("ok"), workspace=workspace, skills=True)
    async with harness.session as session:
        await session.send("All.")
    transport = ReplayTransport([says(load("test")), says("ok")])
    async with Session.resume(session.id, store=harness.store, transport=transport) as again:
        await again.send("One more.")
        assert tool_result_texts(again)[-1].startswith("activation budget exhausted: 3 skills")


async def test_a_body_that_the_provider_refused_can_be_loaded_again(agent: MakeAgent, workspace: Path) -> None:
    too_long = ProviderError("context_overflow", "too long")
    harness = agent(says(load("pdf")), too_long, says(load("pdf")), says("ok"), workspace=workspace, skills=True)
    async with harness.session as session:
        with pytest.raises(ProviderError):
            await session.send("Load it.")
        await session.send("Again.")
        last = [block for message in session.history for block in message.content if isinstance(block, ToolResult)][-1]
    assert last.content[0] == Text("# Skill: pdf (source: global)\n\nFill it.\n")
    assert any(isinstance(each, MessagesWithdrawn) for each in harness.payloads)
    assert fold_events(harness.events, session.id).activations.names == ("pdf",)


def test_events_of_older_logs_fold_as_before() -> None:
    event = Event("e", 1.0, "s", "system", SkillLoaded("a", "v", "auto_suggested", 7, "global"))
    assert fold_events([event, event], "s").activations.tokens == 7
