"""Equal requests within seconds: the second is given the first one's reply, and no provider hears of it."""

from decimal import Decimal
from typing import Unpack

import pytest
from tests.support.agents import Agent, MakeAgent, Pause, ReplayTransport, says

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import CountingIds, ManualClock
from holdfast.engine.certify import certify
from holdfast.errors import UserError
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallStarted, RequestPrepared
from holdfast.ledger.accounting import LedgerEntry, iter_entries
from holdfast.ledger.analytics.queries import LedgerScope
from holdfast.ledger.cache.prompt_cache import compute_cache_stats
from holdfast.ledger.calls import compute_turn_costs
from holdfast.ledger.report import build_report
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import Text, ToolUse
from holdfast.types.reply import Delta, Reply, ReplyFinished, ReplyStarted, StopReason, TextDelta
from holdfast.types.usage import Usage

PROMPT = "Follow the rules of the house. " * 2000
MODELS = ("anthropic:claude-sonnet-5-5", "openai:gpt-5.5", "gemini:gemini-3.1-pro-preview")


class Room:
    """Sessions of one account, on one store, that keep replies."""

    def __init__(self) -> None:
        self.clock, self.store = ManualClock(), MemoryStore()
        script = '{"content": "First."}\n{"content": "Second."}\n{"content": "Third."}\n'
        self.provider = SimulatedProvider(clock=self.clock, script=script)

    @property
    def asked(self) -> int:
        """How often the provider was."""
        return len(self.provider.requests)

    async def ask(self, **more: Unpack[Options]) -> Session:
        async with Session.create(**self.options(**more)) as session:
            assert (await session.send("So?")).text == "First."
        return session

    def options(self, **more: Unpack[Options]) -> Options:
        given: Options = {
            "model": MODELS[0],
            "store": self.store,
            "transport": self.provider,
            "clock": self.clock,
            "system_prompt": PROMPT,
            "completion_cache": True,
        }
        return given | more

    def entries(self, session_id: str) -> list[LedgerEntry]:
        return list(iter_entries(self.store.read(session_id), shipped_models()))


async def test_an_equal_request_of_another_session_is_given_the_same_reply_for_nothing() -> None:
    room = Room()
    async with Session.create(**room.options()) as first:
        assert (await first.send("So?")).text == "First."
    room.clock.advance(29.9)
    async with Session.create(**room.options()) as second:
        answer = await second.send("So?")
        assert second.cost == 0
        stats = second.cache.stats()
    assert (answer.text, answer.usage, answer.cost_usd, answer.llm_calls) == ("First.", Usage(), Decimal(0), 1)
    assert second.history == first.history
    assert (stats.completion_cache_hits, stats.completion_cache_misses, stats.tracked_requests) == (1, 0, 0)
    assert stats.last_cache_source == "completion-cache"
    asked = compute_cache_stats(room.entries(first.id))
    assert (asked.completion_cache_hits, asked.completion_cache_misses, asked.completion_cache_writes) == (0, 1, 1)
    assert asked.last_completion_cache_key == stats.last_completion_cache_key


async def test_what_is_recorded_says_that_no_provider_was_asked() -> None:
    room = Room()
    for _ in range(2):
        async with Session.create(**room.options()) as session:
            await session.send("So?")
    payloads = [event.payload for event in room.store.read(session.id)]
    (call,) = (it for it in payloads if isinstance(it, LlmCallCompleted))
    assert (call.source, call.usage, call.cost_usd) == ("completion-cache", Usage(), Decimal(0))
    assert call.completion_key
    assert not call.is_completion_cached
    assert not any(isinstance(it, RequestPrepared | LlmCallStarted) for it in payloads)


async def test_nothing_is_kept_or_found_unless_it_is_asked_for() -> None:
    room = Room()
    asks: tuple[Options, ...] = ({}, {"completion_cache": False})
    for asked, (kept, more) in enumerate(zip((True, False), asks, strict=True), start=1):
        session = await room.ask(**more)
        assert room.asked == asked
        (call,) = room.entries(session.id)
        assert (call.source, bool(call.completion_key), call.is_completion_cached) == (
            "provider",
            bool(kept),
            bool(kept),
        )


