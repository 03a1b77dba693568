"""Compaction of a session: the log stays complete, the view changes, and everything else continues."""

from collections.abc import Sequence

import msgspec
import pytest
from tests.support.long_conversations import GOAL, PROMPT, LongConversation, make_read_file

from holdfast.catalog.lookup import shipped_models
from holdfast.compaction.models import CompactionConfig
from holdfast.engine.certify import certify
from holdfast.engine.compaction.history import read_logged_messages
from holdfast.engine.reducer import fold_events
from holdfast.errors import UserError
from holdfast.events.payloads.compaction import CompactionSkipped, ContextCompacted
from holdfast.events.payloads.recovery import ProviderLimited
from holdfast.ledger.accounting import iter_entries
from holdfast.ledger.calls import iter_calls
from holdfast.simulator.script import ScriptedReply
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import Base64Source, Image, Message, Text, ToolResult, ToolUse, join_text_blocks
from holdfast.types.transcript import merge_into_messages, validate_transcript

pytestmark = pytest.mark.changes_prefix(reason="a compaction invalidates the cache after the cut")


def compactions(store: MemoryStore) -> list[ContextCompacted]:
    (row,) = store.sessions()
    return [event.payload for event in store.read(row.id) if isinstance(event.payload, ContextCompacted)]


async def test_the_view_is_the_summary_followed_by_the_retained_messages_unchanged() -> None:
    conversation = LongConversation()
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        before = session.history
        result = await session.compact(CompactionConfig(files_tokens_max=0))
        after = session.history
    assert result.reason == ""
    assert result.tokens_after * 2 < result.tokens_before
    assert after[0].role == "user"
    assert GOAL in join_text_blocks(after[0].content)
    assert 1 < len(after) < len(before)
    assert after[1:] == before[len(before) - len(after) + 1 :]
    assert validate_transcript(after) == ()


async def test_the_log_keeps_every_message_and_the_event_names_the_range_it_covers() -> None:
    conversation = LongConversation()
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        logged = read_logged_messages(conversation.store.read(session.id))
        await session.compact()
        assert read_logged_messages(conversation.store.read(session.id)) == logged
    (event,) = compactions(conversation.store)
    assert (event.strategy, event.trigger, event.epoch, event.first) == ("checkpoint", "requested", 2, 1)
    assert 1 < event.last < len(logged)
    assert event.tokens_after == pytest.approx(
        event.numbers.stable_prefix_tokens + event.numbers.summary_tokens + event.numbers.kept_tokens, rel=0.01
    )
    assert event.numbers.removed_tokens > 0
    assert event.numbers.break_even_calls is not None
    assert event.numbers.saving_per_call_usd > 0


async def test_calls_after_a_compaction_read_the_stable_prefix_and_then_the_summary() -> None:
    conversation = LongConversation()
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        await session.compact()
        await conversation.send_turns(session, 2)
    verdicts = [
        entry.verdict for entry in iter_entries(conversation.store.read(session.id), shipped_models()) if entry.verdict
    ]
    first = next(verdict for verdict in verdicts if verdict.kind == "planned")
    assert first.component == "compaction"
    assert first.read_tokens > 2_000
    assert [verdict.kind for verdict in verdicts[verdicts.index(first) + 1 :]] == ["held"] * 3
    records = list(iter_calls(conversation.store.read(session.id)))
    assert all(record.is_prefix_unchanged for record in records)


async def test_every_request_of_a_compacted_session_is_certified() -> None:
    conversation = LongConversation()
    async with conversation.create() as session:
        await conversation.send_turns(session, 8)
        await session.compact()
        await conversation.send_turns(session, 8)
        await session.compact()
        await conversation.send_turns(session, 2)
    certificates = list(certify(conversation.store.read(session.id), session.id, shipped_models()))
    assert [certificate.violation for certificate in certificates] == [None] * len(certificates)
    # Eight turns are sixteen calls. The stable prefix has its own breakpoint, so the call after a compaction must read
    # it.
    for after_compaction in (certificates[16], certificates[32]):
        assert after_compaction.prefix_bytes > 10_000
        assert 3_000 < after_compaction.expected_read_tokens <= (after_compaction.read_tokens or 0)


