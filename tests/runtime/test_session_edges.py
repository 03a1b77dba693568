"""Odd replies, options and moments: the session continues, or says in one line why not."""

import asyncio
import os
from contextlib import aclosing
from decimal import Decimal
from pathlib import Path

import pytest
from tests.support.agents import MakeAgent, Pause, ReplayTransport, says

from holdfast import Base64Source, Image, Session, SimulatedProvider, UrlSource, run_sync
from holdfast.clock import CountingIds
from holdfast.errors import BudgetError, ProviderError, StoreError, UserError
from holdfast.events.payloads.calls import LlmCallFailed, RequestPrepared
from holdfast.events.payloads.session import ContextInjected, TurnCancelled
from holdfast.ledger.calls import iter_calls
from holdfast.simulator.script import parse_script
from holdfast.types.blocks import Opaque, Text, Thinking, ToolResult, ToolUse
from holdfast.types.prompt import LayerText
from holdfast.types.reply import Reply, TextDelta
from holdfast.types.transcript import validate_transcript
from holdfast.types.usage import Usage

THINKING = b"\n".join(
    b'{"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "answer %d"}]}' % number
    for number in range(5)
)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.changes_prefix(reason="ephemeral text leaves with its turn")
async def test_ephemeral_text_works_with_bound_thinking(agent: MakeAgent) -> None:
    provider = SimulatedProvider(script=parse_script(THINKING))
    retrieved = [LayerText("rag-context", "found", ephemeral=True)]
    async with agent(transport=provider, volatile=retrieved).session as session:
        answers = [(await session.send(question)).text for question in ("one", "two", "three")]
    assert answers == ["answer 0", "answer 1", "answer 2"]


@pytest.mark.changes_prefix(reason="the seed layout puts volatile text before the history")
async def test_volatile_text_may_appear_late_in_the_seed_layout(agent: MakeAgent) -> None:
    provider = SimulatedProvider(script=parse_script(THINKING))
    texts = iter(["", "", "now", "now", ""])
    harness = agent(transport=provider, layout="seed", system_prompt_volatile=lambda: next(texts))
    async with harness.session as session:
        answers = [(await session.send(str(number))).text for number in range(5)]
    assert answers == [f"answer {number}" for number in range(5)]


@pytest.mark.changes_prefix(reason="ephemeral text leaves with its turn")
async def test_text_that_stops_being_ephemeral_within_a_turn_is_sent_once(agent: MakeAgent) -> None:
    layers = iter([LayerText("memory", "one", ephemeral=True), *[LayerText("memory", "zwei")] * 2])
    harness = agent(
        says(ToolUse("t", "add", '{"a":1,"b":2}')), says("3"), says("ok"), tools=[add], volatile=lambda: [next(layers)]
    )
    async with harness.session as session:
        await session.send("go")
        await session.send("more")
    assert b"one" not in harness.transport.bodies[2]
    assert harness.transport.bodies[2].count(b"zwei") == 1


@pytest.mark.parametrize(
    "content",
    [(Text(""),), (Text(" \n"), Thinking("hm", "s")), (Thinking("hm", "s"),)],
    ids=["empty text", "blank text and thinking", "thinking only"],
)
async def test_a_reply_that_could_not_be_sent_back_does_not_enter_the_history(
    agent: MakeAgent, content: tuple[Text | Thinking, ...]
) -> None:
    harness = agent(Reply(content, "max_tokens", Usage(input=5, output=7)), says("ok"))
    async with harness.session as session:
        answer = await session.send("hello")
        assert (answer.content, answer.stop_reason, answer.usage.output) == ((), "max_tokens", 7)
        await session.send("again")
        assert validate_transcript(session.history) == ()
    assert [message["role"] for message in harness.bodies[1]["messages"]] == ["user"]


async def test_blank_text_beside_other_blocks_is_dropped(agent: MakeAgent) -> None:
    harness = agent(says(Text(""), "real", Text("  ")))
    async with harness.session as session:
        assert (await session.send("hello")).content == (Text("real"),)


