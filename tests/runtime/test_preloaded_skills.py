"""Skills whose bodies padding put into the prefix: what counts as their use, in a session and in its children."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.agents import MakeAgent, Step, says
from tests.support.scripted_sessions import new_session, scripted_provider, tool_use
from tests.support.skill_folders import first_request, load, system_texts, write_skill

from holdfast.engine.reducer import fold_events
from holdfast.events.log import Event
from holdfast.events.payloads.calls import ToolCompleted
from holdfast.events.payloads.session import SkillLoaded, SkillUsed
from holdfast.ledger.analytics.queries import LedgerScope
from holdfast.service.api.analytics_rows import make_skill_rows
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import Text, Thinking, ToolResult, ToolUse
from holdfast.types.json_encoding import encode_json

STEPS = "Open the ledger, then strike every entry that the harbour master left without a signature."
FOLLOWED = "I will strike every entry that the harbour master left without a signature, as ever."
BODY = f"# Steps\n\n{STEPS}\n\n{'Mind the tide. ' * 60}\n"
FOLDER = ".holdfast/skills/ledger"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    write_skill(folder / ".holdfast/skills", "ledger", body=BODY)
    (folder / FOLDER / "signatures.md").write_text("Ann, Bob\n")
    return folder


def call(tool: str, **arguments: object) -> ToolUse:
    return ToolUse("t1", tool, encode_json(arguments).decode())


def preloads(log: MemoryStore) -> dict[str, tuple[int, int]]:
    """How often each skill was preloaded, and its wasted tokens, as the API reports them."""
    rows = make_skill_rows(log.analytics_queries().skill_loads(LedgerScope(simulated=True)))
    return {row.skill: (row.loads_always, row.wasted_preload_tokens) for row in rows}


def all_events(log: MemoryStore) -> list[Event]:
    return [event for row in log.sessions() for event in log.read(row.id)]


def uses(log: MemoryStore) -> list[tuple[str, str]]:
    payloads = (event.payload for event in all_events(log))
    return [(payload.skill_id, payload.evidence) for payload in payloads if isinstance(payload, SkillUsed)]


async def run(agent: MakeAgent, folder: Path, *steps: Step, message: str = "Close.", **options: Any) -> MemoryStore:
    """The log of a session with `ledger` preloaded that got these replies."""
    harness = agent(*steps, workspace=folder, skills=True, padding="always", builtin_tools=["read_file"], **options)
    async with harness.session as session:
        await session.send(message)
    return harness.store


@pytest.mark.parametrize(
    ("used_by", "evidence"),
    [
        (load("ledger"), "skill_load"),
        (call("read_file", path=f"{FOLDER}/signatures.md"), "folder"),
        (call("count", lines=[{"text": FOLLOWED}]), "output"),
        (FOLLOWED, "output"),
        (FOLLOWED.upper().replace(" ", "\n"), "output"),
    ],
)
async def test_a_preload_that_the_model_asks_for_reads_or_follows_is_not_wasted(
    agent: MakeAgent, workspace: Path, used_by: ToolUse | str, evidence: str
) -> None:
    store = await run(agent, workspace, says("Let me see.", used_by), says("Done."), says("Done."))
    assert uses(store) == [("ledger", evidence)]
    assert preloads(store) == {"ledger": (1, 0)}


async def test_the_absolute_path_of_the_folder_is_evidence_too(agent: MakeAgent, workspace: Path) -> None:
    path = str(workspace / FOLDER / "signatures.md")
    store = await run(agent, workspace, says(call("read_file", path=path)), says("Done."))
    assert uses(store) == [("ledger", "folder")]


@pytest.mark.parametrize(
    "reply",
    [
        (Text("Done."),),
        (Text("I know the ledger skill, but there is nothing to close."),),
        # The words of the index, not of the body.
        (Text("ledger: A test skill. Use it in tests. Use `skill_search(query)` to filter and load."),),
        (Text("Strike every entry that the harbour master keeps."),),
        (Thinking(FOLLOWED, signature="s"), Text("Done.")),
        (call("read_file", path=f"{FOLDER}-old/signatures.md"),),
        (call("skill_load", name="other"),),
    ],
)
async def test_a_preload_without_evidence_is_wasted(agent: MakeAgent, workspace: Path, reply: Any) -> None:
    store = await run(agent, workspace, says(*reply), says("Done."))
    assert uses(store) == []
    assert preloads(store) == {"ledger": (1, len(BODY) // 4)}


async def test_repeating_words_of_the_user_is_no_evidence(agent: MakeAgent, workspace: Path) -> None:
    store = await run(agent, workspace, says(FOLLOWED), message=f"Do this: {STEPS}")
    assert uses(store) == []


async def test_repeating_words_of_a_tool_result_is_no_evidence(agent: MakeAgent, workspace: Path) -> None:
    (workspace / "notes.md").write_text(STEPS)
    store = await run(agent, workspace, says(call("read_file", path="notes.md")), says(FOLLOWED))
    assert uses(store) == []


async def test_repeating_words_of_the_rest_of_the_system_prompt_is_no_evidence(
    agent: MakeAgent, workspace: Path
) -> None:
    assert uses(await run(agent, workspace, says(FOLLOWED), system_prompt=f"You keep the books. {STEPS}")) == []


async def test_words_that_two_bodies_share_are_evidence_for_neither(agent: MakeAgent, workspace: Path) -> None:
    write_skill(workspace / ".holdfast/skills", "log-book", body=f"# Log\n\n{STEPS}\n\nAll crews sign at dusk.\n")
    store = await run(agent, workspace, says(FOLLOWED))
    assert {name for name, (always, _) in preloads(store).items() if always} == {"ledger", "log-book"}
    assert uses(store) == []


async def test_a_use_is_recorded_once_and_survives_a_resume(agent: MakeAgent, workspace: Path) -> None:
    store = await run(agent, workspace, says(load("ledger")), says(load("ledger")), says(FOLLOWED))
    assert uses(store) == [("ledger", "skill_load")]
    (row,) = store.sessions()
    active = fold_events(store.read(row.id), row.id).activations
    assert (active.preloaded, active.used, active.loaded) == (("ledger",), ("ledger",), ())


async def test_a_real_session_counts_exactly_the_preloads_that_were_not_used(workspace: Path) -> None:
    unused = "Grease the winch before noon.\n"
    write_skill(workspace / ".holdfast/skills", "winch", body=unused)
    provider = scripted_provider([tool_use("read_file", path=f"{FOLDER}/signatures.md")], "Two signed.", "Bye.")
    store = MemoryStore()
    async with new_session(
        provider, workspace=workspace, skills=True, padding="always", builtin_tools=["read_file"], store=store
    ) as session:
        await session.send("Who signed?")
        await session.send("Thanks.")
    assert preloads(store) == {"ledger": (1, 0), "winch": (1, len(unused) // 4)}


async def test_a_preloaded_section_names_its_folder_relative_to_the_workspace(
    agent: MakeAgent, workspace: Path, tmp_path: Path
) -> None:
    write_skill(tmp_path / "own", "winch", body="Grease it.\n")
    skills = [workspace / ".holdfast/skills", tmp_path / "own"]
    body = await first_request(agent, workspace=workspace, skills=skills, padding="always")
    named = re.findall(r"^The files of this skill are in (.*)$", system_texts(body)[-1], re.MULTILINE)
    assert named == [FOLDER, f"{tmp_path}/own/winch"]


async def test_a_delegated_child_gets_a_pointer_to_its_parents_preload(agent: MakeAgent, workspace: Path) -> None:
    write_skill(workspace / ".holdfast/skills", "winch", body="Grease the winch before noon.\n")
    store = await run(
        agent,
        workspace,
        says(call("delegate", task="Close the month.")),
        says(load("ledger")),
        says("Closed."),
        says("All done."),
        delegate=True,
    )
    parent, child = sorted(store.sessions(), key=lambda row: row.parent_session_id is not None)
    state = fold_events(store.read(child.id), child.id)
    results = [block for entry in state.entries for block in entry.content if isinstance(block, ToolResult)]
    assert ["already loaded in the system prompt" in str(result.content) for result in results] == [True]
    assert (state.activations.preloaded, state.activations.loaded) == (("ledger", "winch"), ())
    # The preload is the parent's: it is loaded once, and the child's use counts for it.
    assert [event.session_id for event in all_events(store) if isinstance(event.payload, SkillLoaded)] == [
        parent.id
    ] * 2
    assert preloads(store) == {"ledger": (1, 0), "winch": (1, 7)}


async def test_the_metadata_of_a_skill_call_is_on_its_event(agent: MakeAgent, workspace: Path) -> None:
    write_skill(workspace / ".holdfast/skills", "z-crane", body="Lift.\n" * 5_000)
    store = await run(
        agent,
        workspace,
        says(load("ledger")),
        says(load("z-crane")),
        says(load("z-crane")),
        says(call("skill_search", query="crane")),
        says("Done."),
    )
    events = (event.payload for event in all_events(store))
    recorded = [payload.metadata or {} for payload in events if isinstance(payload, ToolCompleted)]
    assert [metadata.get("already_preloaded") for metadata in recorded] == [True, None, None, None]
    assert [metadata.get("already_loaded") for metadata in recorded] == [None, None, True, None]
    assert [metadata.get("skill_id") for metadata in recorded] == ["ledger", "z-crane", "z-crane", None]
    assert recorded[3] == {"query": "crane", "result_count": 1, "result_names": ["z-crane"]}