async def test_a_reply_is_given_for_thirty_seconds_and_no_longer() -> None:
    room = Room()
    await room.ask()
    room.clock.advance(30)
    await room.ask()
    assert room.asked == 2


async def test_the_seconds_can_be_told() -> None:
    room = Room()
    await room.ask(completion_cache_seconds=90)
    room.clock.advance(60)
    await room.ask(completion_cache_seconds=90)
    assert room.asked == 1
    await room.ask()
    assert room.asked == 2


@pytest.mark.parametrize(
    "other",
    [
        {"model": "anthropic:claude-haiku-4-5"},
        {"betas": ["context-1m-2025-08-07"]},
        {"output_tokens_max": 4_000},
        {"system_prompt": PROMPT + "!"},
    ],
)
async def test_another_request_is_another(other: Options) -> None:
    room = Room()
    await room.ask()
    await room.ask(**other)
    assert room.asked == 2


async def test_another_account_is_not_given_what_this_one_was_told() -> None:
    room, other = Room(), Room()
    await room.ask()
    await room.ask(transport=other.provider)
    assert other.asked == 1


@pytest.mark.parametrize("model", MODELS)
async def test_the_deltas_are_those_of_the_first_but_for_what_they_took(model: str) -> None:
    room = Room()
    heard: list[list[Delta]] = []
    for name in ("one", "one"):
        # What keeps a session on one cache is part of its requests.
        async with Session.create(
            **room.options(model=model, new_id=CountingIds(name), store=MemoryStore())
        ) as session:
            heard.append([item async for item in session.stream("So?") if not isinstance(item, Event)])
    first, second = heard
    assert [one for one in second if isinstance(one, TextDelta)] == [one for one in first if isinstance(one, TextDelta)]
    assert "".join(one.text for one in second if isinstance(one, TextDelta)) == "First."
    assert list(map(type, second)) == list(map(type, first))
    assert all(one.usage == Usage() for one in second if isinstance(one, ReplyStarted))
    (end,) = (one.reply for one in second if isinstance(one, ReplyFinished))
    assert (end.usage, end.content) == (Usage(), (Text("First."),))


async def test_a_conversation_goes_on_behind_a_reply_that_was_kept() -> None:
    room = Room()
    async with Session.create(**room.options()) as first:
        await first.send("So?")
    async with Session.create(**room.options()) as second:
        await second.send("So?")
        answer = await second.send("And then?")
    assert answer.text == "Second."
    kept, asked = room.entries(second.id)
    assert (kept.source, kept.verdict) == ("completion-cache", None)
    # The provider has it from the first session, but nothing of this one was ever there to be lost.
    assert asked.verdict is not None
    assert asked.verdict.kind == "first_use"
    assert asked.record.usage.cache_read > 10_000
    assert [one.violation for one in certify(room.store.read(second.id), second.id, shipped_models())] == [None]


async def test_what_the_provider_keeps_is_judged_by_what_it_was_sent() -> None:
    """The same conversation twice, with a model that takes no marks: its second call is answered by the first's."""
    room, stores = Room(), (MemoryStore(), MemoryStore())
    options = [room.options(model="openai:gpt-5.5", store=store, new_id=CountingIds("same")) for store in stores]
    async with Session.create(**options[0]) as first, Session.create(**options[1]) as second:
        await first.send("So?")
        room.clock.advance(31)
        await first.send("And?")
        await second.send("So?")
        before = second.cache.state()
        room.clock.advance(9)
        await second.send("And?")
        assert second.cache.state() == before
        room.clock.advance(90_000)
        await second.send("And now?")
    asked, kept, late = iter_entries(stores[1].read(second.id), shipped_models())
    assert (asked.source, kept.source, late.source) == ("provider", "completion-cache", "provider")
    assert late.verdict is not None
    assert (late.verdict.kind, late.verdict.detail) == ("ttl_expired", "idle for 90009 s, TTL 86400 s")
    assert late.record.is_prefix_unchanged
    assert late.record.blocks_before == 2
    assert [one.violation for one in certify(stores[1].read(second.id), second.id, shipped_models())] == [None, None]


