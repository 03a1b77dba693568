"""What a session leaves behind for those that come after it."""

from holdfast.engine.conversation import Conversation
from holdfast.events.payloads import CacheLearned
from holdfast.planning.lessons import lesson_of


async def teach_news(conversation: Conversation) -> None:
    """Record at once what was seen of the provider's cache: it is seen rarely, and a session may end at any time."""
    record = _learned_record(conversation)
    if record is not None and _cache_evidence(record) != _cache_evidence(conversation.state.taught):
        await conversation.record("system", record)


async def teach(conversation: Conversation) -> None:
    """Record everything that was learned, unless it is on the log."""
    record = _learned_record(conversation)
    if record is not None and record != conversation.state.taught:
        await conversation.record("system", record)


def _learned_record(conversation: Conversation) -> CacheLearned | None:
    memory = conversation.state.memory
    return lesson_of(memory, conversation.parts.scene) if memory.calls else None


def _cache_evidence(record: CacheLearned | None) -> tuple[int, int, int, int | None]:
    """What was seen of how the cache behaves; how long is waited can wait until the end."""
    if record is None:
        return 0, 0, 0, None
    return record.anchors_read, record.anchors_lost, record.floor_misses, record.floor_upto_tokens
