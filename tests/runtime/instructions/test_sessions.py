"""Sessions with an agent's instructions: the prompt holds stub and index, and recalled units are history."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.agents import MakeAgent, changed_prefixes, says
from tests.support.scripted_sessions import new_session, scripted_provider, tool_use

from holdfast import Library, MemoryStore, UserError
from holdfast.compaction.models import PROTECTED_TOOLS
from holdfast.engine.tools.definition import ToolError
from holdfast.errors import InstructionError
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted
from holdfast.events.payloads.session import EpochOpened, MessageAppended
from holdfast.instructions.migration.files import write_instruction_folder
from holdfast.types.blocks import ToolUse, make_user_message

AGENTS = """# Weather service

## Never

- Never push to main.
- Never print credentials.

## Testing

Run the whole suite before every commit, and add a test for each mistake that you fix.

## Release notes

List what changed for users of the new version, newest first, and name the issue of each.
"""


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    (tmp_path / "AGENTS.md").write_text(AGENTS)
    with Library(tmp_path / "agent.db") as library:
        write_instruction_folder(library.migrate(tmp_path / "AGENTS.md"), tmp_path / "out")
        library.publish(tmp_path / "out")
        yield library


async def test_stub_and_index_belong_to_the_epoch_and_recalled_units_are_history(library: Library) -> None:
    recall = tool_use("recall_instruction", intent="write or run tests", max_chunks=1)
    provider, store = scripted_provider([recall], "Tested.", "Bye."), MemoryStore()
    async with new_session(provider, instructions=library.for_session(), store=store) as session:
        await session.send("Run the tests.")
        await session.send("Thanks.")
        events = list(store.read(session.id))
    (epoch,) = (event.payload for event in events if isinstance(event.payload, EpochOpened))
    (project,) = (layer_text.text for layer_text in epoch.system if layer_text.layer == "project")
    assert "Never push to main." in project
    assert "- testing: Testing: Run the whole suite" in project
    usages = [event.payload.usage for event in events if isinstance(event.payload, LlmCallCompleted)]
    assert all(after.cache_read == before.cache_read + before.cache_write for before, after in pairwise(usages))
    assert changed_prefixes(events) == []


async def test_a_recall_returns_the_unit_and_its_usage_is_recorded(agent: MakeAgent, library: Library) -> None:
    recall = ToolUse("call_1", "recall_instruction", '{"intent":"write or run tests","max_chunks":1}')
    harness = agent(says(recall), says("ok"), instructions=library.for_session())
    async with harness.session as session:
        await session.send("Run the tests.")
    result = str(harness.bodies[1]["messages"][2]["content"])
    assert "Run the whole suite before every commit" in result
    token = re.search(r"audi_\w+", result)
    assert token is not None
    assert "recall_instruction" in PROTECTED_TOOLS
    usage = next(tool for tool in library.for_session().tools if tool.spec.name == "submit_usage")
    assert usage.run(audit_token=token[0], used_chunks=["testing"]) == "on record"
    assert library.metrics().recall_at_k == 1.0


async def test_a_failed_recall_is_reported_to_the_model(agent: MakeAgent, library: Library) -> None:
    recall = ToolUse("call_1", "recall_instruction", '{"intent":" "}')
    harness = agent(says(recall), says("ok"), instructions=library.for_session())
    async with harness.session as session:
        await session.send("Run the tests.")
    (result,) = harness.bodies[1]["messages"][2]["content"]
    assert result["is_error"]
    assert "say in `intent`" in str(result)


def test_a_session_can_require_a_certain_manifest(library: Library) -> None:
    uri, sha256 = "instruction:local/main/manifest/v1", library.manifest_sha256()
    assert library.for_session(manifest_uri=uri, sha256=sha256).text == library.for_session().text
    with pytest.raises(InstructionError, match="which is not the requested one"):
        library.for_session(manifest_uri="instruction:local/main/manifest/v2")
    with pytest.raises(InstructionError, match="which is not the requested one"):
        library.for_session(sha256="0" * 64)


async def test_in_shadow_mode_the_prompt_has_all_instructions_and_recalls_are_recorded(library: Library) -> None:
    usage = tool_use("submit_usage", used_chunks=["testing"])
    provider, store = scripted_provider([usage], "Tested.", "Bye."), MemoryStore()
    async with new_session(provider, instructions=library.for_session(shadow=True), store=store) as session:
        await session.send("Write or run tests.")
        await session.send("Write release notes.")
        events = list(store.read(session.id))
    (epoch,) = (event.payload for event in events if isinstance(event.payload, EpochOpened))
    (project,) = (layer_text.text for layer_text in epoch.system if layer_text.layer == "project")
    assert "Never push to main." in project
    assert "Run the whole suite before every commit" in project
    assert "List what changed for users" in project
    assert [tool.name for tool in session.tools] == ["recall_history", "submit_usage"]
    assert changed_prefixes(events) == []
    report = library.shadow_report()
    assert (report.turns, report.reported_turns, report.coverage) == (2, 1, 1.0)
    assert library.metrics().recalls == 0


async def test_usage_before_the_first_message_is_refused_and_a_second_report_is_ignored(library: Library) -> None:
    instructed = library.for_session(shadow=True)
    (usage,) = instructed.tools
    with pytest.raises(ToolError, match="there is no message yet"):
        usage.run(used_chunks=["testing"])
    async with new_session(scripted_provider("ok"), instructions=instructed) as session:
        await session.send("Write or run tests.")
    assert usage.run(used_chunks=[]) == "on record"
    assert usage.run(used_chunks=["release-notes"]) == "on record"
    assert library.shadow_report().missed_units == {}


def test_messages_of_other_sessions_and_of_tools_are_no_turns(library: Library) -> None:
    on_event = library.for_session(shadow=True).listener
    assert on_event is not None
    appended = MessageAppended(make_user_message("write or run tests"))
    on_event(Event("1", 0.0, "one", "tool", appended))
    assert library.shadow_report().turns == 0
    on_event(Event("2", 0.0, "one", "user", appended))
    assert library.shadow_report().turns == 1
    on_event(Event("3", 0.0, "other", "user", appended))
    on_event(Event("4", 0.0, "one", "user", MessageAppended(make_user_message(" "))))
    assert library.shadow_report().turns == 1


def test_instructions_must_come_from_a_library() -> None:
    with pytest.raises(UserError, match=r"the result of Library\.for_session"):
        new_session(scripted_provider("ok"), instructions="AGENTS.md")  # type: ignore[arg-type]


async def test_units_used_after_a_recall_are_detected_in_its_turn(library: Library) -> None:
    recall = tool_use("recall_instruction", intent="write or run tests", max_chunks=1)
    provider = scripted_provider([recall], "I keep to `testing/v1`.", "I keep to release-notes/v1 now.")
    async with new_session(provider, instructions=library.for_session(), store=MemoryStore()) as session:
        await session.send("Run the tests, by release-notes/v1.")
        await session.send("Thanks.")
    measures = library.metrics()
    assert (measures.recalls, measures.closed, measures.recall_at_k) == (1, 0, None)
    assert (measures.detected.traced, measures.detected.recall_at_k, measures.detected.miss_rate) == (1, 1.0, 0.0)


async def test_in_shadow_mode_usage_is_detected_per_turn(library: Library) -> None:
    provider = scripted_provider("I add a test for each mistake that you fix.", "Bye.")
    async with new_session(provider, instructions=library.for_session(shadow=True), store=MemoryStore()) as session:
        await session.send("Write or run tests.")
        await session.send("Write release notes.")
    first, second = library._context.records.audits("main", since=0)
    assert [unit.name for unit in first.detected or ()] == ["testing"]
    assert second.detected == ()


async def test_a_heartbeat_subscribed_to_a_session_detects_usage(library: Library) -> None:
    provider = scripted_provider("As release-notes/v1 has it.", "Bye.")
    with library.heartbeat() as beat:
        async with new_session(provider, store=MemoryStore()) as session:
            session.subscribe(beat.on_event)
            text = beat.recall("write the release notes").result.chunks[0].content.text
            await session.send(f"{text}\n\nWrite them.")
    (record,) = library._context.records.audits("main", since=0)
    assert (record.used_chunks, record.detected_used) == ((), ("release-notes",))
