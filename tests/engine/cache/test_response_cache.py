"""The completion cache: an equal request within seconds gets the first reply, and no provider is called."""

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
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import Text, ToolUse
from holdfast.types.reply import Delta, Reply, ReplyFinished, ReplyStarted, StopReason, TextDelta
from holdfast.types.usage import Usage

PROMPT = "Follow the rules of the house. " * 2000
MODELS = ("anthropic:claude-sonnet-5-5", "openai:gpt-5.5", "gemini:gemini-3.1-pro-preview")


class SharedAccount:
    """Sessions of one account on one store, with the completion cache enabled."""

    def __init__(self) -> None:
        self.clock, self.store = ManualClock(), MemoryStore()
        script = '{"content": "First."}\n{"content": "Second."}\n{"content": "Third."}\n'
        self.provider = SimulatedProvider(clock=self.clock, script=script)

    @property
    def calls_sent(self) -> int:
        """How many requests the provider received."""
        return len(self.provider.requests)

    async def ask(self, **more: Unpack[Options]) -> Session:
        async with Session.create(**self.options(**more)) as session:
            assert (await session.send("So?")).text == "First."
        return session

    def options(self, **more: Unpack[Options]) -> Options:
        defaults: Options = {
            "model": MODELS[0],
            "store": self.store,
            "transport": self.provider,
            "simulated": False,  # Stands for a session that is billed.
            "clock": self.clock,
            "system_prompt": PROMPT,
            "completion_cache": True,
        }
        return defaults | more

    def entries(self, session_id: str) -> list[LedgerEntry]:
        return list(iter_entries(self.store.read(session_id), shipped_models()))


async def test_an_equal_request_of_another_session_gets_the_same_reply_for_free() -> None:
    account = SharedAccount()
    async with Session.create(**account.options()) as first:
        assert (await first.send("So?")).text == "First."
    account.clock.advance(29.9)
    async with Session.create(**account.options()) as second:
        answer = await second.send("So?")
        assert second.cost == 0
        stats = second.cache.stats()
    assert (answer.text, answer.usage, answer.cost_usd, answer.llm_calls) == ("First.", Usage(), Decimal(0), 1)
    assert second.history == first.history
    assert (stats.completion_cache_hits, stats.completion_cache_misses, stats.tracked_requests) == (1, 0, 0)
    assert stats.last_cache_source == "completion-cache"
    first_stats = compute_cache_stats(account.entries(first.id))
    assert (
        first_stats.completion_cache_hits,
        first_stats.completion_cache_misses,
        first_stats.completion_cache_writes,
    ) == (0, 1, 1)
    assert first_stats.last_completion_cache_key == stats.last_completion_cache_key


async def test_a_cached_reply_is_recorded_as_such_and_without_a_request() -> None:
    account = SharedAccount()
    for _ in range(2):
        async with Session.create(**account.options()) as session:
            await session.send("So?")
    payloads = [event.payload for event in account.store.read(session.id)]
    (call,) = (payload for payload in payloads if isinstance(payload, LlmCallCompleted))
    assert (call.source, call.usage, call.cost_usd) == ("completion-cache", Usage(), Decimal(0))
    assert call.completion_key
    assert not call.is_completion_cached
    assert not any(isinstance(payload, RequestPrepared | LlmCallStarted) for payload in payloads)


async def test_nothing_is_stored_or_found_unless_enabled() -> None:
    account = SharedAccount()
    options: tuple[Options, ...] = ({}, {"completion_cache": False})
    for calls_sent, (enabled, more) in enumerate(zip((True, False), options, strict=True), start=1):
        session = await account.ask(**more)
        assert account.calls_sent == calls_sent
        (call,) = account.entries(session.id)
        assert (call.source, bool(call.completion_key), call.is_completion_cached) == (
            "provider",
            bool(enabled),
            bool(enabled),
        )