async def test_a_resumed_session_sends_the_same_bytes_after_a_compaction() -> None:
    conversation = LongConversation()
    async with conversation.create() as session:
        await conversation.send_turns(session, 10)
        await session.compact()
        history = session.history
        await conversation.send_turns(session, 1)
    sent = conversation.provider.requests[-1].body
    async with conversation.resume(session.id) as resumed:
        assert resumed.history[: len(history)] == history
        conversation.clock.advance(5)
        answer = await resumed.send("And the next?")
    again = conversation.provider.requests[-2].body
    assert answer.usage.cache_read > 0
    assert messages_in(again)[: len(messages_in(sent))] == messages_in(sent)


def messages_in(body: bytes) -> list[object]:
    messages = msgspec.json.decode(body)["messages"]
    for message in messages:
        for block in message["content"]:
            block.pop("cache_control", None)
    return list(messages)


@pytest.mark.parametrize(("gap_seconds", "first_verdict"), [(10, "held"), (200, "planned")])
async def test_an_undone_compaction_is_a_planned_change_and_resumes_with_the_same_bytes(
    gap_seconds: int, first_verdict: str
) -> None:
    conversation = LongConversation()
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        before = session.history
        await session.compact()
        await conversation.send_turns(session, 2, gap_seconds=gap_seconds)
        after = session.history
        result = await session.undo_compaction()
        assert result.messages == session.history
        assert session.history[: len(before)] == before
        assert session.history[len(before) :] == after[-(len(session.history) - len(before)) :]
        assert session.dropped() == ()
        with pytest.raises(UserError, match="nothing to undo"):
            await session.undo_compaction()
        restored = session.history
    async with conversation.resume(session.id) as resumed:
        assert resumed.history == restored
        await conversation.send_turns(resumed, 2)
    events = list(conversation.store.read(session.id))
    verdicts = [entry.verdict for entry in iter_entries(events, shipped_models()) if entry.verdict]
    # Within the TTL the provider still has the longer prompt; after it only the stable prefix, which stayed in use.
    assert [verdict.kind for verdict in verdicts[-4:]] == [first_verdict, "held", "held", "held"]
    assert verdicts[-4].read_tokens > 2_000
    if first_verdict == "planned":
        assert (verdicts[-4].component, verdicts[-4].detail) == ("compaction", "a compaction was undone (epoch 3)")
    certificates = list(certify(events, session.id, shipped_models()))
    assert [certificate.violation for certificate in certificates] == [None] * len(certificates)
    assert result.tokens_after > result.tokens_before * 2
    assert len(messages_in(conversation.provider.requests[-4].body)) == len(restored) + 1


async def test_an_undone_compaction_is_not_repeated_until_the_prompt_has_grown() -> None:
    conversation = LongConversation(compaction=CompactionConfig(auto_compaction_input_tokens_threshold=30_000))
    async with conversation.create() as session:
        while not compactions(conversation.store):
            await conversation.send_turns(session, 1)
        result = await session.undo_compaction()
        assert (session.context_use().compaction_tokens or 0) > result.tokens_after
        await conversation.send_turns(session, 2)
        assert len(compactions(conversation.store)) == 1
        while len(compactions(conversation.store)) == 1:
            await conversation.send_turns(session, 1)
    assert compactions(conversation.store)[1].tokens_before > result.tokens_after * 1.2


async def test_a_compaction_whose_messages_no_longer_fit_cannot_be_undone() -> None:
    conversation = LongConversation()
    async with conversation.create() as session:
        with pytest.raises(UserError, match="nothing to undo"):
            await session.undo_compaction()
        await conversation.send_turns(session, 12)
        await session.compact()
        history = session.history
        narrow = ProviderLimited("the provider says so", window_tokens_max=12_000)
        await session._open_conversation.record("system", narrow)
        with pytest.raises(UserError, match=r"do not fit the context window of 12,000 with room for a reply"):
            await session.undo_compaction()
        assert session.history == history


