"""The tool with which an agent asks for a compaction at a natural break."""

from collections.abc import Sequence

import pytest
from tests.support.long_conversations import LongConversation, block_kind, read_one_file_a_turn

from holdfast.catalog.lookup import shipped_models
from holdfast.engine.certify import certify
from holdfast.events.log import Event
from holdfast.events.payloads.compaction import (
    CompactionRequested,
    CompactionSkipped,
    CompactionUndone,
    ContextCompacted,
)
from holdfast.simulator.script import ScriptedReply
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import Message, Text, ToolUse, join_text_blocks
from holdfast.types.json_encoding import encode_json
from holdfast.types.transcript import validate_transcript

pytestmark = pytest.mark.changes_prefix(reason="a compaction invalidates the cache after the cut")
REASON = "the lexer is done, the parser is next"


def compact_on_request(messages: Sequence[Message]) -> ScriptedReply:
    """Ask for a compaction if the user's newest message says so, and keep what it names; otherwise read files."""
    text = join_text_blocks(messages[-1].content)
    if "compact now" not in text or any(block_kind(block) == "tool_result" for block in messages[-1].content):
        return read_one_file_a_turn(messages)
    arguments = {"reason": REASON, "keep": text.partition("keep: ")[2].split()}
    return ScriptedReply((Text("A good moment."), ToolUse("", "compact_context", encode_json(arguments).decode())))


def scripted(**options: object) -> LongConversation:
    conversation = LongConversation(compact_tool=True, **options)
    conversation.provider._script = compact_on_request
    return conversation


def recorded(store: MemoryStore, kind: type) -> list[object]:
    (row,) = store.sessions()
    return [event.payload for event in store.read(row.id) if isinstance(event.payload, kind)]


@pytest.mark.parametrize("mode", ["off", "threshold"])
async def test_what_the_agent_asks_for_happens_before_the_next_call_and_can_be_undone(mode: str) -> None:
    conversation = scripted(compaction=mode)
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        before = session.context_use().tokens
        items = [item async for item in session.stream("Please compact now.")]
        payloads = [item.payload for item in items if isinstance(item, Event)]
        (event,) = [payload for payload in payloads if isinstance(payload, ContextCompacted)]
        assert session.context_use().tokens < before - 8_000
        assert (event.trigger, event.notes) == ("agent", (f"the agent asked for it: {REASON}",))
        # The call and its result are the newest group, so the agent's own reason stays in view.
        assert REASON in str(session.history)
        assert session.dropped()
        await session.send("Go on.")
        assert len(recorded(conversation.store, ContextCompacted)) == 1
        await session.undo_compaction()
        await session.send("Go on.")
        assert len(recorded(conversation.store, ContextCompacted)) == 1
        assert "def step_59(token)" in str(session.history[2])
        assert not session.dropped()
        # What the agent asked for before the undo is over, even when the prompt has grown.
        await conversation.send_turns(session, 8)
        assert len(recorded(conversation.store, ContextCompacted)) == 1
    assert len(recorded(conversation.store, CompactionUndone)) == 1
    assert validate_transcript(session.history) == ()
    certificates = list(certify(conversation.store.read(session.id), session.id, shipped_models()))
    assert [certificate.violation for certificate in certificates] == [None] * len(certificates)


async def test_files_and_messages_that_the_agent_names_stay_in_view() -> None:
    conversation = scripted()
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        calls = [block for message in session.history for block in message.content if isinstance(block, ToolUse)]
        path = str(calls[2].arguments_json).partition('"path":"')[2].rstrip('"}')
        await session.send(f"compact now, keep: {path} m3 notes/nowhere.md")
    (event,) = recorded(conversation.store, ContextCompacted)
    assert isinstance(event, ContextCompacted)
    assert {2, 3} <= set(event.kept)
    assert f"step_59(token): return token + 59  # of {path}" in str(session.history)
    assert "notes/nowhere.md" in str(session.history)


async def test_a_request_that_would_not_help_is_recorded_with_its_reason_and_not_repeated() -> None:
    conversation = scripted(compaction="threshold")
    async with conversation.create() as session:
        await session.send("compact now")
        await session.send("Go on.")
    (skipped,) = recorded(conversation.store, CompactionSkipped)
    assert isinstance(skipped, CompactionSkipped)
    assert skipped.trigger == "agent"
    assert len(recorded(conversation.store, CompactionRequested)) == 1
    assert recorded(conversation.store, ContextCompacted) == []


async def test_a_resumed_session_carries_out_what_was_asked_before() -> None:
    conversation = scripted()
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        stream = session.stream("compact now")
        async for item in stream:
            if isinstance(item, Event) and isinstance(item.payload, CompactionRequested):
                break
        await stream.aclose()
    assert recorded(conversation.store, ContextCompacted) == []
    async with conversation.resume(session.id) as resumed:
        assert [spec.name for spec in resumed.tools] == ["compact_context", "read_file"]
        await resumed.send("Go on.")
    assert len(recorded(conversation.store, ContextCompacted)) == 1


async def test_sessions_have_the_tool_only_if_asked_for() -> None:
    conversation = LongConversation(compaction="threshold")
    async with conversation.create() as session:
        assert "compact_context" not in [spec.name for spec in session.tools]
