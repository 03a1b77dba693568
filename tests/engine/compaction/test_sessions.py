"""A session that is made shorter: the log stays, the view changes, and everything else goes on."""

import msgspec
import pytest
from tests.support.long_conversations import GOAL, PROMPT, LongConversation

from holdfast.catalog.lookup import shipped_models
from holdfast.compaction.models import CompactionConfig
from holdfast.engine.certify import certify
from holdfast.engine.compaction.history import read_logged_messages
from holdfast.engine.reducer import fold_events
from holdfast.errors import UserError
from holdfast.events.payloads.compaction import CompactionSkipped, ContextCompacted
from holdfast.ledger.accounting import iter_entries
from holdfast.ledger.calls import iter_calls
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import Text, ToolResult, join_text_blocks
from holdfast.types.transcript import merge_into_messages, validate_transcript

pytestmark = pytest.mark.changes_prefix(reason="a compaction gives up what stands behind the cut")


def compactions(store: MemoryStore) -> list[ContextCompacted]:
    (row,) = store.sessions()
    return [event.payload for event in store.read(row.id) if isinstance(event.payload, ContextCompacted)]


async def test_the_view_begins_with_the_record_and_goes_on_with_what_was_kept_word_for_word() -> None:
    talk = LongConversation()
    async with talk.create() as session:
        await talk.send_turns(session, 12)
        before = session.history
        result = await session.compact()
        after = session.history
    assert result.reason == ""
    assert result.tokens_after * 2 < result.tokens_before
    assert after[0].role == "user"
    assert GOAL in join_text_blocks(after[0].content)
    assert 1 < len(after) < len(before)
    assert after[1:] == before[len(before) - len(after) + 1 :]
    assert validate_transcript(after) == ()


async def test_the_log_keeps_every_message_and_the_event_says_what_it_covers() -> None:
    talk = LongConversation()
    async with talk.create() as session:
        await talk.send_turns(session, 12)
        told = read_logged_messages(talk.store.read(session.id))
        await session.compact()
        assert read_logged_messages(talk.store.read(session.id)) == told
    (event,) = compactions(talk.store)
    assert (event.strategy, event.trigger, event.epoch, event.first) == ("checkpoint", "requested", 2, 1)
    assert 1 < event.last < len(told)
    assert event.tokens_after == pytest.approx(
        event.numbers.stable_prefix_tokens + event.numbers.summary_tokens + event.numbers.kept_tokens, rel=0.01
    )
    assert event.numbers.removed_tokens > 0
    assert event.numbers.break_even_calls is not None
    assert event.numbers.saving_per_call_usd > 0


async def test_calls_behind_a_compaction_read_the_head_and_then_the_record() -> None:
    talk = LongConversation()
    async with talk.create() as session:
        await talk.send_turns(session, 12)
        await session.compact()
        await talk.send_turns(session, 2)
    judged = [one.verdict for one in iter_entries(talk.store.read(session.id), shipped_models()) if one.verdict]
    first = next(verdict for verdict in judged if verdict.kind == "planned")
    assert first.component == "compaction"
    assert first.read_tokens > 2_000
    assert [verdict.kind for verdict in judged[judged.index(first) + 1 :]] == ["held"] * 3
    records = list(iter_calls(talk.store.read(session.id)))
    assert all(record.is_prefix_unchanged for record in records)


async def test_every_request_of_a_compacted_session_is_certified() -> None:
    talk = LongConversation()
    async with talk.create() as session:
        await talk.send_turns(session, 8)
        await session.compact()
        await talk.send_turns(session, 8)
        await session.compact()
        await talk.send_turns(session, 2)
    made = list(certify(talk.store.read(session.id), session.id, shipped_models()))
    assert [one.violation for one in made] == [None] * len(made)
    # Eight turns are sixteen calls: the head was marked on its own, so that the call behind a compaction must read it.
    for behind in (made[16], made[32]):
        assert behind.prefix_bytes > 10_000
        assert 3_000 < behind.expected_read_tokens <= (behind.read_tokens or 0)


