"""Dependencies of a session: project context, provider, store and limits; and how a wrong choice is refused."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.support.agents import MakeAgent, ReplayTransport, says

from holdfast import Session, SimulatedProvider
from holdfast.clock import ManualClock
from holdfast.errors import ProviderError, UserError
from holdfast.events.payloads.calls import RequestPrepared
from holdfast.events.payloads.session import EpochOpened, SessionStarted
from holdfast.layers.system_prompt import SystemPromptBuilder
from holdfast.simulator.script import parse_script
from holdfast.simulator.server import serve_simulator
from holdfast.stores.sqlite.store import SqliteStore

LONG = "You are a patient tutor. Explain one step at a time. " * 60


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=folder, check=True)
    (folder / "AGENTS.md").write_text("Use tabs.\n")
    return folder


async def test_instruction_files_are_pinned_and_the_environment_names_the_workspace(
    agent: MakeAgent, workspace: Path
) -> None:
    harness = agent(says("ok"), says("ok"), workspace=workspace, system_prompt="Be kind.")
    async with harness.session as session:
        await session.send("hello")
        (workspace / "AGENTS.md").write_text("Use spaces.\n")
        (workspace / "new.py").write_text("")
        await session.send("again")
    texts = [block["text"] for block in harness.bodies[1]["system"]]
    assert texts[0] == "Be kind."
    assert "Use tabs." in texts[1]
    assert "Use spaces." not in harness.transport.bodies[1].decode()
    first, second = (
        message["content"][0]["text"] for message in harness.bodies[1]["messages"] if message["role"] == "user"
    )
    assert "2027-01-15" in first
    assert str(workspace) in first
    assert "new.py" not in harness.transport.bodies[0].decode()
    assert second.startswith("<context layer='git'>")
    assert "new.py" in second


async def test_the_project_context_is_pinned_on_the_log(agent: MakeAgent, workspace: Path) -> None:
    harness = agent(workspace=workspace, name="tabs", persona="Calm.", system_prompt="Be kind.")
    async with harness.session as session:
        assert session.name == "tabs"
    started, epoch = harness.payloads
    assert isinstance(started, SessionStarted)
    assert started.workspace_path == str(workspace)
    assert len(started.workspace_hash or "") == 64
    assert isinstance(epoch, EpochOpened)
    assert [layer_text.layer for layer_text in epoch.system] == ["preset", "persona", "project"]
    assert epoch.epoch == 1


async def test_a_builders_prompt_is_split_at_its_boundary(agent: MakeAgent) -> None:
    prompt = SystemPromptBuilder().with_appended("Deploys are frozen.").render()
    harness = agent(says("ok"), system_prompt=prompt)
    async with harness.session as session:
        await session.send("hello")
    (system,) = harness.bodies[0]["system"]
    assert system["text"].startswith("You are")
    assert "frozen" not in system["text"]
    assert "Deploys are frozen." in harness.bodies[0]["messages"][0]["content"][0]["text"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "anthropic:claude-sonet-5-5"}, "did you mean anthropic:claude-sonnet-5-5"),
        ({"steps_max": 0}, "steps_max must be a whole number"),
        ({"spend_max_usd": "much"}, "spend_max_usd must be an amount"),
        ({"layout": "mine"}, "layout must be one of default, seed"),
        ({"store": "postgresql://me:secret/db"}, "this PostgreSQL address cannot be parsed"),
    ],
)
async def test_a_wrong_option_is_a_one_line_error(agent: MakeAgent, options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        async with agent(says("x"), **options).session:
            pass
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_missing_key_says_how_to_provide_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="set ANTHROPIC_API_KEY, or run `holdfast simulate`"):
        async with Session.create(store=tmp_path / "x.db"):
            pass


async def test_a_failed_start_leaves_nothing_open(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with pytest.raises(UserError):
        async with Session.create(store=path, model="x:y"):
            pass
    with SqliteStore(path) as log:
        assert log.sessions() == ()


async def test_the_output_limit_is_never_above_the_models_own(agent: MakeAgent) -> None:
    harness = agent(says("x"), output_tokens_max=10_000_000)
    async with harness.session as session:
        await session.send("hello")
    assert 1 < harness.bodies[0]["max_tokens"] < 10_000_000


async def test_parameters_reach_the_wire_and_betas_the_header(agent: MakeAgent) -> None:
    harness = agent(
        says("x"),
        betas=["context-1m-2025-08-07", "two"],
        thinking={"type": "enabled", "budget_tokens": 1024},
        stop_sequences=["END"],
        output_tokens_max=99,
    )
    async with harness.session as session:
        await session.send("hello")
    body = harness.bodies[0]
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 1024}
    assert (body["stop_sequences"], body["max_tokens"]) == (["END"], 99)
    betas = dict(harness.transport.endpoints[0].headers)["anthropic-beta"]
    assert betas.split(",")[:2] == ["context-1m-2025-08-07", "two"]
    assert b"context-1m" not in harness.transport.bodies[0]


async def test_a_model_can_be_added_by_configuration(agent: MakeAgent, tmp_path: Path) -> None:
    home = Path(os.environ["HOLDFAST_HOME"])
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text('[models."anthropic:mine"]\nlike = "anthropic:claude-sonnet-5-5"\n')
    harness = agent(says("x"), model="anthropic:mine", workspace=tmp_path)
    async with harness.session as session:
        await session.send("hello")
    assert harness.bodies[0]["model"] == "mine"


async def test_a_session_over_http_reads_its_prefix_from_the_cache_until_it_expires(tmp_path: Path) -> None:
    provider = SimulatedProvider(clock=ManualClock())
    server = await serve_simulator(provider)
    try:
        async with Session.create(base_url=server.url, system_prompt=LONG, store=tmp_path / "x.db") as session:
            first = (await session.send("one")).usage
            second = (await session.send("two")).usage
            provider.advance(301)
            third = (await session.send("three")).usage
    finally:
        await server.aclose()
    assert first.cache_read == 0
    assert second.cache_read == first.cache_write
    assert third.cache_read == 0
    assert third.cache_write == third.tokens_sent > second.tokens_sent


async def test_a_session_over_http_retries_a_transient_fault_and_raises_a_permanent_one(tmp_path: Path) -> None:
    script = parse_script(
        '{"fault": "529;retry-after=0"}\n{"content": [{"type": "text", "text": "there"}]}\n{"fault": "400"}\n'
    )
    server = await serve_simulator(SimulatedProvider(script=script))
    try:
        async with Session.create(base_url=server.url, store=tmp_path / "x.db") as session:
            assert (await session.send("hello")).text == "there"
            with pytest.raises(ProviderError) as caught:
                await session.send("again")
    finally:
        await server.aclose()
    assert (caught.value.kind, caught.value.status) == ("invalid_request", 400)


async def test_thinking_bound_to_its_prefix_is_sent_back_unchanged(agent: MakeAgent) -> None:
    script = parse_script(
        '{"content": [{"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "name": "look", "input": {}}]}\n'
        '{"content": [{"type": "thinking", "thinking": "aha"}, {"type": "text", "text": "done"}]}\n'
        '{"content": [{"type": "text", "text": "yes"}]}\n'
    )
    ticks = iter(["Monday", "Tuesday", "Wednesday", "Thursday"])

    def look() -> str:
        """Look."""
        return "seen"

    provider = SimulatedProvider(script=script)
    harness = agent(transport=provider, system_prompt=LONG, system_prompt_volatile=lambda: next(ticks), tools=[look])
    async with harness.session as session:
        assert (await session.send("go")).text == "done"
        assert (await session.send("sure?")).text == "yes"
    prepared = [event for event in harness.payloads if isinstance(event, RequestPrepared)]
    assert len(prepared) == 3


@pytest.mark.changes_prefix(reason="the seed layout puts volatile text before the history")
async def test_the_seed_layout_works_with_thinking_that_is_bound_to_its_prefix(agent: MakeAgent) -> None:
    script = parse_script(
        '{"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "one"}]}\n'
        '{"content": [{"type": "thinking", "thinking": "aha"}, {"type": "text", "text": "two"}]}\n'
    )
    ticks = iter(["Monday", "Tuesday"])
    provider = SimulatedProvider(script=script)
    harness = agent(transport=provider, system_prompt=LONG, system_prompt_volatile=lambda: next(ticks), layout="seed")
    async with harness.session as session:
        await session.send("go")
        assert (await session.send("sure?")).text == "two"


async def test_two_sessions_with_the_same_prefix_share_one_cache_entry() -> None:
    provider = SimulatedProvider()
    async with (
        Session.create(transport=provider, system_prompt=LONG, store="memory:") as one,
        Session.create(transport=provider, system_prompt=LONG, store="memory:") as two,
    ):
        written = (await one.send("a question of my own")).usage
        read = (await two.send("quite another question")).usage
    assert written.cache_read == 0
    assert 0 < read.cache_read < written.cache_write


async def test_a_callers_transport_is_not_closed_with_the_session(agent: MakeAgent) -> None:
    transport = ReplayTransport([says("x")])
    async with agent(transport=transport).session as session:
        await session.send("hello")
    assert not transport.closed