async def test_a_reply_is_reused_for_thirty_seconds_and_no_longer() -> None:
    account = SharedAccount()
    await account.ask()
    account.clock.advance(30)
    await account.ask()
    assert account.calls_sent == 2


async def test_the_seconds_can_be_configured() -> None:
    account = SharedAccount()
    await account.ask(completion_cache_seconds=90)
    account.clock.advance(60)
    await account.ask(completion_cache_seconds=90)
    assert account.calls_sent == 1
    await account.ask()
    assert account.calls_sent == 2


@pytest.mark.parametrize(
    "other",
    [
        {"model": "anthropic:claude-haiku-4-5"},
        {"betas": ["context-1m-2025-08-07"]},
        {"output_tokens_max": 4_000},
        {"system_prompt": PROMPT + "!"},
    ],
)
async def test_a_request_that_differs_is_not_answered_from_the_cache(other: Options) -> None:
    account = SharedAccount()
    await account.ask()
    await account.ask(**other)
    assert account.calls_sent == 2


async def test_another_account_does_not_get_this_accounts_reply() -> None:
    account, other = SharedAccount(), SharedAccount()
    await account.ask()
    await account.ask(transport=other.provider)
    assert other.calls_sent == 1


@pytest.mark.parametrize("model", MODELS)
async def test_a_cached_reply_has_the_same_deltas_without_usage(model: str) -> None:
    account = SharedAccount()
    received: list[list[Delta]] = []
    for name in ("one", "one"):
        # The session id is part of the requests, because the provider routes by it.
        async with Session.create(
            **account.options(model=model, new_id=CountingIds(name), store=MemoryStore())
        ) as session:
            received.append([item async for item in session.stream("So?") if not isinstance(item, Event)])
    first, second = received
    assert [delta for delta in second if isinstance(delta, TextDelta)] == [
        delta for delta in first if isinstance(delta, TextDelta)
    ]
    assert "".join(delta.text for delta in second if isinstance(delta, TextDelta)) == "First."
    assert list(map(type, second)) == list(map(type, first))
    assert all(delta.usage == Usage() for delta in second if isinstance(delta, ReplyStarted))
    (end,) = (delta.reply for delta in second if isinstance(delta, ReplyFinished))
    assert (end.usage, end.content) == (Usage(), (Text("First."),))


async def test_a_conversation_continues_after_a_cached_reply() -> None:
    account = SharedAccount()
    async with Session.create(**account.options()) as first:
        await first.send("So?")
    async with Session.create(**account.options()) as second:
        await second.send("So?")
        answer = await second.send("And then?")
    assert answer.text == "Second."
    cached, called = account.entries(second.id)
    assert (cached.source, cached.verdict) == ("completion-cache", None)
    # The provider knows the prefix from the first session, but this session had nothing cached that it could lose.
    assert called.verdict is not None
    assert called.verdict.kind == "first_use"
    assert called.record.usage.cache_read > 10_000
    assert [
        certificate.violation for certificate in certify(account.store.read(second.id), second.id, shipped_models())
    ] == [None]


async def test_verdicts_compare_with_what_was_last_sent_to_the_provider() -> None:
    """The same conversation twice, with a model without breakpoints: the second session's second call is answered from
    the cache.
    """
    account, stores = SharedAccount(), (MemoryStore(), MemoryStore())
    options = [account.options(model="openai:gpt-5.5", store=store, new_id=CountingIds("same")) for store in stores]
    async with Session.create(**options[0]) as first, Session.create(**options[1]) as second:
        await first.send("So?")
        account.clock.advance(31)
        await first.send("And?")
        await second.send("So?")
        before = second.cache.state()
        account.clock.advance(9)
        await second.send("And?")
        assert second.cache.state() == before
        account.clock.advance(90_000)
        await second.send("And now?")
    first_call, cached, late = iter_entries(stores[1].read(second.id), shipped_models())
    assert (first_call.source, cached.source, late.source) == ("provider", "completion-cache", "provider")
    assert late.verdict is not None
    assert (late.verdict.kind, late.verdict.detail) == ("ttl_expired", "idle for 90009 s, TTL 86400 s")
    assert late.record.is_prefix_unchanged
    assert late.record.blocks_before == 2
    assert [
        certificate.violation for certificate in certify(stores[1].read(second.id), second.id, shipped_models())
    ] == [None, None]