async def test_a_resumed_session_sends_the_same_bytes_behind_a_compaction() -> None:
    talk = LongConversation()
    async with talk.create() as session:
        await talk.send_turns(session, 10)
        await session.compact()
        history = session.history
        await talk.send_turns(session, 1)
    sent = talk.provider.requests[-1].body
    async with talk.resume(session.id) as resumed:
        assert resumed.history[: len(history)] == history
        talk.clock.advance(5)
        answer = await resumed.send("And the next?")
    again = talk.provider.requests[-2].body
    assert answer.usage.cache_read > 0
    assert messages_in(again)[: len(messages_in(sent))] == messages_in(sent)


def messages_in(body: bytes) -> list[object]:
    read = msgspec.json.decode(body)["messages"]
    for message in read:
        for block in message["content"]:
            block.pop("cache_control", None)
    return list(read)


async def test_a_second_compaction_at_once_does_nothing() -> None:
    talk = LongConversation()
    async with talk.create() as session:
        await talk.send_turns(session, 12)
        await session.compact()
        history = session.history
        result = await session.compact()
        assert session.history == history
    assert result.removed_message_count == 0
    assert result.reason == "there is nothing new to compact"
    assert len(compactions(talk.store)) == 1


async def test_a_conversation_that_is_short_is_left_as_it_is() -> None:
    talk = LongConversation()
    async with talk.create() as session:
        await talk.send_turns(session, 1)
        result = await session.compact()
    assert result.removed_message_count == 0
    assert compactions(talk.store) == []


async def test_later_records_are_made_of_the_log_and_keep_the_first_goal_word_for_word() -> None:
    talk = LongConversation()
    async with talk.create() as session:
        for _ in range(5):
            await talk.send_turns(session, 6)
            await session.compact()
        text = join_text_blocks(session.history[0].content)
    events = compactions(talk.store)
    assert len(events) == 5
    assert text.count(GOAL) == 1
    assert "- - " not in text
    assert events[-1].numbers.summary_tokens < 7_000
    assert [event.first for event in events[1:]] == [event.last + 1 for event in events[:-1]]


async def test_another_model_gets_the_record_and_not_what_it_stands_for() -> None:
    talk = LongConversation()
    async with talk.create() as session:
        await talk.send_turns(session, 12)
        await session.compact()
        await session.switch_model("anthropic:claude-haiku-4-5")
        await talk.send_turns(session, 1)
        assert GOAL in join_text_blocks(session.history[0].content)
    assert talk.provider.requests[-1].status == 200
    assert len(talk.provider.requests[-1].body) < 100_000


async def test_what_a_refused_message_takes_with_it_is_not_the_record() -> None:
    talk = LongConversation()
    async with talk.create() as session:
        await talk.send_turns(session, 12)
        await session.compact(CompactionConfig(tail_tokens_max=1))
    state = fold_events(talk.store.read(session.id), session.id)
    assert state.entries[0].layer == "record"


async def test_the_size_of_the_prompt_now_starts_a_compaction_by_itself() -> None:
    limit = CompactionConfig(auto_compaction_input_tokens_threshold=20_000, money=False)
    talk = LongConversation(compaction=limit)
    async with talk.create() as session:
        await talk.send_turns(session, 24)
    events = compactions(talk.store)
    assert events
    assert {event.trigger for event in events} == {"soft"}
    assert all(event.tokens_before >= 20_000 for event in events)
    sizes = [record.usage.tokens_sent for record in iter_calls(talk.store.read(session.id))]
    assert max(sizes) < 24_000


async def test_below_the_limit_nothing_happens() -> None:
    talk = LongConversation(compaction=CompactionConfig(auto_compaction_input_tokens_threshold=1_000_000, money=False))
    async with talk.create() as session:
        await talk.send_turns(session, 12)
    assert compactions(talk.store) == []


async def test_a_cold_cache_is_the_moment_for_it() -> None:
    talk = LongConversation(compaction=CompactionConfig(money=False))
    async with talk.create() as session:
        await talk.send_turns(session, 14)
        assert compactions(talk.store) == []
        await talk.send_turns(session, 1, gap_seconds=7_200)
    (event,) = compactions(talk.store)
    assert event.trigger == "cache_expired"
    assert event.numbers.is_cache_cold
    assert event.numbers.cost_usd < 0


async def test_a_compaction_pays_for_itself_where_it_is_done_for_money() -> None:
    costs = {}
    for money in (True, False):
        talk = LongConversation(compaction=CompactionConfig(auto=money))
        async with talk.create() as session:
            await talk.send_turns(session, 60)
        costs[money] = session.cost
        assert {event.trigger for event in compactions(talk.store)} == ({"money"} if money else set())
    assert costs[True] < costs[False]


