"""What volatile layers have to say, and when it enters the conversation."""

from holdfast.canonical.view import LayerText
from holdfast.engine.conversation import Conversation
from holdfast.engine.views import view_of
from holdfast.events.payloads import ContextInjected
from holdfast.layers.assemble import emissions
from holdfast.layers.standard import SYSTEM_TAIL, system_tail_text


async def inject_news(conversation: Conversation) -> None:
    """What volatile layers have to say in the middle of a turn."""
    if conversation.state.layout == "seed":
        # A system prompt that changes within a turn would take the thinking of that turn along.
        return
    early, late = injections(conversation, await conversation.parts.volatile())
    if early or late:
        await conversation.record("system", *early, *late)


def injections(
    conversation: Conversation, current: tuple[LayerText, ...]
) -> tuple[tuple[ContextInjected, ...], tuple[ContextInjected, ...]]:
    """What the volatile layers have to say before the user's text, and what goes behind it."""
    if conversation.state.layout == "seed":
        text = system_tail_text(current)
        tail = conversation.state.system_tail
        if not current or text == (tail.text if tail else ""):
            return (), ()
        return (ContextInjected(SYSTEM_TAIL, text, place="system"),), ()
    emitted = emissions(view_of(conversation.state, current))
    events = [ContextInjected(event.layer, event.text, event.ephemeral) for event in emitted]
    return tuple(event for event in events if not event.ephemeral), tuple(event for event in events if event.ephemeral)