async def test_a_second_compaction_in_a_row_does_nothing() -> None:
    conversation = LongConversation()
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        await session.compact()
        history = session.history
        result = await session.compact()
        assert session.history == history
    assert result.removed_message_count == 0
    assert result.reason == "there is nothing new to compact"
    assert len(compactions(conversation.store)) == 1


async def test_a_short_conversation_is_not_compacted() -> None:
    conversation = LongConversation()
    async with conversation.create() as session:
        await conversation.send_turns(session, 1)
        result = await session.compact()
    assert result.removed_message_count == 0
    assert compactions(conversation.store) == []


async def test_later_summaries_are_built_from_the_log_and_keep_the_first_goal_unchanged() -> None:
    conversation = LongConversation()
    async with conversation.create() as session:
        for _ in range(5):
            await conversation.send_turns(session, 6)
            await session.compact()
        text = join_text_blocks(session.history[0].content)
    events = compactions(conversation.store)
    assert len(events) == 5
    assert text.count(GOAL) == 1
    assert "- - " not in text
    assert events[-1].numbers.summary_tokens < 7_000
    assert [event.first for event in events[1:]] == [event.last + 1 for event in events[:-1]]


async def test_another_model_gets_the_summary_and_not_the_messages_it_replaces() -> None:
    conversation = LongConversation()
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        await session.compact()
        await session.switch_model("anthropic:claude-haiku-4-5")
        await conversation.send_turns(session, 1)
        assert GOAL in join_text_blocks(session.history[0].content)
    assert conversation.provider.requests[-1].status == 200
    assert len(conversation.provider.requests[-1].body) < 100_000


async def test_the_summary_is_its_own_layer_so_that_a_refused_message_does_not_remove_it() -> None:
    conversation = LongConversation()
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        await session.compact(CompactionConfig(tail_tokens_max=1))
    state = fold_events(conversation.store.read(session.id), session.id)
    assert state.entries[0].layer == "record"


async def test_the_size_of_the_prompt_triggers_a_compaction() -> None:
    limit = CompactionConfig(auto_compaction_input_tokens_threshold=20_000)
    conversation = LongConversation(compaction=limit)
    async with conversation.create() as session:
        await conversation.send_turns(session, 24)
    events = compactions(conversation.store)
    assert events
    assert {event.trigger for event in events} == {"soft"}
    assert all(event.tokens_before >= 20_000 for event in events)
    sizes = [record.usage.tokens_sent for record in iter_calls(conversation.store.read(session.id))]
    assert max(sizes) < 27_000


async def test_below_the_limit_nothing_is_compacted() -> None:
    conversation = LongConversation(compaction=CompactionConfig(auto_compaction_input_tokens_threshold=1_000_000))
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
    assert compactions(conversation.store) == []


async def test_a_cold_cache_triggers_a_compaction() -> None:
    conversation = LongConversation(tools=(make_read_file(200),))
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
    conversation.options["compaction"] = "economical"
    async with conversation.resume(session.id) as session:
        await conversation.send_turns(session, 1, gap_seconds=7_200)
    (event,) = compactions(conversation.store)
    assert event.trigger == "cache_expired"
    assert event.numbers.is_cache_cold
    assert event.numbers.cost_usd < 0


async def test_a_compaction_done_for_cost_pays_for_itself() -> None:
    costs = {}
    for money in (True, False):
        conversation = LongConversation(compaction="economical" if money else "off")
        async with conversation.create() as session:
            await conversation.send_turns(session, 60)
        costs[money] = session.cost
        assert {event.trigger for event in compactions(conversation.store)} == ({"money"} if money else set())
    assert costs[True] < costs[False]