async def test_a_head_that_is_too_large_is_told_once_in_a_turn_and_not_tried_again() -> None:
    limit = CompactionConfig(auto_compaction_input_tokens_threshold=1_000, money=False)
    talk = LongConversation(compaction=limit, system_prompt="Follow the rules. " * 9_000)
    async with talk.create() as session:
        await talk.send_turns(session, 10)
    found = [event.payload for event in talk.store.read(session.id)]
    refused = [payload for payload in found if isinstance(payload, CompactionSkipped)]
    assert len(refused) <= 10
    assert refused == [] or "tools and system prompt alone" in refused[-1].reason


async def test_volatile_text_that_was_covered_is_said_again() -> None:
    talk = LongConversation(system_prompt_volatile="The house is open.")
    async with talk.create() as session:
        await talk.send_turns(session, 12)
        await session.compact()
        assert "The house is open." not in str(session.history[1:])
        await talk.send_turns(session, 1)
        assert "The house is open." in str(session.history[1:])


async def test_nothing_is_compacted_while_a_turn_is_under_way() -> None:
    talk = LongConversation()
    async with talk.create() as session:
        await talk.send_turns(session, 2)
        stream = session.stream("Go on.")
        await anext(stream)
        with pytest.raises(UserError, match="a turn is in progress"):
            await session.compact()
        await stream.aclose()


async def test_tool_results_that_are_kept_keep_their_calls() -> None:
    talk = LongConversation()
    async with talk.create() as session:
        await talk.send_turns(session, 12)
        for tail in (4_000, 2_000, 500, 1):
            await talk.send_turns(session, 1)
            await session.compact(CompactionConfig(tail_tokens_max=tail))
            assert validate_transcript(session.history) == ()
    state = fold_events(talk.store.read(session.id), session.id)
    assert merge_into_messages(state.entries) == session.history
    assert any(isinstance(block, ToolResult | Text) for message in session.history for block in message.content)


async def test_old_outputs_are_cleared_first_where_that_is_enough() -> None:
    limit = CompactionConfig(auto_compaction_input_tokens_threshold=30_000, money=False)
    talk = LongConversation(compaction=limit, recall_history=True)
    async with talk.create() as session:
        await talk.send_turns(session, 26)
        assert validate_transcript(session.history) == ()
        view = str(session.history)
    first = compactions(talk.store)[0]
    assert (first.strategy, first.segments) == ("clear", ())
    assert first.unchanged_blocks > 0
    assert "[The output of read_file src/part_" in view
    made = list(certify(talk.store.read(session.id), session.id, shipped_models()))
    assert [one.violation for one in made] == [None] * len(made)


async def test_clearing_can_be_switched_off() -> None:
    limit = CompactionConfig(auto_compaction_input_tokens_threshold=30_000, money=False, clear=False)
    talk = LongConversation(compaction=limit)
    async with talk.create() as session:
        await talk.send_turns(session, 26)
    assert {event.strategy for event in compactions(talk.store)} == {"checkpoint"}


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
async def test_the_record_is_the_systems_where_the_provider_takes_that(model: str, prompt: str, role: str) -> None:
    talk = LongConversation(model=model, system_prompt=prompt)
    async with talk.create() as session:
        await talk.send_turns(session, 12)
        await session.compact()
        assert session.history[0].role == role
        await talk.send_turns(session, 2)
        await session.switch_model("anthropic:claude-sonnet-4-6")
        await talk.send_turns(session, 1)
        assert session.history[0].role == "user"
    assert {request.status for request in talk.provider.requests} == {200}
    made = list(certify(talk.store.read(session.id), session.id, shipped_models()))
    assert [one.violation for one in made] == [None] * len(made)


async def test_a_new_session_can_be_told_all_that_was_done() -> None:
    talk = LongConversation()
    async with talk.create() as session:
        await talk.send_turns(session, 12)
        told = session.hand_off()
        assert compactions(talk.store) == []
    assert GOAL in told
    assert "read x1, sha:" in told
    assert "recall_history" not in told
    assert "preserved word for word below" not in told
    async with talk.create() as another:
        await another.send(told)
        assert another.turn_count == 1
