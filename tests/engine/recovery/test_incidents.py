"""Known failures that a session meets by itself: told under their names, on its log, and seen to where that can be."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.support.long_conversations import LongTalk, reading

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

Kept = TypeVar("Kept", bound=AnyPayload)
HAND = CompactionConfig(auto=False, auto_compaction_input_tokens_threshold=20_000)

pytestmark = pytest.mark.changes_prefix(reason="a compaction gives up what stands behind the cut")


def kept(talk: LongTalk, kind: type[Kept]) -> list[Kept]:
    (row,) = talk.store.sessions()
    return [event.payload for event in talk.store.read(row.id) if isinstance(event.payload, kind)]


async def test_a_cache_that_a_provider_has_lost_is_told_with_what_was_looked_at() -> None:
    talk = LongTalk()
    async with talk.create() as session:
        await talk.speak(session, 4)
        assert kept(talk, RecoveryEnqueued) == []
        talk.provider.advance(7_200)
        await talk.speak(session, 2)
    (told,) = kept(talk, RecoveryEnqueued)
    assert (told.scenario, told.follow_up) == ("unexpected_cache_break", "run")
    assert told.detail.startswith("only 0 of ")
    (done,) = kept(talk, RecoverySucceeded)
    assert [one.step for one in done.results] == ["diff_chain", "freeze_tools_and_system", "repin_head"]
    assert done.results[0].detail.endswith("blocks are unchanged: the provider has lost them")
    assert "breakpoints" in done.results[2].detail


async def test_a_cache_that_was_given_up_on_purpose_is_no_break() -> None:
    talk = LongTalk()
    async with talk.create() as session:
        await talk.speak(session, 12)
        await session.compact()
        await talk.speak(session, 2)
        await talk.speak(session, 2, gap_seconds=7_200)
    assert kept(talk, RecoveryEnqueued) == []


async def test_a_large_prompt_that_grew_cold_is_told_with_its_price() -> None:
    talk = LongTalk(compaction=HAND)
    async with talk.create() as session:
        await talk.speak(session, 14)
        assert kept(talk, RecoveryEnqueued) == []
        await talk.speak(session, 2, gap_seconds=7_200)
    told = kept(talk, RecoveryEnqueued)
    assert [(one.scenario, one.follow_up) for one in told] == [("cache_cold_large", "surface")] * 2
    assert "tokens has expired; writing them again costs about $0." in told[0].detail


async def test_a_large_prompt_that_is_made_shorter_when_it_is_cold_needs_nobody() -> None:
    talk = LongTalk(compaction=msgspec.structs.replace(HAND, auto=True, money=False, clear=False))
    async with talk.create() as session:
        await talk.speak(session, 8)
        await talk.speak(session, 1, gap_seconds=7_200)
    assert kept(talk, ContextCompacted)[-1].trigger == "cache_expired"
    assert kept(talk, RecoveryEnqueued) == []


async def test_a_head_that_no_compaction_makes_shorter_is_told_once() -> None:
    limit = CompactionConfig(auto_compaction_input_tokens_threshold=1_000, money=False, clear=False)
    talk = LongTalk(compaction=limit, system_prompt="Follow the rules. " * 9_000)
    async with talk.create() as session:
        await talk.speak(session, 12)
    (told,) = kept(talk, RecoveryEnqueued)
    assert (told.scenario, told.follow_up) == ("compaction_ineffective", "surface")
    assert "tools and system prompt alone exceed the limit" in told.detail
    assert "prefix " in told.detail


async def test_two_compactions_of_a_turn_that_did_not_help_are_told() -> None:
    little = CompactionConfig(auto=False, share_max=1.0, summary_tokens_max=600, tail_tokens_max=1_000_000)
    talk = LongTalk()

    async def read_file(path: str) -> str:
        """Reads a file."""
        conversation = session._conversation
        assert conversation is not None
        if session.turn_count == 16:
            size = conversation.draft.buffer.tokens_total - conversation.draft.prefix_tokens
            wanted = msgspec.structs.replace(little, tail_tokens_max=size - 4_500)
            await compact_on_request(conversation, wanted)
        return f"# {path}\n" + "step\n" * 600

    talk.options["tools"] = (read_file,)

    def rounds(messages: Sequence[Message]) -> ScriptedReply:
        asked = max(at for at, one in enumerate(messages) if one.role == "user" and join_text_blocks(one.content))
        if session.turn_count == 16 and len(messages) - asked < 7:
            return ScriptedReply((ToolUse("", "read_file", encode_json({"path": f"{len(messages)}.py"}).decode()),))
        return reading(messages)

    talk.provider._script = rounds
    session = talk.create()
    async with session:
        await talk.speak(session, 17)
    assert len(kept(talk, ContextCompacted)) >= 2
    (told,) = kept(talk, RecoveryEnqueued)
    assert told.scenario == "compaction_ineffective"
    assert told.detail.startswith("2 compactions did not help: prefix ")


async def test_messages_that_are_not_those_that_were_covered_are_told_once() -> None:
    talk = LongTalk()
    async with talk.create() as session:
        await talk.speak(session, 8)
        await session.compact()
        await talk.speak(session, 6)
    covered = next(one for one in talk.store.read(session.id) if isinstance(one.payload, MessageAppended))
    changed = MessageAppended(Message("user", (Text("Something else was asked for."),)))
    overwrite = "UPDATE events SET payload = ? WHERE id = ?"
    assert talk.store._changes.run_statement(overwrite, (msgspec.json.encode(changed).decode(), covered.id)) == 1
    async with talk.resume(session.id) as resumed:
        await resumed.compact()
        await talk.speak(resumed, 6)
        await resumed.compact()
    (told,) = kept(talk, RecoveryEnqueued)
    assert (told.scenario, told.follow_up) == ("digest_invalid", "run")
    (first, *_) = kept(talk, ContextCompacted)
    assert told.detail == f"messages 1 to {first.last} differ from those that epoch 2 covered"
    (done,) = kept(talk, RecoverySucceeded)
    assert [one.step for one in done.results] == ["last_good_copy", "rebuild_from_files", "quarantine"]


async def test_a_session_that_is_left_alone_has_nothing_to_tell() -> None:
    talk = LongTalk()
    async with talk.create() as session:
        for _ in range(3):
            await talk.speak(session, 5)
            await session.compact()
    assert kept(talk, RecoveryEnqueued) == []


async def stored(db: str, *, config: CompactionConfig, gap_seconds: float) -> str:
    talk = LongTalk(store=db, compaction=config)
    async with talk.create() as session:
        await talk.speak(session, 14)
        await talk.speak(session, 1, gap_seconds=gap_seconds)
        return session.id


def run(*words: str) -> Result:
    return CliRunner().invoke(command, words, catch_exceptions=False)


def test_a_person_sees_to_a_cold_prompt_by_hand(tmp_path: Path) -> None:
    db = str(tmp_path / "sessions.db")
    session_id = asyncio.run(stored(db, config=HAND, gap_seconds=7_200))
    listed = run("recovery", "list", "--db", db)
    assert "cache_cold_large" in listed.stdout
    result = run("recovery", "run", session_id, "cache_cold_large", "--db", db)
    assert result.exit_code == 0
    assert "deterministic_tidy: done: " in result.stdout
    assert "tokens became" in result.stdout
    assert "confirm_cost: done: the next message writes " in result.stdout
    assert run("recovery", "list", "--db", db).stdout == "No open incidents (1 recovered; --all shows them).\n"


def test_a_person_is_told_what_could_be_cut_and_switches_it_off(tmp_path: Path) -> None:
    db = str(tmp_path / "sessions.db")
    session_id = asyncio.run(stored(db, config=HAND, gap_seconds=10))
    result = run("recovery", "run", session_id, "compaction_ineffective", "--db", db)
    assert result.exit_code == 0
    assert "diagnose_head_and_tail: done: prefix " in result.stdout
    assert "suggest_cuts: done: largest: results of read_file (" in result.stdout
    log = open_store(db)
    try:
        state = fold_events(log.read(session_id), session_id)
    finally:
        log.close()
    assert not state.compaction_watch.may_act


async def test_a_window_that_was_learned_is_the_one_that_counts() -> None:
    talk = LongTalk(compaction=CompactionConfig(money=False))
    async with talk.create() as session:
        await talk.speak(session, 10)
        assert kept(talk, ContextCompacted) == []
        assert session._conversation is not None
        await session._conversation.record("system", ProviderLimited("context_overflow", window_tokens_max=30_000))
        await talk.speak(session, 12)
    events = kept(talk, ContextCompacted)
    assert {event.trigger for event in events} == {"hard"}
    assert all(event.tokens_before > 14_000 for event in events)


async def test_a_window_smaller_than_a_reply_is_no_endless_compaction() -> None:
    talk = LongTalk(compaction=CompactionConfig(money=False))
    async with talk.create() as session:
        await talk.speak(session, 6)
        assert session._conversation is not None
        await session._conversation.record("system", ProviderLimited("context_overflow", window_tokens_max=6_000))
        await talk.speak(session, 12)
    assert len(kept(talk, ContextCompacted)) + len(kept(talk, CompactionSkipped)) <= 13


async def test_a_host_that_gives_no_steps_is_told_what_is_largest_all_the_same() -> None:
    talk = LongTalk()
    async with talk.create() as session:
        await talk.speak(session, 2)
        outcome = await session.recovery.run("compaction_ineffective")
        (incident,) = session.recovery.incidents
    assert isinstance(outcome, Recovered)
    assert "results of read_file" in incident.results[1].detail


@pytest.mark.parametrize("simulated", [True, False])
async def test_a_simulated_cache_that_ended_with_its_process_is_no_break(simulated: bool) -> None:
    talk = LongTalk(simulated=simulated)
    async with talk.create() as session:
        await talk.speak(session, 4)
    talk.clock.advance(5)
    talk.provider.advance(7_200)
    async with talk.resume(session.id) as resumed:
        await talk.speak(resumed, 2)
    assert [one.scenario for one in kept(talk, RecoveryEnqueued)] == ([] if simulated else ["unexpected_cache_break"])
