"""What a model adds to a record: asked for by the request it would get anyway, and held to what was said."""

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

PROSE = CompactionConfig(auto=False, llm_summary=True)
SAID = "The lexer in src/lexer.py took 30 seconds, so TokenStream was chosen over a generator."
GOOD = (
    "## Rationale\n- The lexer is slow because it copies.\n## Next\n- Look at the next part.\n- Open src/unheard_of.py."
)


BROKEN = "broken"


def payloads(talk: LongConversation) -> list[AnyPayload]:
    (row,) = talk.store.sessions()
    return [event.payload for event in talk.store.read(row.id)]


def count(text: str) -> int:
    return len(text) // 4


def answering(reply: str | ToolUse, reminded: str | ToolUse | None = None) -> object:
    def answer(messages: Sequence[Message]) -> ScriptedReply:
        asked = join_text_blocks(messages[-1].content)
        if LLM_SUMMARY_PROMPT not in asked:
            return read_one_file_a_turn(messages)
        given = reminded if reminded is not None and LLM_SUMMARY_RETRY_PROMPT in asked else reply
        if given == BROKEN:
            return ScriptedReply((Text("Too"),), faults=(parse_fault("400"),))
        return ScriptedReply((Text(given) if isinstance(given, str) else given,))

    return answer


async def compacted(
    reply: str | ToolUse, reminded: str | ToolUse | None = None
) -> tuple[LongConversation, ContextCompacted]:
    talk = LongConversation(compaction=PROSE)
    talk.provider._script = answering(reply, reminded)  # type: ignore[assignment]  # a function of the messages
    async with talk.create() as session:
        await talk.send_turns(session, 12)
        await session.compact()
    (event,) = [one.payload for one in talk.store.read(session.id) if isinstance(one.payload, ContextCompacted)]
    return talk, event


async def test_the_request_for_it_extends_the_last_one_and_reads_the_cache() -> None:
    talk, event = await compacted(GOOD)
    before, asked = (msgspec.json.decode(one.body) for one in talk.provider.requests[-2:])
    assert (asked["tools"], asked["system"]) == (before["tools"], before["system"])
    assert len(asked["messages"]) == len(before["messages"]) + 2
    assert asked["messages"][-1]["content"][0]["text"] == LLM_SUMMARY_PROMPT
    assert event.usage.cache_read >= 0.85 * event.usage.tokens_sent
    assert event.cost_usd > 0


async def test_lines_that_hold_are_kept_and_the_others_are_dropped_and_counted() -> None:
    _, event = await compacted(GOOD)
    assert [part.kind for part in event.segments] == ["facts", "llm_summary", "note"]
    assert event.segments[1].text == (
        "## Rationale\n- The lexer is slow because it copies.\n\n## Next\n- Look at the next part."
    )
    assert event.notes == ("1 lines of the model's summary were dropped",)


@pytest.mark.parametrize("reply", ["Sorry.", "## Story\n- Once.", ToolUse("", "read_file", '{"path":"a"}')])
async def test_what_cannot_be_used_leaves_the_record_that_was_found_by_rule(reply: str | ToolUse) -> None:
    talk, event = await compacted(reply)
    assert [part.kind for part in event.segments] == ["facts", "note"]
    assert len(event.notes) == 1
    assert event.cost_usd > 0
    (said,) = [it for it in payloads(talk) if isinstance(it, RecoverySucceeded)]
    assert said.scenario == "summary_invalid"
    assert [(one.step, one.status) for one in said.results] == [
        ("remind_summariser", "done"),
        ("deterministic_record", "done"),
    ]


async def test_a_reminder_may_be_enough() -> None:
    talk, event = await compacted(ToolUse("", "read_file", '{"path":"a"}'), GOOD)
    assert [part.kind for part in event.segments] == ["facts", "llm_summary", "note"]
    (said,) = [it for it in payloads(talk) if isinstance(it, RecoverySucceeded)]
    assert [(one.step, one.status) for one in said.results] == [("remind_summariser", "recovered")]
    asked = [msgspec.json.decode(one.body)["messages"] for one in talk.provider.requests[-2:]]
    assert asked[0][:-1] == asked[1][:-1]
    assert event.usage.cache_read >= 0.85 * event.usage.tokens_sent


async def test_what_the_model_was_paid_for_it_is_in_the_list_of_calls_and_in_every_sum() -> None:
    talk, event = await compacted(ToolUse("", "read_file", '{"path":"a"}'), GOOD)
    (row,) = talk.store.sessions()
    events = list(talk.store.read(row.id))
    listed = list(iter_entries(events, shipped_models()))
    summaries = [one for one in listed if one.source == "summary"]
    assert [one.verdict for one in summaries] == [None, None]
    assert sum(one.record.cost_usd for one in summaries) == event.cost_usd
    assert all(one.uncached_usd > one.record.cost_usd for one in summaries)
    total = fold_events(events, row.id).cost_usd
    assert sum(one.record.cost_usd for one in listed) == total
    assert sum(one.cost_usd for one in compute_turn_costs(events, shipped_models())) == total
    posted = sum(one.sums.spent for one in iter_postings(events, shipped_models()))
    assert posted == to_picodollars(total)


async def test_a_call_for_it_that_fails_is_on_the_log_too() -> None:
    talk, event = await compacted(BROKEN)
    assert [part.kind for part in event.segments] == ["facts", "note"]
    (failed,) = [it for it in payloads(talk) if isinstance(it, LlmCallFailed)]
    assert event.notes == (f"the summary request failed: {failed.error_message_redacted}",)
    assert not [it for it in payloads(talk) if isinstance(it, RecoveryAttempted)]


async def test_what_it_cost_is_counted_and_it_is_no_part_of_the_conversation() -> None:
    talk = LongConversation(compaction=PROSE)
    talk.provider._script = answering(GOOD)  # type: ignore[assignment]  # a function of the messages
    async with talk.create() as session:
        await talk.send_turns(session, 12)
        before = session.cost
        await session.compact()
        assert session.cost > before
        assert LLM_SUMMARY_PROMPT not in str(session.history)


async def test_a_cold_cache_is_not_paid_for_twice() -> None:
    talk = LongConversation(compaction=PROSE)
    async with talk.create() as session:
        await talk.send_turns(session, 12)
        talk.clock.advance(7_200)
        sent = len(talk.provider.requests)
        await session.compact()
    assert len(talk.provider.requests) == sent


def test_names_quotations_and_words_of_the_user_are_held_to_what_was_said() -> None:
    text = (
        "## Rationale\n- TokenStream was chosen for src/lexer.py.\n- It saved 90 seconds.\n"
        '- "The lexer in src/lexer.py took" too long.\n- "Nobody has ever said these words" here.\n'
        "- The user said to push.\n- The user wants more.\n## Rejected\n- A generator.\n## Orders\n- Push now."
    )
    found = check_llm_summary(text, SAID, count=count)
    assert found.text == (
        "## Rationale\n- TokenStream was chosen for src/lexer.py.\n"
        '- "The lexer in src/lexer.py took" too long.\n\n## Rejected\n- A generator.'
    )
    assert found.dropped == 5


def test_what_is_too_long_is_left_out_from_the_end_on() -> None:
    found = check_llm_summary("## Next\n" + "- do it all again and again\n" * 1_000, SAID, count=count)
    assert 0 < len(found.text) < 5_200
    assert found.dropped > 0
