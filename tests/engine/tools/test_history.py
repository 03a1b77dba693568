"""The tool by which a model reads what a compaction has covered."""

from collections.abc import Sequence

import pytest
from tests.support.long_conversations import LongConversation, block_kind, read_one_file_a_turn

from holdfast.engine.tools.builtin.history import parse_message_range
from holdfast.simulator.script import ScriptedReply
from holdfast.types.blocks import Message, ToolUse, join_text_blocks
from holdfast.types.json_encoding import encode_json


def recalling(messages: Sequence[Message]) -> ScriptedReply:
    """Asks for what is named in the last words of the user, once they say so; else reads files."""
    said = join_text_blocks(messages[-1].content)
    if "recall " not in said or any(block_kind(block) == "tool_result" for block in messages[-1].content):
        return read_one_file_a_turn(messages)
    source = said.rpartition("recall ")[2]
    return ScriptedReply((ToolUse("", "recall_history", encode_json({"source": source}).decode()),))


@pytest.mark.changes_prefix(reason="a compaction gives up what stands behind the cut")
async def test_a_model_reads_what_is_no_longer_in_view() -> None:
    talk = LongConversation(recall_history=True)
    talk.provider._script = recalling
    async with talk.create() as session:
        await talk.send_turns(session, 10)
        await session.compact()
        assert "The tool recall_history shows it in full." in join_text_blocks(session.history[0].content)
        assert "def step_59(token)" not in str(session.history[:2])
        await session.send("Please recall m2")
        result = str(session.history[-2])
    assert "[m2] assistant" in result
    assert "[m3] user" in result
    assert "def step_59(token)" in result


@pytest.mark.parametrize("source", ["m2 and more", "m9999", ""])
async def test_what_is_no_message_is_told_as_an_error(source: str) -> None:
    talk = LongConversation(recall_history=True)
    talk.provider._script = recalling
    async with talk.create() as session:
        await session.send(f"recall {source}")
        assert "is_error=True" in str(session.history[2])


async def test_without_the_tool_the_record_does_not_speak_of_it() -> None:
    talk = LongConversation()
    async with talk.create() as session:
        assert [spec.name for spec in session.tools] == ["read_file"]


def test_ranges_are_read_however_they_are_written() -> None:
    told = [parse_message_range(text) for text in ("m12", "12", "12-20", "m12-m20", "m12 to m20", "20-12", " m3 ")]
    assert told == [(12, 12), (12, 12), (12, 20), (12, 20), (12, 20), (20, 20), (3, 3)]
    assert [parse_message_range(text) for text in ("", "m", "x12", "12-", "m1,m2", "1" * 30)] == [None] * 6
