"""Sessions whose model uses the built-in tools and its memory, against the simulator."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.agents import MakeAgent, ReplayTransport, changed_prefixes, says
from tests.support.scripted_sessions import new_session, scripted_provider, tool_result_texts, tool_use

from holdfast import ConfirmationRequest, MemoryStore, Session, SimulatedProvider, UserError
from holdfast.clock import ManualClock
from holdfast.events.payloads.calls import LlmCallCompleted, RequestPrepared, ToolFailed
from holdfast.events.payloads.session import EpochOpened, MemoryUpdated
from holdfast.runtime.options import Options
from holdfast.types.blocks import ToolUse
from holdfast.types.prompt import LayerText


async def test_a_model_works_on_the_files_of_its_workspace(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("lamp: 7\n")
    confirmed: list[str] = []

    def confirm(request: ConfirmationRequest) -> bool:
        confirmed.append(request.summary)
        return request.tool_name != "run_command"

    provider = scripted_provider(
        [tool_use("read_file", path="notes.txt"), tool_use("grep_files", pattern="lamp"), tool_use("list_dir")],
        [tool_use("edit_file", path="notes.txt", old_text="7", new_text="6")],
        [tool_use("run_command", command="rm -rf .")],
        "Done.",
    )
    session = new_session(provider, workspace=tmp_path, builtin_tools=True, confirm=confirm)
    async with session:
        assert (await session.send("Sell a lamp.")).text == "Done."
        assert tool_result_texts(session) == [
            "lamp: 7",
            "notes.txt:1: lamp: 7",
            "notes.txt",
            "Replaced the passage at line 1 of notes.txt.",
            "The user did not allow this call.",
        ]
    assert (tmp_path / "notes.txt").read_text() == "lamp: 6\n"
    assert [line.split()[0] for line in confirmed] == ["edit_file", "run_command"]


async def test_a_memory_edit_costs_only_its_own_tokens_and_changes_no_prefix(tmp_path: Path) -> None:
    store = MemoryStore()
    provider = scripted_provider(
        "Hello.", [tool_use("memory_add", text="The user likes tea.", file="USER.md")], "Noted.", "Tea?"
    )
    async with new_session(provider, workspace=tmp_path, memory=True, store=store) as session:
        await session.send("Hi.")
        await session.send("I like tea.")
        answer = await session.send("What do I like?")
        events = list(store.read(session.id))
    payloads = [event.payload for event in events]
    assert [payload.file for payload in payloads if isinstance(payload, MemoryUpdated)] == ["USER.md"]
    usages = [payload.usage for payload in payloads if isinstance(payload, LlmCallCompleted)]
    assert all(after.cache_read == before.cache_read + before.cache_write for before, after in pairwise(usages))
    assert changed_prefixes(events) == []
    prepared = [payload for payload in payloads if isinstance(payload, RequestPrepared)]
    assert [request.digests[-1].layer for request in prepared[2:3]] == ["user_memory"]
    assert answer.usage.cache_write < 100


@pytest.fixture
def with_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "USER.md").write_text("Likes tea.\n")
    workspace = tmp_path / "workspace"
    (workspace / ".holdfast").mkdir(parents=True)
    (workspace / ".holdfast" / "MEMORY.md").write_text("Uses make.\n")
    return {"workspace": workspace, "memory": True}


def memory_texts(body: Any, message: int) -> list[str]:
    texts = [block["text"] for block in body["messages"][message]["content"] if block["type"] == "text"]
    return [text for text in texts if "memory" in text.split("\n")[0]]


async def test_memory_is_placed_before_the_users_message_with_the_user_file_first(
    agent: MakeAgent, with_memory: Options
) -> None:
    harness = agent(says("Hi."), says("Still here."), **with_memory)
    async with harness.session as session:
        await session.send("Hello.")
        await session.send("Again.")
    assert memory_texts(harness.bodies[0], 0) == [
        "<context layer='user_memory'>\n## User context (USER.md)\nLikes tea.\n</context>",
        "<context layer='memory'>\n## Workspace memory (MEMORY.md)\nUses make.\n</context>",
    ]
    assert memory_texts(harness.bodies[1], 2) == []


async def test_a_memory_edit_is_sent_with_the_next_call_and_only_the_changed_file(
    agent: MakeAgent, with_memory: Options
) -> None:
    add = ToolUse("t", "memory_add", '{"text":"Tests are slow."}')
    harness = agent(says(add), says("Noted."), **with_memory)
    async with harness.session as session:
        await session.send("Note that.")
    assert memory_texts(harness.bodies[1], 2) == [
        "<context layer='memory'>\n## Workspace memory (MEMORY.md)\nUses make.\nTests are slow.\n</context>"
    ]


async def test_in_the_seed_layout_both_files_are_one_block_after_the_system_prompt(
    agent: MakeAgent, with_memory: Options
) -> None:
    harness = agent(says("Hi."), system_prompt="Be brief.", layout="seed", **with_memory)
    async with harness.session as session:
        await session.send("Hello.")
    last_block = harness.bodies[0]["system"][-1]["text"]
    assert last_block.startswith(
        "## User context (USER.md)\nLikes tea.\n\n## Workspace memory (MEMORY.md)\nUses make.\n\n"
    )


async def test_without_the_memory_option_there_is_no_memory_and_no_tool(agent: MakeAgent, with_memory: Options) -> None:
    harness = agent(says("Hi."), workspace=with_memory["workspace"])
    async with harness.session as session:
        await session.send("Hello.")
    assert memory_texts(harness.bodies[0], 0) == []
    assert "tools" not in harness.bodies[0]


async def test_a_layer_of_the_memory_files_cannot_be_set_by_the_caller(agent: MakeAgent, with_memory: Options) -> None:
    harness = agent(says("Hi."), volatile=[LayerText("memory", "mine")], **with_memory)
    with pytest.raises(UserError, match="the layer 'memory' is used by the memory files"):
        async with harness.session as session:
            await session.send("Hello.")


async def test_tools_are_sorted_and_stay_the_same_after_a_model_switch(tmp_path: Path) -> None:
    store, provider = MemoryStore(), SimulatedProvider(clock=ManualClock())
    options: Options = {"tools": [lookup], "workspace": tmp_path, "memory": True, "store": store}
    options["builtin_tools"] = ["read_file", "list_dir"]
    async with new_session(provider, **options) as session:
        await session.send("One.")
        await session.switch_model("openai:gpt-5.6")
        await session.send("Two.")
        epochs = [event.payload for event in store.read(session.id) if isinstance(event.payload, EpochOpened)]
    names = ["list_dir", "lookup", "memory_add", "memory_consolidate", "memory_replace", "read_file", "recall_history"]
    assert [[spec.name for spec in epoch.tools] for epoch in epochs] == [names]
    sent = [[one.get("name") for one in msgspec.json.decode(record.body)["tools"]] for record in provider.requests]
    assert sent == [names, names]


def lookup(name: str) -> str:
    """Look something up."""
    return name


async def test_a_resumed_session_says_how_to_pass_its_tools_again(tmp_path: Path) -> None:
    store = MemoryStore()
    options: Options = {"workspace": tmp_path, "builtin_tools": ["read_file"], "memory": True, "tools": [lookup]}
    options["store"] = store
    async with new_session(SimulatedProvider(), **options) as session:
        await session.send("One.")
    missing = "lookup, memory_add, memory_consolidate, memory_replace, read_file"
    with pytest.raises(UserError, match=f"missing: {missing}; pass them as builtin_tools and memory=True and tools"):
        async with Session.resume(session.id, store=store, transport=SimulatedProvider()):
            pass
    async with Session.resume(session.id, **(options | {"transport": SimulatedProvider()})) as again:
        assert (await again.send("Two.")).stop_reason == "end_turn"


async def test_a_session_continues_in_another_workspace_only_if_confirmed(tmp_path: Path) -> None:
    here, there, alias = (tmp_path / name for name in ("here", "there", "alias"))
    here.mkdir()
    there.mkdir()
    alias.symlink_to(here)
    (there / "note.txt").write_text("from there")
    read = ToolUse("t1", "read_file", '{"path": "note.txt"}')
    transport = ReplayTransport([says("One."), says("Two."), says("Three."), says(read), says("Well.")])
    options: Options = {"store": MemoryStore(), "builtin_tools": ["read_file"], "transport": transport}
    in_here: Options = {**options, "workspace": here}
    async with Session.create(**in_here) as session:
        await session.send("One.")
    in_there: Options = {**options, "workspace": there}
    reason = (
        f"works in '{here}', not in '{there}'; leave out workspace to continue there, or pass another_workspace=True"
    )
    with pytest.raises(UserError, match=reason):
        async with Session.resume(session.id, **in_there):
            pass
    in_alias: Options = {**options, "workspace": alias}
    for same in (in_alias, options):
        async with Session.resume(session.id, **same) as again:
            await again.send("Two.")
    in_there["another_workspace"] = True
    async with Session.resume(session.id, **in_there) as moved:
        await moved.send("Three.")
        assert tool_result_texts(moved) == ["from there"]


async def test_a_session_without_a_workspace_gets_one_only_if_confirmed(tmp_path: Path) -> None:
    store = MemoryStore()
    async with new_session(SimulatedProvider(), store=store) as session:
        await session.send("One.")
    resumed: Options = {"store": store, "transport": SimulatedProvider(), "workspace": tmp_path}
    with pytest.raises(UserError, match="works in no workspace, not in"):
        async with Session.resume(session.id, **resumed):
            pass
    resumed["another_workspace"] = True
    async with Session.resume(session.id, **resumed) as again:
        assert (await again.send("Two.")).stop_reason == "end_turn"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"builtin_tools": True}, "builtin_tools need a workspace; pass one to the session"),
        ({"read_roots": ["/"]}, "read_roots need a workspace"),
        ({"confirm_for": ["read"]}, "confirm_for needs a function to ask"),
        ({"confirm_for": ["reading"]}, "unknown side effect 'reading' in confirm_for; known: none, read, "),
        ({"builtin_tools": "read_file"}, "builtin_tools must be True, False or a list of names, not str"),
        ({"memory": "yes"}, "memory must be True or False, not str"),
        ({"confirm": True}, "confirm must be a function that says whether a call may run, not bool"),
        ({"allowed": "all"}, "allowed must be a function"),
        ({"confirm_seconds_max": 0}, "confirm_seconds_max must be a number of seconds above 0"),
        ({"confirm_seconds_max": True}, "confirm_seconds_max must be a number of seconds above 0"),
        ({"read_roots": [3]}, "read_roots must be a list of paths"),
        ({"read_roots": "/"}, "read_roots must be a list, not str"),
        ({"read_roots": ["/", "/nope"]}, "read_roots: '/nope' is not a folder; check the path, or leave it out"),
        ({"another_workspace": "yes"}, "another_workspace must be True or False, not str"),
    ],
)
async def test_invalid_options_are_refused(options: Options, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        async with new_session(SimulatedProvider(), **options):
            pass


async def test_built_in_tools_with_side_effects_need_a_confirmation_or_an_explicit_opt_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="edit_file, run_command, write_file can change things, and would run without"):
        async with new_session(SimulatedProvider(), workspace=tmp_path, builtin_tools=True):
            pass
    provider = scripted_provider([tool_use("write_file", path="a", content="x")], "Done.")
    async with new_session(provider, workspace=tmp_path, builtin_tools=True, confirm_for=[]) as session:
        await session.send("Go.")
    assert (tmp_path / "a").read_text() == "x"


async def test_a_rule_of_the_session_refuses_a_call_with_its_reason(tmp_path: Path) -> None:
    store = MemoryStore()
    provider = scripted_provider([tool_use("list_dir")], "Well.")
    options: Options = {"workspace": tmp_path, "builtin_tools": ["list_dir"], "store": store}
    options["allowed"] = lambda use: f"no {use.name}"
    async with new_session(provider, **options) as session:
        await session.send("Go.")
        (failed,) = [event.payload for event in store.read(session.id) if isinstance(event.payload, ToolFailed)]
    assert (failed.error_class, failed.error_message) == ("permission_denied", "This call is not allowed: no list_dir")


async def test_a_session_can_read_other_folders_and_its_own_long_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    for name in ("workspace", "skills"):
        (tmp_path / name).mkdir()
    (tmp_path / "skills" / "guide.md").write_text("Be kind.")

    def flood() -> str:
        """Flood."""
        return "x" * 200_000 + "\nthe end"

    provider = scripted_provider(
        [tool_use("read_file", path=str(tmp_path / "skills" / "guide.md"))],
        [tool_use("flood")],
        "Well.",
    )
    options: Options = {
        "workspace": tmp_path / "workspace",
        "builtin_tools": ["read_file"],
        "read_roots": [tmp_path / "skills"],
        "tools": [flood],
    }
    async with new_session(provider, **options) as session:
        await session.send("Go.")
        guide, flooded = tool_result_texts(session)
    (stored,) = (tmp_path / "home" / "outputs" / session.id).iterdir()
    assert guide == "Be kind."
    assert f"all 200008 bytes are in {stored.resolve()}, sha:" in flooded


@pytest.mark.parametrize("source", ["option", "home file", "nowhere"])
async def test_a_variable_reaches_commands_only_if_the_user_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setenv("GITHUB_PAT", "gh-1")
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    for name in ("home", "workspace"):
        (tmp_path / name).mkdir()
    if source == "home file":
        (tmp_path / "home" / "config.toml").write_text('command_variables = ["GITHUB_PAT"]\n')
    provider = scripted_provider([tool_use("run_command", command="echo ${GITHUB_PAT-none}")], "Well.")
    options: Options = {"workspace": tmp_path / "workspace", "builtin_tools": True, "confirm_for": []}
    if source == "option":
        options["command_variables"] = ["GITHUB_PAT"]
    async with new_session(provider, **options) as session:
        await session.send("Go.")
        assert tool_result_texts(session) == ["none\n" if source == "nowhere" else "gh-1\n"]


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", ".holdfast/config.toml"])
async def test_configuration_of_the_agent_can_be_read_and_not_written(tmp_path: Path, path: str) -> None:
    protected = tmp_path / path
    protected.parent.mkdir(parents=True)
    protected.write_text("# as it was")
    provider = scripted_provider(
        [tool_use("read_file", path=path)], [tool_use("write_file", path=path, content="x")], "Well."
    )
    options: Options = {"workspace": tmp_path, "builtin_tools": True, "confirm_for": []}
    async with new_session(provider, **options) as session:
        await session.send("Go.")
        read, written = tool_result_texts(session)
    assert read == "# as it was"
    assert "may be read but not written" in written
    assert protected.read_text() == "# as it was"
