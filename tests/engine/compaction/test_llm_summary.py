"""The LLM summary of a compaction: requested by extending the last request, and checked against the conversation."""

from collections.abc import Sequence

import msgspec
import pytest
from tests.support.long_conversations import LongConversation, read_one_file_a_turn

from holdfast.catalog.lookup import shipped_models
from holdfast.compaction.llm_summary import LLM_SUMMARY_PROMPT, LLM_SUMMARY_RETRY_PROMPT, check_llm_summary
from holdfast.compaction.models import CompactionConfig
from holdfast.engine.reducer import fold_events
from holdfast.events.payloads.calls import LlmCallFailed
from holdfast.events.payloads.compaction import ContextCompacted
from holdfast.events.payloads.recovery import RecoveryAttempted, RecoverySucceeded
from holdfast.events.payloads.union import AnyPayload
from holdfast.ledger.accounting import iter_entries
from holdfast.ledger.calls import compute_turn_costs
from holdfast.ledger.money import to_picodollars
from holdfast.ledger.postings import iter_postings
from holdfast.simulator.faults import parse_fault
from holdfast.simulator.script import ScriptedReply
from holdfast.types.blocks import Message, Text, ToolUse, join_text_blocks

WITH_LLM_SUMMARY = CompactionConfig(mode="off", llm_summary=True)
CONVERSATION_TEXT = "The lexer in src/lexer.py took 30 seconds, so TokenStream was chosen over a generator."
GOOD = (
    "## Rationale\n- The lexer is slow because it copies.\n## Next\n- Look at the next part.\n- Open src/unheard_of.py."
)


BROKEN = "broken"


def payloads(conversation: LongConversation) -> list[AnyPayload]:
    (row,) = conversation.store.sessions()
    return [event.payload for event in conversation.store.read(row.id)]


def count(text: str) -> int:
    return len(text) // 4


def script_summary_reply(reply: str | ToolUse, reply_to_reminder: str | ToolUse | None = None) -> object:
    def answer(messages: Sequence[Message]) -> ScriptedReply:
        last_text = join_text_blocks(messages[-1].content)
        if LLM_SUMMARY_PROMPT not in last_text:
            return read_one_file_a_turn(messages)
        chosen = reply_to_reminder if reply_to_reminder is not None and LLM_SUMMARY_RETRY_PROMPT in last_text else reply
        if chosen == BROKEN:
            return ScriptedReply((Text("Too"),), faults=(parse_fault("400"),))
        return ScriptedReply((Text(chosen) if isinstance(chosen, str) else chosen,))

    return answer


async def compact_with_summary(
    reply: str | ToolUse, reply_to_reminder: str | ToolUse | None = None
) -> tuple[LongConversation, ContextCompacted]:
    conversation = LongConversation(compaction=WITH_LLM_SUMMARY)
    conversation.provider._script = script_summary_reply(reply, reply_to_reminder)  # type: ignore[assignment]  # a function of the messages
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        await session.compact()
    (event,) = [
        event.payload for event in conversation.store.read(session.id) if isinstance(event.payload, ContextCompacted)
    ]
    return conversation, event


async def test_the_summary_request_extends_the_last_one_and_reads_the_cache() -> None:
    conversation, event = await compact_with_summary(GOOD)
    last_request, summary_request = (
        msgspec.json.decode(request.body) for request in conversation.provider.requests[-2:]
    )
    assert (summary_request["tools"], summary_request["system"]) == (last_request["tools"], last_request["system"])
    assert len(summary_request["messages"]) == len(last_request["messages"]) + 2
    assert summary_request["messages"][-1]["content"][0]["text"] == LLM_SUMMARY_PROMPT
    assert event.usage.cache_read >= 0.85 * event.usage.tokens_sent
    assert event.cost_usd > 0


async def test_supported_lines_are_kept_and_the_others_are_dropped_and_counted() -> None:
    _, event = await compact_with_summary(GOOD)
    assert [part.kind for part in event.segments] == ["facts", "llm_summary", "note"]
    assert event.segments[1].text == (
        "## Rationale\n- The lexer is slow because it copies.\n\n## Next\n- Look at the next part."
    )
    assert event.notes == ("1 lines of the model's summary were dropped",)