async def test_a_call_with_unknown_fields_is_run_and_gets_a_result(agent: MakeAgent) -> None:
    raw = b'{"type":"tool_use","id":"t9","name":"add","input":{"a":1,"b":2},"caller":{"type":"code","tool_id":"x"}}'
    harness = agent(says(Opaque("tool_use", raw)), says("three"), tools=[add])
    async with harness.session as session:
        assert (await session.send("1 + 2?")).text == "three"
        assert session.history[2].content == (ToolResult("t9", (Text("3"),), name="add"),)
    assert harness.bodies[1]["messages"][1]["content"][0]["caller"] == {"type": "code", "tool_id": "x"}


async def test_closing_a_stream_early_lets_the_next_turn_begin(agent: MakeAgent) -> None:
    harness = agent(Pause(says("long"), events=3), says("ok"))
    async with harness.session as session:
        async with aclosing(session.stream("hello")) as items:
            async for item in items:
                if isinstance(item, TextDelta):
                    break
        assert (await session.send("again")).text == "ok"


async def test_a_refused_stream_leaves_no_listener(agent: MakeAgent) -> None:
    harness = agent(Pause(says("x"), events=0), says("ok"))
    async with harness.session as session:
        turn = asyncio.ensure_future(session.send("hello"))
        await harness.transport.paused.wait()
        for _ in range(3):
            with pytest.raises(UserError, match=r"a turn is in progress .*contextlib\.aclosing"):
                async for _item in session.stream("me too"):
                    pass
        assert len(session._bus._listeners) == 0
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)


async def test_the_usage_of_an_interrupted_call_is_counted_and_paid(agent: MakeAgent) -> None:
    reply = says("long", usage=Usage(input=1_000_000, output=1))
    harness = agent(Pause(reply, events=3), says("never"), spend_max_usd="2.05", output_tokens_max=1)
    async with harness.session as session:
        turn = asyncio.ensure_future(session.send("hello"))
        await harness.transport.paused.wait()
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
        assert session.usage.input == 1_000_000
        assert session.cost >= Decimal(2)
        failed = next(payload for payload in harness.payloads if isinstance(payload, LlmCallFailed))
        assert failed.usage.input == 1_000_000
        (record,) = iter_calls(harness.events)
        assert (record.completed, record.cost_usd) == (False, session.cost)
        with pytest.raises(BudgetError):
            await session.send("again " * 20_000)


async def test_a_budget_assumes_the_higher_price_of_a_prompt_that_may_be_larger_than_estimated(
    agent: MakeAgent,
) -> None:
    # Just under 100K tokens by estimate; above that the whole prompt costs five times as much.
    harness = agent(model="anthropic:claude-haiku-5-5", system_prompt="word " * 62_000, spend_max_usd="0.03")
    async with harness.session as session:
        with pytest.raises(BudgetError):
            await session.send("hello")


async def test_a_resumed_session_can_be_given_another_budget(agent: MakeAgent) -> None:
    harness = agent(says("x", usage=Usage(output=900)), says("y"), spend_max_usd="0.02", output_tokens_max=1000)
    async with harness.session as session:
        await session.send("hello")
        id = session.id
        with pytest.raises(BudgetError):
            await session.send("again " * 300)
    common = {key: value for key, value in harness.options.items() if key != "spend_max_usd"}
    async with Session.resume(id, **common) as session:  # type: ignore[arg-type]
        with pytest.raises(BudgetError):
            await session.send("again " * 300)
    async with Session.resume(id, **{**common, "spend_max_usd": "10"}) as session:  # type: ignore[arg-type]
        assert (await session.send("again")).text == "y"


async def test_a_resumed_session_keeps_its_parameters_and_its_volatile_text(agent: MakeAgent) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    harness = agent(
        says("x"),
        says("y"),
        thinking=thinking,
        betas=["b"],
        stop_sequences=["END"],
        output_tokens_max=77,
        system_prompt_volatile="Monday",
    )
    async with harness.session as session:
        await session.send("hello")
        id = session.id
    async with Session.resume(id, store=harness.store, transport=harness.transport) as session:
        await session.send("again")
    first, second = harness.bodies
    for field in ("thinking", "stop_sequences", "max_tokens", "model"):
        assert second[field] == first[field]
    assert harness.transport.endpoints[1] == harness.transport.endpoints[0]
    assert sum(isinstance(payload, ContextInjected) for payload in harness.payloads) == 1


