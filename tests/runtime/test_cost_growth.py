"""A turn of a long conversation costs as much as one of a short conversation, counted in operations."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.agents import ReplayTransport, says
from tests.support.operations import OperationCounter, counting_hashed_bytes

from holdfast import Session
from holdfast.compaction.models import CompactionMode
from holdfast.events.log import Event
from holdfast.stores.sql.events import encode_events
from holdfast.types.usage import Usage

SHORT, LONG = 10, 500
REPEATS = 3
# Longer than what a provider caches at least, up to which each plan adds up the tokens of the blocks.
SYSTEM_PROMPT = "You read before you write. " * 400


@asynccontextmanager
async def open_session(folder: Path, compaction: CompactionMode) -> AsyncIterator[Session]:
    # The provider counts about as many tokens as are estimated: 2,800 for the system prompt and 45 for a turn.
    usages = (Usage(input=45, cache_read=2_800 + 45 * turn, output=10) for turn in range(LONG))
    transport = ReplayTransport([says("It adds up the lines.", usage=usage) for usage in usages])
    async with Session.create(
        model="anthropic:claude-sonnet-5-5",
        system_prompt=SYSTEM_PROMPT,
        compaction=compaction,
        store=folder / "s.db",
        transport=transport,
    ) as session:
        yield session


def question(messages: int) -> str:
    return f"What does line {messages:04} do? " * 5


@pytest.mark.parametrize("compaction", ["off", "threshold", "economical"])
async def test_a_turn_after_500_messages_costs_what_it_costs_after_ten(
    compaction: CompactionMode, tmp_path: Path
) -> None:
    """With a compaction mode, each turn also decides whether to compact."""
    counts: dict[int, list[int]] = {SHORT: [], LONG: []}
    with OperationCounter().open() as counter:
        async with open_session(tmp_path, compaction) as session:
            for messages in range(0, LONG + 2 * REPEATS, 2):
                counted = [counts[length] for length in counts if length <= messages < length + 2 * REPEATS]
                if not counted:
                    await session.send(question(messages))
                    continue
                with counter.counting() as operations:
                    await session.send(question(messages))
                counted[0].append(operations.total())
    # The least, because the thread that writes the log may have waited in several steps.
    assert 0 < min(counts[LONG]) < 1.05 * min(counts[SHORT]), counts


async def test_a_turn_after_500_messages_hashes_and_stores_as_many_bytes_as_one_after_ten(tmp_path: Path) -> None:
    counts, sizes = dict[int, int](), dict[int, int]()
    async with open_session(tmp_path, "threshold") as session:
        events: list[Event] = []
        session.subscribe(events.append)
        for messages in range(0, LONG + 2, 2):
            events.clear()
            with counting_hashed_bytes() as hashed:
                await session.send(question(messages))
            counts[messages] = hashed.count
            sizes[messages] = sum(len(row.payload) for row in encode_events(events))
    assert 0 < counts[LONG] == counts[SHORT]
    # Numbers of blocks, tokens and bytes have more digits.
    assert 0 < sizes[LONG] < sizes[SHORT] + 50