async def test_a_prefix_change_hidden_by_a_cached_reply_is_found_at_the_next_call() -> None:
    account, store = SharedAccount(), MemoryStore()

    def session(store: MemoryStore) -> Session:
        next_text = iter(("milk", "bread", "bread")).__next__
        same: Options = {"model": "openai:gpt-5.5", "new_id": CountingIds("same"), "layout": "seed", "store": store}
        same["system_prompt_volatile"] = next_text
        return Session.create(**account.options(**same))

    async with session(MemoryStore()) as first, session(store) as second:
        await first.send("So? " * 3_000)
        account.clock.advance(31)
        await first.send("And?")
        await second.send("So? " * 3_000)
        await second.send("And?")
        await second.send("And now?")
    first_call, cached, late = iter_entries(store.read(second.id), shipped_models())
    assert (first_call.source, cached.source, late.source) == ("provider", "completion-cache", "provider")
    assert not late.record.is_prefix_unchanged
    assert late.record.changed_layer == "volatile"
    assert cached.record.is_prefix_unchanged


async def test_reports_count_only_calls_to_a_provider() -> None:
    account = SharedAccount()
    for _ in range(2):
        async with Session.create(**account.options()) as session:
            await session.send("So?")
    assert account.store.cost_queries().totals(LedgerScope(simulated=True)).calls == 1
    (turn,) = compute_turn_costs(account.store.read(session.id), shipped_models())
    assert turn.cost_usd == turn.uncached_cost_usd == 0


async def test_a_cached_reply_needs_no_budget() -> None:
    account = SharedAccount()
    async with Session.create(**account.options()) as session:
        await session.send("So?")
    async with Session.create(**account.options(spend_max_usd="0.000001")) as limited:
        assert (await limited.send("So?")).text == "First."


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
async def test_only_complete_replies_with_content_are_stored(answer: Reply, calls: int, agent: MakeAgent) -> None:
    transport = ReplayTransport([answer, answer])
    for _ in range(2):
        harness: Agent = agent(transport=transport, completion_cache=True)
        async with harness.session as session:
            await session.send("So?")
    assert len(transport.bodies) == calls


async def test_an_interrupted_reply_is_not_stored(agent: MakeAgent) -> None:
    transport = ReplayTransport([Pause(says("Yes, of course."), 3), says("No.")])
    async with agent(transport=transport, completion_cache=True).session as session:
        async for _ in session.stream("So?"):
            if transport.paused.is_set():
                break
    async with agent(transport=transport, completion_cache=True).session as session:
        assert (await session.send("So?")).text == "No."


async def test_a_cached_tool_call_is_executed_again(agent: MakeAgent) -> None:
    runs = []

    def look() -> str:
        """Look."""
        runs.append(1)
        return "seen"

    transport = ReplayTransport([says(ToolUse("t1", "look", "{}")), says("Done."), says("Done again.")])
    for expected in ("Done.", "Done again."):
        async with agent(transport=transport, completion_cache=True, tools=[look]).session as session:
            # Its second request has other breakpoints, because its first was never sent.
            assert (await session.send("Look.")).text == expected
    assert len(runs) == 2
    assert len(transport.bodies) == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("completion_cache", 30), ("completion_cache_seconds", 0), ("completion_cache_seconds", True)],
)
def test_wrong_options_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(UserError, match=f"^{name} must be"):
        Session.create(**{name: value})  # type: ignore[arg-type]
