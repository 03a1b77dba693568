"""What a session leaves behind for those that come after it."""

from holdfast.engine.conversation import Conversation
from holdfast.events.payloads import CacheLearned
from holdfast.planning.lessons import lesson_of


async def teach_news(conversation: Conversation) -> None:
    """Record at once what was seen of the provider's cache: it is seen rarely, and a session may end at any time."""
    lesson = _lesson(conversation)
    if lesson is not None and _seen(lesson) != _seen(conversation.state.taught):
        await conversation.record("system", lesson)


async def teach(conversation: Conversation) -> None:
    """Record everything that was learned, unless it is on the log."""
    lesson = _lesson(conversation)
    if lesson is not None and lesson != conversation.state.taught:
        await conversation.record("system", lesson)


def _lesson(conversation: Conversation) -> CacheLearned | None:
    memory = conversation.state.memory
    return lesson_of(memory, conversation.parts.scene) if memory.calls else None


def _seen(lesson: CacheLearned | None) -> tuple[int, int, int, int | None]:
    """What was seen of how the cache behaves; how long is waited can wait until the end."""
    if lesson is None:
        return 0, 0, 0, None
    return lesson.anchors_read, lesson.anchors_lost, lesson.floor_misses, lesson.floor_upto_tokens