async def test_a_stable_prefix_that_is_too_large_is_reported_at_most_once_per_turn() -> None:
    limit = CompactionConfig(auto_compaction_input_tokens_threshold=1_000)
    conversation = LongConversation(compaction=limit, system_prompt="Follow the rules. " * 9_000)
    async with conversation.create() as session:
        await conversation.send_turns(session, 10)
    payloads = [event.payload for event in conversation.store.read(session.id)]
    skipped = [payload for payload in payloads if isinstance(payload, CompactionSkipped)]
    assert len(skipped) <= 10
    assert skipped == [] or "tools and system prompt alone" in skipped[-1].reason


async def test_volatile_text_that_was_compacted_is_sent_again() -> None:
    conversation = LongConversation(system_prompt_volatile="The house is open.")
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        await session.compact()
        assert "The house is open." not in str(session.history[1:])
        await conversation.send_turns(session, 1)
        assert "The house is open." in str(session.history[1:])


async def test_nothing_is_compacted_while_a_turn_is_in_progress() -> None:
    conversation = LongConversation()
    async with conversation.create() as session:
        await conversation.send_turns(session, 2)
        stream = session.stream("Go on.")
        await anext(stream)
        with pytest.raises(UserError, match="a turn is in progress"):
            await session.compact()
        await stream.aclose()


async def test_retained_tool_results_keep_their_calls() -> None:
    conversation = LongConversation()
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        for tail in (4_000, 2_000, 500, 1):
            await conversation.send_turns(session, 1)
            await session.compact(CompactionConfig(tail_tokens_max=tail))
            assert validate_transcript(session.history) == ()
    state = fold_events(conversation.store.read(session.id), session.id)
    assert merge_into_messages(state.entries) == session.history
    assert any(isinstance(block, ToolResult | Text) for message in session.history for block in message.content)


@pytest.mark.parametrize(
    ("model", "prompt", "role"),
    [
        ("openai:gpt-5.6-sol", PROMPT, "system"),
        ("openai:gpt-5.4", PROMPT, "system"),
        ("openai:gpt-5.4", "", "user"),
        ("gemini:gemini-3.5-flash", PROMPT, "user"),
        ("anthropic:claude-opus-5-5", PROMPT, "user"),
    ],
)
async def test_the_summary_has_the_system_role_where_the_provider_supports_it(
    model: str, prompt: str, role: str
) -> None:
    conversation = LongConversation(model=model, system_prompt=prompt)
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        await session.compact()
        assert session.history[0].role == role
        await conversation.send_turns(session, 2)
        await session.switch_model("anthropic:claude-sonnet-4-6")
        await conversation.send_turns(session, 1)
        assert session.history[0].role == "user"
    assert {request.status for request in conversation.provider.requests} == {200}
    certificates = list(certify(conversation.store.read(session.id), session.id, shipped_models()))
    assert [certificate.violation for certificate in certificates] == [None] * len(certificates)


async def test_a_hand_off_tells_a_new_session_everything_that_was_done() -> None:
    conversation = LongConversation()
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        hand_off = session.hand_off()
        assert compactions(conversation.store) == []
    assert GOAL in hand_off
    assert "read x1 [m" in hand_off
    assert "recall_history" not in hand_off
    assert "preserved word for word below" not in hand_off
    async with conversation.create() as another:
        await another.send(hand_off)
        assert another.turn_count == 1


async def test_default_settings_compact_with_loss_only_at_the_threshold() -> None:
    conversation = LongConversation()
    del conversation.options["compaction"]
    async with conversation.create() as session:
        await conversation.send_turns(session, 40)
        assert session.context_use().tokens < 100_000
        assert [event.tokens_before for event in compactions(conversation.store)] == []
        await conversation.send_turns(session, 26)
    (event,) = compactions(conversation.store)
    assert event.trigger == "soft"
    assert event.tokens_before >= 100_000