@pytest.mark.parametrize("reply", ["Sorry.", "## Story\n- Once.", ToolUse("", "read_file", '{"path":"a"}')])
async def test_an_unusable_summary_leaves_the_deterministic_summary(reply: str | ToolUse) -> None:
    conversation, event = await compact_with_summary(reply)
    assert [part.kind for part in event.segments] == ["facts", "note"]
    assert len(event.notes) == 1
    assert event.cost_usd > 0
    (recovery,) = [payload for payload in payloads(conversation) if isinstance(payload, RecoverySucceeded)]
    assert recovery.scenario == "summary_invalid"
    assert [(result.step, result.status) for result in recovery.results] == [
        ("remind_summariser", "done"),
        ("deterministic_record", "done"),
    ]


async def test_one_reminder_can_be_enough() -> None:
    conversation, event = await compact_with_summary(ToolUse("", "read_file", '{"path":"a"}'), GOOD)
    assert [part.kind for part in event.segments] == ["facts", "llm_summary", "note"]
    (recovery,) = [payload for payload in payloads(conversation) if isinstance(payload, RecoverySucceeded)]
    assert [(result.step, result.status) for result in recovery.results] == [("remind_summariser", "recovered")]
    message_lists = [msgspec.json.decode(request.body)["messages"] for request in conversation.provider.requests[-2:]]
    assert message_lists[0][:-1] == message_lists[1][:-1]
    assert event.usage.cache_read >= 0.85 * event.usage.tokens_sent


async def test_the_cost_of_a_summary_is_in_the_list_of_calls_and_in_every_sum() -> None:
    conversation, event = await compact_with_summary(ToolUse("", "read_file", '{"path":"a"}'), GOOD)
    (row,) = conversation.store.sessions()
    events = list(conversation.store.read(row.id))
    entries = list(iter_entries(events, shipped_models()))
    summaries = [entry for entry in entries if entry.source == "summary"]
    assert [summary.verdict for summary in summaries] == [None, None]
    assert sum(summary.record.cost_usd for summary in summaries) == event.cost_usd
    assert all(summary.uncached_usd > summary.record.cost_usd for summary in summaries)
    total = fold_events(events, row.id).cost_usd
    assert sum(entry.record.cost_usd for entry in entries) == total
    assert sum(turn.cost_usd for turn in compute_turn_costs(events, shipped_models())) == total
    posted = sum(posting.sums.spent for posting in iter_postings(events, shipped_models()))
    assert posted == to_picodollars(total)


async def test_a_failed_summary_call_is_recorded_too() -> None:
    conversation, event = await compact_with_summary(BROKEN)
    assert [part.kind for part in event.segments] == ["facts", "note"]
    (failed,) = [payload for payload in payloads(conversation) if isinstance(payload, LlmCallFailed)]
    assert event.notes == (f"the summary request failed: {failed.error_message_redacted}",)
    assert not [payload for payload in payloads(conversation) if isinstance(payload, RecoveryAttempted)]


async def test_the_cost_of_a_summary_is_counted_but_its_prompt_is_not_in_the_conversation() -> None:
    conversation = LongConversation(compaction=WITH_LLM_SUMMARY)
    conversation.provider._script = script_summary_reply(GOOD)  # type: ignore[assignment]  # a function of the messages
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        before = session.cost
        await session.compact()
        assert session.cost > before
        assert LLM_SUMMARY_PROMPT not in str(session.history)


async def test_no_summary_is_requested_when_the_cache_is_cold() -> None:
    conversation = LongConversation(compaction=WITH_LLM_SUMMARY)
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        conversation.clock.advance(7_200)
        sent = len(conversation.provider.requests)
        await session.compact()
    assert len(conversation.provider.requests) == sent


def test_names_quotations_and_claims_about_the_user_are_checked_against_the_conversation() -> None:
    text = (
        "## Rationale\n- TokenStream was chosen for src/lexer.py.\n- It saved 90 seconds.\n"
        '- "The lexer in src/lexer.py took" too long.\n- "Nobody has ever said these words" here.\n'
        "- The user said to push.\n- The user wants more.\n## Rejected\n- A generator.\n## Orders\n- Push now."
    )
    checked = check_llm_summary(text, CONVERSATION_TEXT, count=count)
    assert checked.text == (
        "## Rationale\n- TokenStream was chosen for src/lexer.py.\n"
        '- "The lexer in src/lexer.py took" too long.\n\n## Rejected\n- A generator.'
    )
    assert checked.dropped == 5


def test_a_summary_that_is_too_long_is_cut_at_its_end() -> None:
    checked = check_llm_summary("## Next\n" + "- do it all again and again\n" * 1_000, CONVERSATION_TEXT, count=count)
    assert 0 < len(checked.text) < 5_200
    assert checked.dropped > 0