async def test_a_resumed_seed_session_keeps_its_volatile_text(agent: MakeAgent) -> None:
    harness = agent(says("x"), says("y"), layout="seed", system_prompt="S", system_prompt_volatile="Monday")
    async with harness.session as session:
        await session.send("hello")
        id = session.id
    async with Session.resume(id, store=harness.store, transport=harness.transport) as session:
        await session.send("again")
    assert harness.bodies[1]["system"][1]["text"] == "Monday"
    prepared = [payload for payload in harness.payloads if isinstance(payload, RequestPrepared)]
    assert prepared[1].shared_blocks == 3


@pytest.mark.parametrize(
    ("option", "other"),
    [
        ("system_prompt", "other"),
        ("persona", "other"),
        ("layout", "seed"),
        ("profile", "seed"),
        ("name", "other"),
        ("model", "anthropic:claude-opus-5-5"),
    ],
)
async def test_pinned_options_can_be_repeated_but_not_changed(agent: MakeAgent, option: str, other: str) -> None:
    pinned = {"system_prompt": "S\ud800", "persona": "P", "layout": "default", "profile": "default", "name": "N"}
    harness = agent(says("x"), says("y"), **pinned)
    async with harness.session as session:
        await session.send("hello")
    async with Session.resume(session.id, **harness.options) as again:
        assert (await again.send("more")).text == "y"
    with pytest.raises(UserError, match=f"{option} is fixed when a session is created"):
        async with Session.resume(session.id, **{**harness.options, option: other}):  # type: ignore[arg-type]
            pass


async def test_a_resumed_session_needs_its_tools_and_keeps_their_original_definitions(
    agent: MakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    harness = agent(says("x"), tools=[add])
    async with harness.session as session:
        id = session.id
    with pytest.raises(UserError, match="tools whose functions are missing: add"):
        async with Session.resume(id, store=harness.store, transport=harness.transport):
            pass

    def changed(a: int, b: int, c: int = 0) -> int:
        """Add three."""
        return a + b + c

    changed.__name__ = "add"

    def later() -> None:
        """Come later."""

    async with Session.resume(id, store=harness.store, transport=harness.transport, tools=[changed, later]) as session:
        await session.send("hello")
    assert [spec["description"] for spec in harness.bodies[0]["tools"]][:1] == ["Add two numbers."]
    assert "the definitions from when the session was created for these tools: add" in caplog.text
    assert "tools added after the session was created are not shown to the model: later" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sytem_prompt": "x"}, "unknown option 'sytem_prompt'; did you mean 'system_prompt'?"),
        ({"zzz": 1}, "unknown option 'zzz'; known options: model, "),
        ({"system_prompt": 5}, "system_prompt must be text, not int"),
        ({"tools": add}, "tools must be a list, not function"),
        ({"betas": "abc"}, "betas must be a list, not str"),
        ({"stop_sequences": [1]}, "stop_sequences must be a list of texts, not list"),
        ({"system_prompt_volatile": 5}, "system_prompt_volatile must be text or a function that returns text, not int"),
        ({"volatile": ["x"]}, "volatile must be a list of LayerText or a function that returns one, not list"),
        ({"workspace": 5}, "workspace must be a path, not int"),
        ({"workspace": "/no/such/folder"}, "workspace '/no/such/folder' is not a folder"),
        ({"thinking": "on"}, "thinking must be a mapping"),
        ({"store": 5}, "store must be a path, a URL or a store, not int"),
        ({"transport": 5}, "transport must be a transport or a simulated provider, not int"),
        ({"transport": SimulatedProvider}, "transport must be a transport or a simulated provider, not type"),
        ({"single_flight": "no"}, "single_flight must be a SingleFlight, True or False, not str"),
        ({"prewarm": 1}, "prewarm must be True or False, not int"),
        ({"clock": 5}, "clock must be a function that returns the time, not int"),
        ({"new_id": 5}, "new_id must be a function that returns an id, not int"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        Session.create(**options)  # type: ignore[arg-type]
    assert message in str(caught.value)


async def test_none_means_that_an_option_is_not_set(agent: MakeAgent) -> None:
    async with agent(says("ok"), system_prompt=None, tools=None, name=None).session as session:
        assert (await session.send("hello")).text == "ok"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"system_prompt_volatile": lambda: None}, "system_prompt_volatile must return text, not NoneType"),
        ({"volatile": lambda: ["x"]}, "volatile must return a list of LayerText"),
        ({"volatile": lambda: 3}, "volatile must return a list of LayerText"),
        ({"volatile": [LayerText("notes", "x")]}, "unknown volatile layer 'notes'; known layers: metadata, "),
    ],
)
async def test_volatile_text_of_the_wrong_kind_is_refused(
    agent: MakeAgent, options: dict[str, object], message: str
) -> None:
    harness = agent(says("x"), **options)
    async with harness.session as session:
        with pytest.raises(UserError) as caught:
            await session.send("hello")
    assert message in str(caught.value)
    assert isinstance(harness.payloads[-1], TurnCancelled)


