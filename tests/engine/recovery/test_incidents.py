"""Incidents that a session detects by itself: recorded under their scenario names and resolved where possible."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.support.long_conversations import LongConversation, make_read_file, read_one_file_a_turn

from holdfast.cli.main import command
from holdfast.compaction.models import CompactionConfig
from holdfast.engine.compaction.triggers import compact_on_request
from holdfast.engine.recovery.runner import Recovered
from holdfast.engine.reducer import fold_events
from holdfast.events.payloads.compaction import CompactionSkipped, ContextCompacted
from holdfast.events.payloads.recovery import ProviderLimited, RecoveryEnqueued, RecoverySucceeded
from holdfast.events.payloads.session import MessageAppended
from holdfast.events.payloads.union import AnyPayload
from holdfast.simulator.script import ScriptedReply
from holdfast.stores.open import open_store
from holdfast.types.blocks import Message, Text, ToolUse, join_text_blocks
from holdfast.types.json_encoding import encode_json

PayloadType = TypeVar("PayloadType", bound=AnyPayload)
MANUAL_COMPACTION = CompactionConfig(mode="off", auto_compaction_input_tokens_threshold=20_000)

pytestmark = pytest.mark.changes_prefix(reason="a compaction invalidates the cache after the cut")


def payloads_of(long_session: LongConversation, kind: type[PayloadType]) -> list[PayloadType]:
    (row,) = long_session.store.sessions()
    return [event.payload for event in long_session.store.read(row.id) if isinstance(event.payload, kind)]


async def test_a_cache_lost_by_the_provider_is_reported_with_what_was_checked() -> None:
    long_session = LongConversation()
    async with long_session.create() as session:
        await long_session.send_turns(session, 4)
        assert payloads_of(long_session, RecoveryEnqueued) == []
        long_session.provider.advance(7_200)
        await long_session.send_turns(session, 2)
    (incident,) = payloads_of(long_session, RecoveryEnqueued)
    assert (incident.scenario, incident.follow_up) == ("unexpected_cache_break", "run")
    assert incident.detail.startswith("only 0 of ")
    (done,) = payloads_of(long_session, RecoverySucceeded)
    assert [result.step for result in done.results] == ["diff_chain", "freeze_tools_and_system", "repin_head"]
    assert done.results[0].detail.endswith("blocks are unchanged: the provider has lost them")
    assert "breakpoints" in done.results[2].detail


async def test_a_cache_lost_on_purpose_is_no_incident() -> None:
    long_session = LongConversation()
    async with long_session.create() as session:
        await long_session.send_turns(session, 12)
        await session.compact()
        await long_session.send_turns(session, 2)
        await long_session.send_turns(session, 2, gap_seconds=7_200)
    assert payloads_of(long_session, RecoveryEnqueued) == []


async def test_a_large_prompt_with_an_expired_cache_is_reported_with_its_cost() -> None:
    long_session = LongConversation(compaction=MANUAL_COMPACTION)
    async with long_session.create() as session:
        await long_session.send_turns(session, 14)
        assert payloads_of(long_session, RecoveryEnqueued) == []
        await long_session.send_turns(session, 2, gap_seconds=7_200)
    incidents = payloads_of(long_session, RecoveryEnqueued)
    assert [(incident.scenario, incident.follow_up) for incident in incidents] == [("cache_cold_large", "surface")] * 2
    assert "tokens has expired; writing them again costs about $0." in incidents[0].detail


async def test_a_large_prompt_that_is_compacted_when_its_cache_expired_is_no_incident() -> None:
    long_session = LongConversation(
        compaction=msgspec.structs.replace(MANUAL_COMPACTION, mode="off"), tools=(make_read_file(200),)
    )
    async with long_session.create() as session:
        await long_session.send_turns(session, 12)
    long_session.options["compaction"] = "economical"
    async with long_session.resume(session.id) as session:
        await long_session.send_turns(session, 1, gap_seconds=7_200)
    assert payloads_of(long_session, ContextCompacted)[-1].trigger == "cache_expired"
    assert payloads_of(long_session, RecoveryEnqueued) == []


async def test_a_stable_prefix_that_no_compaction_can_shorten_is_reported_once() -> None:
    limit = CompactionConfig(auto_compaction_input_tokens_threshold=1_000)
    long_session = LongConversation(compaction=limit, system_prompt="Follow the rules. " * 9_000)
    async with long_session.create() as session:
        await long_session.send_turns(session, 12)
    (incident,) = payloads_of(long_session, RecoveryEnqueued)
    assert (incident.scenario, incident.follow_up) == ("compaction_ineffective", "surface")
    assert "tools and system prompt alone exceed the limit" in incident.detail
    assert "prefix " in incident.detail


async def test_two_ineffective_compactions_in_one_turn_are_reported() -> None:
    little = CompactionConfig(
        mode="off", share_max=1.0, summary_tokens_max=600, tail_tokens_max=1_000_000, files_tokens_max=0
    )
    long_session = LongConversation()

    async def read_file(path: str) -> str:
        """Reads a file."""
        conversation = session._conversation
        assert conversation is not None
        if session.turn_count == 16:
            size = conversation.draft.buffer.tokens_total - conversation.draft.prefix_tokens
            wanted = msgspec.structs.replace(little, tail_tokens_max=size - 4_500)
            await compact_on_request(conversation, wanted)
        return "\n".join(f"step {number} of {path}" for number in range(120))

    long_session.options["tools"] = (read_file,)

    def rounds(messages: Sequence[Message]) -> ScriptedReply:
        question_index = max(
            at for at, message in enumerate(messages) if message.role == "user" and join_text_blocks(message.content)
        )
        if session.turn_count == 16 and len(messages) - question_index < 7:
            return ScriptedReply((ToolUse("", "read_file", encode_json({"path": f"{len(messages)}.py"}).decode()),))
        return read_one_file_a_turn(messages)

    long_session.provider._script = rounds
    session = long_session.create()
    async with session:
        await long_session.send_turns(session, 17)
    assert len(payloads_of(long_session, ContextCompacted)) >= 2
    (incident,) = payloads_of(long_session, RecoveryEnqueued)
    assert incident.scenario == "compaction_ineffective"
    assert incident.detail.startswith("2 compactions did not help: prefix ")


async def test_messages_that_differ_from_those_compacted_are_reported_once() -> None:
    long_session = LongConversation()
    async with long_session.create() as session:
        await long_session.send_turns(session, 8)
        await session.compact()
        await long_session.send_turns(session, 6)
    store = long_session.store
    covered = next(one for one in store.read(session.id) if isinstance(one.payload, MessageAppended))
    changed = MessageAppended(Message("user", (Text("Something else was asked for."),)))
    overwrite = "UPDATE events SET payload = ? WHERE id = ?"
    assert store._changes.run_statement(overwrite, (msgspec.json.encode(changed).decode(), covered.id)) == 1
    async with long_session.resume(session.id) as resumed:
        await resumed.compact()
        await long_session.send_turns(resumed, 6)
        await resumed.compact()
    (incident,) = payloads_of(long_session, RecoveryEnqueued)
    assert (incident.scenario, incident.follow_up) == ("digest_invalid", "run")
    (first, *_) = payloads_of(long_session, ContextCompacted)
    assert incident.detail == f"messages 1 to {first.last} differ from those that epoch 2 covered"
    (done,) = payloads_of(long_session, RecoverySucceeded)
    assert [result.step for result in done.results] == ["last_good_copy", "rebuild_from_files", "quarantine"]


async def test_a_healthy_session_reports_no_incident() -> None:
    long_session = LongConversation()
    async with long_session.create() as session:
        for _ in range(3):
            await long_session.send_turns(session, 5)
            await session.compact()
    assert payloads_of(long_session, RecoveryEnqueued) == []


async def store_session(db: str, *, config: CompactionConfig, gap_seconds: float) -> str:
    long_session = LongConversation(store=db, compaction=config)
    async with long_session.create() as session:
        await long_session.send_turns(session, 14)
        await long_session.send_turns(session, 1, gap_seconds=gap_seconds)
        return session.id


def run(*words: str) -> Result:
    return CliRunner().invoke(command, words, catch_exceptions=False)


def test_a_cold_prompt_can_be_resolved_by_hand(tmp_path: Path) -> None:
    db = str(tmp_path / "sessions.db")
    session_id = asyncio.run(store_session(db, config=MANUAL_COMPACTION, gap_seconds=7_200))
    listed = run("recovery", "list", "--db", db)
    assert "cache_cold_large" in listed.stdout
    result = run("recovery", "run", session_id, "cache_cold_large", "--db", db)
    assert result.exit_code == 0
    assert "deterministic_tidy: done: " in result.stdout
    assert "tokens became" in result.stdout
    assert "confirm_cost: done: the next message writes " in result.stdout
    assert run("recovery", "list", "--db", db).stdout == "No open incidents (1 recovered; --all shows them).\n"


def test_an_overflow_can_be_resolved_by_hand(tmp_path: Path) -> None:
    db = str(tmp_path / "sessions.db")
    session_id = asyncio.run(store_session(db, config=MANUAL_COMPACTION, gap_seconds=10))
    result = run("recovery", "run", session_id, "context_overflow", "--db", db, "--yes")
    assert result.exit_code == 0
    assert re.search(r"^  checkpoint: done: \d+ tokens became \d+\ncontext_overflow: recovered$", result.stdout, re.M)


def test_ineffective_compaction_suggests_cuts_and_can_be_disabled(tmp_path: Path) -> None:
    db = str(tmp_path / "sessions.db")
    session_id = asyncio.run(store_session(db, config=MANUAL_COMPACTION, gap_seconds=10))
    result = run("recovery", "run", session_id, "compaction_ineffective", "--db", db, "--yes")
    assert result.exit_code == 0
    assert "diagnose_head_and_tail: done: prefix " in result.stdout
    assert "suggest_cuts: done: largest: results of read_file (" in result.stdout
    log = open_store(db)
    try:
        state = fold_events(log.read(session_id), session_id)
    finally:
        log.close()
    assert not state.compaction_watch.may_act


async def test_a_learned_window_replaces_the_one_of_the_catalog() -> None:
    long_session = LongConversation(compaction=CompactionConfig())
    async with long_session.create() as session:
        await long_session.send_turns(session, 10)
        assert payloads_of(long_session, ContextCompacted) == []
        assert session._conversation is not None
        await session._conversation.record("system", ProviderLimited("context_overflow", window_tokens_max=30_000))
        await long_session.send_turns(session, 12)
    events = payloads_of(long_session, ContextCompacted)
    assert {event.trigger for event in events} == {"hard"}
    assert all(event.tokens_before > 14_000 for event in events)


async def test_a_window_smaller_than_a_reply_does_not_cause_endless_compactions() -> None:
    long_session = LongConversation(compaction=CompactionConfig())
    async with long_session.create() as session:
        await long_session.send_turns(session, 6)
        assert session._conversation is not None
        await session._conversation.record("system", ProviderLimited("context_overflow", window_tokens_max=6_000))
        await long_session.send_turns(session, 12)
    assert len(payloads_of(long_session, ContextCompacted)) + len(payloads_of(long_session, CompactionSkipped)) <= 13


async def test_the_largest_parts_are_reported_even_without_host_steps() -> None:
    long_session = LongConversation()
    async with long_session.create() as session:
        await long_session.send_turns(session, 2)
        outcome = await session.recovery.run("compaction_ineffective")
        (incident,) = session.recovery.incidents
    assert isinstance(outcome, Recovered)
    assert "results of read_file" in incident.results[1].detail


@pytest.mark.parametrize("simulated", [True, False])
async def test_a_simulated_cache_that_ended_with_its_process_is_no_incident(simulated: bool) -> None:
    long_session = LongConversation(simulated=simulated)
    async with long_session.create() as session:
        await long_session.send_turns(session, 4)
    long_session.clock.advance(5)
    long_session.provider.advance(7_200)
    async with long_session.resume(session.id) as resumed:
        await long_session.send_turns(resumed, 2)
    assert [payload.scenario for payload in payloads_of(long_session, RecoveryEnqueued)] == (
        [] if simulated else ["unexpected_cache_break"]
    )
