"""Records what a session has learned about caching, for later sessions."""

from holdfast.engine.conversation import Conversation
from holdfast.events.payloads import CacheLearned
from holdfast.planning.lessons import lesson_of


async def teach_news(conversation: Conversation) -> None:
    """Record new evidence about the provider's cache at once: it is rare, and a session may end at any time."""
    record = _learned_record(conversation)
    if record is not None and _cache_evidence(record) != _cache_evidence(conversation.state.taught):
        await conversation.record("system", record)


async def teach(conversation: Conversation) -> None:
    """Record everything that was learned, unless it is already on the log."""
    record = _learned_record(conversation)
    if record is not None and record != conversation.state.taught:
        await conversation.record("system", record)


def _learned_record(conversation: Conversation) -> CacheLearned | None:
    memory = conversation.state.memory
    return lesson_of(memory, conversation.parts.scene) if memory.calls else None


def _cache_evidence(record: CacheLearned | None) -> tuple[int, int, int, int | None]:
    """The evidence about the cache's behaviour; idle times are recorded at the end only."""
    if record is None:
        return 0, 0, 0, None
    return record.anchors_read, record.anchors_lost, record.floor_misses, record.floor_upto_tokens