async def test_volatile_functions_may_be_asynchronous(agent: MakeAgent) -> None:
    async def text() -> str:
        return "Monday"

    async def layers() -> list[LayerText]:
        return [LayerText("memory", "milk")]

    harness = agent(says("ok"), system_prompt_volatile=text, volatile=layers)
    async with harness.session as session:
        await session.send("hello")
    assert [payload.layer for payload in harness.payloads if isinstance(payload, ContextInjected)] == [
        "memory",
        "volatile",
    ]


@pytest.mark.parametrize("layout", ["default", "seed"])
async def test_the_boundary_and_lone_surrogates_never_reach_the_wire(
    agent: MakeAgent, layout: str, tmp_path: Path
) -> None:
    bad = "a __SYSTEM_PROMPT_DYNAMIC_BOUNDARY__ \ud800 b"
    (tmp_path / "CLAUDE.md").write_text("x __SYSTEM_PROMPT_DYNAMIC_BOUNDARY__ y")
    harness = agent(
        says("ok"),
        system_prompt=bad,
        persona=bad,
        name=bad,
        system_prompt_volatile=bad,
        volatile=[LayerText("memory", bad)],
        workspace=tmp_path,
        layout=layout,
    )
    async with harness.session as session:
        await session.send("hello")
    assert b"BOUNDARY" not in harness.transport.bodies[0]
    assert "�".encode() in harness.transport.bodies[0]


async def test_a_single_block_can_be_sent_and_anything_else_is_refused(agent: MakeAgent) -> None:
    harness = agent(says("ok"))
    async with harness.session as session:
        assert (await session.send(Text("hello"))).text == "ok"
        with pytest.raises(UserError, match="a message is text or a list of text and images, not NoneType"):
            await session.send(None)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="can hold text and images, not str"):
            await session.send(["hello"])  # type: ignore[list-item]
        with pytest.raises(UserError, match="can hold text and images, not str"):
            await session.send([""])  # type: ignore[list-item]
        with pytest.raises(UserError, match="can hold text and images, not NoneType"):
            await session.send([Text("a"), None])  # type: ignore[list-item]
        with pytest.raises(UserError, match="the text of a message must be text, not int"):
            await session.send(Text(5))  # type: ignore[arg-type]
        with pytest.raises(UserError, match="this one is str"):
            await session.send([Text("look"), Image("chart.png")])  # type: ignore[arg-type]
        with pytest.raises(UserError, match="with text fields; this one is Base64Source"):
            await session.send(Image(Base64Source("image/png", b"\x89PNG")))  # type: ignore[arg-type]


async def test_a_closed_session_cannot_be_opened_again(agent: MakeAgent) -> None:
    harness = agent(says("ok"))
    async with harness.session as session:
        await session.send("hello")
    for again in (session.__aenter__(), session.send("more")):
        with pytest.raises(
            UserError, match=rf"not open: it was closed; continue it with `Session.resume\('{session.id}', "
        ):
            await again
    assert [row.id for row in harness.store.sessions()] == [session.id]


