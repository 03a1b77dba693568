"""The tool with which a model reads messages that a compaction removed from the view."""

from collections.abc import Sequence

import pytest
from tests.support.long_conversations import LongConversation, block_kind, read_one_file_a_turn

from holdfast.engine.tools.builtin.history import parse_message_range
from holdfast.simulator.script import ScriptedReply
from holdfast.types.blocks import Message, ToolUse, join_text_blocks
from holdfast.types.json_encoding import encode_json


def recall_on_request(messages: Sequence[Message]) -> ScriptedReply:
    """Recall the source that the user's last message names, if it does; otherwise read files."""
    text = join_text_blocks(messages[-1].content)
    if "recall " not in text or any(block_kind(block) == "tool_result" for block in messages[-1].content):
        return read_one_file_a_turn(messages)
    source = text.rpartition("recall ")[2]
    return ScriptedReply((ToolUse("", "recall_history", encode_json({"source": source}).decode()),))


@pytest.mark.changes_prefix(reason="a compaction invalidates the cache after the cut")
async def test_a_model_can_read_messages_that_are_no_longer_in_view() -> None:
    conversation = LongConversation(recall_history=True)
    conversation.provider._script = recall_on_request
    async with conversation.create() as session:
        await conversation.send_turns(session, 10)
        await session.compact()
        assert "The tool recall_history shows it in full." in join_text_blocks(session.history[0].content)
        assert "def step_59(token)" not in str(session.history[:2])
        await session.send("Please recall m2")
        result = str(session.history[-2])
    assert "[m2] assistant" in result
    assert "[m3] user" in result
    assert "def step_59(token)" in result


@pytest.mark.parametrize("source", ["m2 and more", "m9999", ""])
async def test_an_unknown_message_range_is_an_error(source: str) -> None:
    conversation = LongConversation(recall_history=True)
    conversation.provider._script = recall_on_request
    async with conversation.create() as session:
        await session.send(f"recall {source}")
        assert "is_error=True" in str(session.history[2])


@pytest.mark.parametrize(
    ("options", "tools"),
    [
        ({"compaction": "threshold"}, ["read_file", "recall_history"]),
        ({"compaction": "economical"}, ["read_file", "recall_history"]),
        ({"compaction": "off"}, ["read_file"]),
        ({"compaction": "off", "recall_history": True}, ["read_file", "recall_history"]),
        ({"compaction": "threshold", "recall_history": False}, ["read_file"]),
        ({"compaction": "threshold", "profile": "seed"}, ["read_file", "skill_load", "skill_search"]),
        ({"compaction": "threshold", "tools": ()}, []),
    ],
)
async def test_the_tool_is_there_from_the_start_unless_nothing_is_compacted(
    options: dict[str, object], tools: list[str]
) -> None:
    conversation = LongConversation(**options)
    async with conversation.create() as session:
        assert [spec.name for spec in session.tools] == tools
    async with conversation.resume(session.id) as resumed:
        assert [spec.name for spec in resumed.tools] == tools


def test_message_ranges_are_parsed_in_every_notation() -> None:
    ranges = [parse_message_range(text) for text in ("m12", "12", "12-20", "m12-m20", "m12 to m20", "20-12", " m3 ")]
    assert ranges == [(12, 12), (12, 12), (12, 20), (12, 20), (12, 20), (20, 20), (3, 3)]
    assert [parse_message_range(text) for text in ("", "m", "x12", "12-", "m1,m2", "1" * 30)] == [None] * 6