async def test_a_prefix_that_moved_while_no_provider_looked_is_found_at_the_next_call() -> None:
    room, store = Room(), MemoryStore()

    def session(store: MemoryStore) -> Session:
        said = iter(("milk", "bread", "bread")).__next__
        same: Options = {"model": "openai:gpt-5.5", "new_id": CountingIds("same"), "layout": "seed", "store": store}
        same["system_prompt_volatile"] = said
        return Session.create(**room.options(**same))

    async with session(MemoryStore()) as first, session(store) as second:
        await first.send("So? " * 3_000)
        room.clock.advance(31)
        await first.send("And?")
        await second.send("So? " * 3_000)
        await second.send("And?")
        await second.send("And now?")
    asked, kept, late = iter_entries(store.read(second.id), shipped_models())
    assert (asked.source, kept.source, late.source) == ("provider", "completion-cache", "provider")
    assert not late.record.is_prefix_unchanged
    assert late.record.changed_layer == "volatile"
    assert kept.record.is_prefix_unchanged


async def test_reports_count_only_what_a_provider_was_asked() -> None:
    room = Room()
    for _ in range(2):
        async with Session.create(**room.options()) as session:
            await session.send("So?")
    assert build_report(room.store.cost_queries(), LedgerScope(simulated=True)).total.calls == 1
    (turn,) = compute_turn_costs(room.store.read(session.id), shipped_models())
    assert turn.cost_usd == turn.uncached_cost_usd == 0


async def test_no_money_is_needed_for_what_costs_nothing() -> None:
    room = Room()
    async with Session.create(**room.options()) as session:
        await session.send("So?")
    async with Session.create(**room.options(spend_max_usd="0.000001")) as poor:
        assert (await poor.send("So?")).text == "First."


def reply(stop_reason: StopReason, *content: Text | ToolUse) -> Reply:
    return Reply(content, stop_reason, Usage(input=10, output=5), model="claude-sonnet-5-5", id="msg_1")


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        (reply("end_turn", Text("Yes.")), 1),
        (reply("max_tokens", Text("Yes, b")), 1),
        (reply("stop_sequence", Text("Yes")), 1),
        (reply("refusal", Text("No.")), 2),
        (reply("end_turn"), 2),
    ],
)
async def test_only_whole_replies_that_say_something_are_kept(answer: Reply, calls: int, agent: MakeAgent) -> None:
    wire = ReplayTransport([answer, answer])
    for _ in range(2):
        one: Agent = agent(transport=wire, completion_cache=True)
        async with one.session as session:
            await session.send("So?")
    assert len(wire.bodies) == calls


async def test_a_reply_that_is_cut_off_is_not_kept(agent: MakeAgent) -> None:
    wire = ReplayTransport([Pause(says("Yes, of course."), 3), says("No.")])
    async with agent(transport=wire, completion_cache=True).session as session:
        async for _ in session.stream("So?"):
            if wire.paused.is_set():
                break
    async with agent(transport=wire, completion_cache=True).session as session:
        assert (await session.send("So?")).text == "No."


async def test_a_call_for_tools_is_repeated_and_they_are_run(agent: MakeAgent) -> None:
    runs = []

    def look() -> str:
        """Look."""
        runs.append(1)
        return "seen"

    wire = ReplayTransport([says(ToolUse("t1", "look", "{}")), says("Done."), says("Done again.")])
    for said in ("Done.", "Done again."):
        async with agent(transport=wire, completion_cache=True, tools=[look]).session as session:
            # Its second request is marked otherwise, because nothing of its first was sent.
            assert (await session.send("Look.")).text == said
    assert len(runs) == 2
    assert len(wire.bodies) == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("completion_cache", 30), ("completion_cache_seconds", 0), ("completion_cache_seconds", True)],
)
def test_wrong_options_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(UserError, match=f"^{name} must be"):
        Session.create(**{name: value})  # type: ignore[arg-type]