async def test_images_of_every_source_are_sent(agent: MakeAgent) -> None:
    harness = agent(says("ok"))
    async with harness.session as session:
        await session.send([Image(Base64Source("image/png", "iVBORw0KGgo=")), Image(UrlSource("https://x.org/y.png"))])
    sent = harness.bodies[0]["messages"][0]["content"]
    assert [block["source"]["type"] for block in sent] == ["base64", "url"]


async def test_a_closed_session_can_still_be_read(agent: MakeAgent) -> None:
    harness = agent(says("ok"), name="mine")
    with pytest.raises(UserError, match="never opened"):
        _ = harness.session.cost
    async with harness.session as session:
        await session.send("hello")
    assert (session.name, session.usage.output, len(session.history)) == ("mine", 5, 2)
    with pytest.raises(UserError, match="not open"):
        await session.send("more")


async def test_a_listener_may_be_stopped_twice(agent: MakeAgent) -> None:
    async with agent(says("ok")).session as session:
        stop = session.subscribe(lambda event: None)
        stop()
        stop()
        assert (await session.send("hello")).text == "ok"


async def test_run_sync_inside_a_loop_says_what_to_use() -> None:
    with pytest.raises(UserError, match="async with Session"):
        run_sync("hello")


@pytest.mark.parametrize("key", ["db", "base_urls.anthropic", "spend_max_usd"])
async def test_a_workspace_cannot_redirect_keys_prompts_or_money(tmp_path: Path, key: str) -> None:
    (tmp_path / ".holdfast").mkdir()
    (tmp_path / ".holdfast" / "config.toml").write_text(f'{key} = "http://evil.example"\n')
    with pytest.raises(UserError, match=f"{key} cannot be set by a workspace"):
        async with Session.create(workspace=tmp_path, store="memory:", transport=SimulatedProvider()):
            pass


async def test_a_message_is_not_lost_when_the_call_fails(agent: MakeAgent) -> None:
    harness = agent(ProviderError("server_error", "down"), says("ok"))
    async with harness.session as session:
        with pytest.raises(ProviderError):
            await session.send("the question")
        await session.send("go on")
    assert [block["text"] for block in harness.bodies[1]["messages"][0]["content"]] == ["the question", "go on"]


async def test_a_session_continued_elsewhere_is_refused_here(agent: MakeAgent) -> None:
    harness = agent(says("a"), says("b"), says("never"), says("c"))
    async with harness.session as session:
        await session.send("hello")
        async with Session.resume(
            session.id, store=harness.store, transport=harness.transport, new_id=CountingIds("other")
        ) as other:
            await other.send("me first")
        with pytest.raises(StoreError, match="was continued elsewhere"):
            await session.send("me too")
    async with Session.resume(
        session.id, store=harness.store, transport=harness.transport, new_id=CountingIds("third")
    ) as third:
        assert (await third.send("and now?")).text == "never"
        assert validate_transcript(third.history) == ()


async def test_a_simulated_failure_is_retried_as_over_the_network(agent: MakeAgent) -> None:
    script = (
        '{"fault": "529"}\n{"fault": "500"}\n{"content": "ok"}\n{"fault": "429"}\n{"fault": "429"}\n{"fault": "429"}\n'
    )
    harness = agent(transport=SimulatedProvider(script=script))
    async with harness.session as session:
        assert (await session.send("hello")).text == "ok"
        with pytest.raises(ProviderError) as caught:
            await session.send("again")
    assert (caught.value.kind, caught.value.status) == ("rate_limit", 429)
    failed = next(payload for payload in harness.payloads if isinstance(payload, LlmCallFailed))
    assert failed.retry_count == 2


async def test_a_simulated_provider_knows_the_models_of_its_session(agent: MakeAgent, tmp_path: Path) -> None:
    home = Path(os.environ["HOLDFAST_HOME"])
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text('[models."anthropic:mine"]\nlike = "anthropic:claude-sonnet-5-5"\n')
    async with agent(transport=SimulatedProvider(), model="anthropic:mine", workspace=tmp_path).session as session:
        assert (await session.send("hello")).text


async def test_a_transport_is_closed_with_the_session_only_if_the_session_created_it(agent: MakeAgent) -> None:
    transport = ReplayTransport([says("ok")])
    async with agent(transport=transport).session as session:
        await session.send("hello")
    assert not transport.closed
