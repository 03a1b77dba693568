"""Facts are read while a session waits for its provider, so that a compaction reads only the newest messages itself."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from tests.support.long_conversations import LongConversation, make_read_file

from holdfast.compaction.models import CompactionConfig
from holdfast.engine.compaction import triggers
from holdfast.engine.compaction.history import LoggedMessages
from holdfast.errors import StoreError
from holdfast.events.log import Event
from holdfast.events.payloads.compaction import ContextCompacted
from holdfast.runtime.session import Session
from holdfast.stores.memory import MemoryStore

pytestmark = pytest.mark.changes_prefix(reason="a compaction invalidates the cache after the cut")


def limit(tokens: int, *, mode: str = "threshold") -> CompactionConfig:
    return CompactionConfig(mode=mode, auto_compaction_input_tokens_threshold=tokens)  # type: ignore[arg-type]


def logged_of(session: Session) -> LoggedMessages:
    return session._open_conversation.logged


def compactions(store: MemoryStore) -> list[ContextCompacted]:
    return [
        event.payload
        for row in store.sessions()
        for event in store.read(row.id)
        if isinstance(event.payload, ContextCompacted)
    ]


async def messages_read_by_compactions(conversation: LongConversation, count: int) -> list[int]:
    """How many messages each of so many compactions read itself, in the turn that it delayed."""
    reads: list[int] = []
    read_until = 0

    def on_event(event: Event) -> None:
        if isinstance(event.payload, ContextCompacted):
            reads.append(event.payload.last - read_until)

    async with conversation.create() as session:
        session.subscribe(on_event)
        while len(reads) < count:
            read_until = logged_of(session).read_until
            await conversation.send_turns(session, 1)
    return reads


@pytest.mark.parametrize("tokens", [16_000, 32_000, 64_000])
async def test_a_compaction_reads_few_messages_however_long_the_history_is(tokens: int) -> None:
    conversation = LongConversation(compaction=limit(tokens), tools=(make_read_file(20),))
    reads = await messages_read_by_compactions(conversation, 3)
    # What one turn adds, and what is too little to be read ahead; the smallest limit is reached after 40 messages.
    assert max(reads) <= 2 * triggers.READ_AHEAD_MESSAGES_MIN
    assert min(event.last for event in compactions(conversation.store)) > 2 * max(reads)


async def test_the_summaries_are_those_of_a_session_that_reads_nothing_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payloads = []
    for share in (0.1, 0.75, 10.0):
        monkeypatch.setattr(triggers, "READ_AHEAD_SHARE", share)
        conversation = LongConversation(compaction=limit(20_000))
        async with conversation.create() as session:
            await conversation.send_turns(session, 20)
            await session.compact()
            await conversation.send_turns(session, 3)
            await session.undo_compaction()
            await session.switch_model("anthropic:claude-haiku-4-5")
            await conversation.send_turns(session, 4)
        async with conversation.resume(session.id) as resumed:
            await conversation.send_turns(resumed, 16)
            assert (logged_of(resumed).read_until > 0) is (len(compactions(conversation.store)) > 0)
        payloads.append(compactions(conversation.store))
    assert len(payloads[0]) > 3
    assert payloads[0] == payloads[1] == payloads[2]


@pytest.mark.parametrize(
    ("compaction", "is_read"),
    [("off", False), (limit(10_000, mode="off"), False), (limit(60_000), False), (limit(20_000), True)],
)
async def test_nothing_is_read_where_no_compaction_is_near(compaction: object, is_read: bool) -> None:
    conversation = LongConversation(compaction=compaction)
    async with conversation.create() as session:
        while session.context_use().tokens < 17_000:
            await conversation.send_turns(session, 1)
        assert (logged_of(session).seen_until > 0) is is_read


class BrokenReads(MemoryStore):
    """A log that cannot be read while `is_broken`."""

    is_broken = False

    def read(self, session_id: str, *, after: str | None = None, types: Sequence[str] = ()) -> Iterator[Event]:
        if self.is_broken:
            raise StoreError("the disk is gone")
        return super().read(session_id, after=after, types=types)


async def test_a_call_succeeds_though_nothing_can_be_read_ahead() -> None:
    conversation = LongConversation(compaction=limit(20_000))
    conversation.store = conversation.options["store"] = store = BrokenReads()
    async with conversation.create() as session:
        while session.context_use().tokens < 17_000:
            store.is_broken = True
            await conversation.send_turns(session, 1)
            store.is_broken = False
        assert logged_of(session).seen_until == 0
        await conversation.send_turns(session, 12)
    (event, *_) = compactions(store)
    assert event.first == 1


async def test_messages_read_ahead_are_not_kept() -> None:
    conversation = LongConversation(compaction=limit(30_000), tools=(make_read_file(20),))
    kept = []
    async with conversation.create() as session:
        while len(compactions(conversation.store)) < 3:
            await conversation.send_turns(session, 1)
            kept.append(logged_of(session).seen_until - logged_of(session).read_until)
    # The newest groups, which stay in view, and what came since the last reading.
    assert max(kept) < 60
    assert [later.first for _, later in pairwise(compactions(conversation.store))] != []