async def test_the_mode_and_its_limit_can_be_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_COMPACTION_TOKENS", "20000")
    conversation = LongConversation()
    del conversation.options["compaction"]
    for mode, triggers in (("threshold", {"soft"}), ("off", set())):
        monkeypatch.setenv("HOLDFAST_COMPACTION", mode)
        async with conversation.create() as session:
            await conversation.send_turns(session, 12)
        payloads = [event.payload for event in conversation.store.read(session.id)]
        assert {payload.trigger for payload in payloads if isinstance(payload, ContextCompacted)} == triggers


async def test_a_wrong_mode_is_refused_with_the_known_ones() -> None:
    conversation = LongConversation(compaction="on")
    with pytest.raises(UserError, match="compaction must be one of off, threshold, economical, not 'on'"):
        await conversation.create().__aenter__()
    with pytest.raises(UserError, match="compaction must be off, threshold, economical or a CompactionConfig"):
        LongConversation(compaction=False).create()
    with pytest.raises(UserError, match="exclude each other"):
        LongConversation(compaction_tokens=5).create()


def read_the_same_file(messages: Sequence[Message]) -> ScriptedReply:
    if any(isinstance(block, ToolResult) for block in messages[-1].content):
        return ScriptedReply((Text("As expected."),))
    return ScriptedReply((ToolUse("", "read_file", '{"path":"src/lexer.py"}'),))


@pytest.mark.parametrize(("mode", "strategies"), [("threshold", ["lossless"]), ("off", [])])
async def test_repeated_reads_are_cleared_when_the_cache_is_cold_anyway(mode: str, strategies: list[str]) -> None:
    conversation = LongConversation(compaction=mode)
    conversation.provider._script = read_the_same_file
    async with conversation.create() as session:
        await conversation.send_turns(session, 4)
        assert compactions(conversation.store) == []
        before = str(session.history)
        await conversation.send_turns(session, 1, gap_seconds=7_200)
        after = str(session.history)
    events = compactions(conversation.store)
    assert [event.strategy for event in events] == strategies
    if events:
        assert events[0].tokens_after < events[0].tokens_before
        assert after.count("def step_59(token)") < before.count("def step_59(token)") == 4
        assert after.count("[The same content is in the output of read_file src/lexer.py, message m") == 3
        assert validate_transcript(session.history) == ()
    certificates = list(certify(conversation.store.read(session.id), session.id, shipped_models()))
    assert [certificate.violation for certificate in certificates] == [None] * len(certificates)


async def test_an_image_sent_twice_is_cleared_when_the_cache_is_cold_anyway() -> None:
    conversation = LongConversation(compaction="threshold", tools=())
    conversation.provider._script = lambda messages: ScriptedReply((Text("A red button."),))
    picture = Image(Base64Source("image/png", "iVBORw0KGgo" * 40))
    async with conversation.create() as session:
        await session.send([Text("What is this?"), picture])
        await session.send([Text("And this?"), picture])
        assert compactions(conversation.store) == []
        conversation.clock.advance(7_200)
        await session.send("Thanks; which colour?")
        shown = [block for message in session.history for block in message.content]
    (event,) = compactions(conversation.store)
    assert (event.strategy, [image.number for image in event.cleared_images]) == ("lossless", [1])
    assert shown.count(picture) == 1
    assert Text("[The same image is in message m3.]") in shown
    state = fold_events(conversation.store.read(session.id), session.id)
    assert merge_into_messages(state.entries) == session.history


async def test_a_file_in_progress_is_still_in_view_after_a_compaction() -> None:
    conversation = LongConversation(compaction=CompactionConfig(auto_compaction_input_tokens_threshold=30_000))
    async with conversation.create() as session:
        await conversation.send_turns(session, 21)
    (event, *_) = compactions(conversation.store)
    assert event.kept
    assert event.tokens_after < event.tokens_before
    kept = [entry for entry in read_logged_messages(conversation.store.read(session.id)) if entry.number in event.kept]
    assert any(isinstance(block, ToolResult) for entry in kept for block in entry.content)
    assert validate_transcript(session.history) == ()
    certificates = list(certify(conversation.store.read(session.id), session.id, shipped_models()))
    assert [certificate.violation for certificate in certificates] == [None] * len(certificates)
