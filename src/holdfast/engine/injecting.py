"""When the text of volatile layers is added to the conversation."""

from holdfast.canonical.view import LayerText
from holdfast.engine.conversation import Conversation
from holdfast.engine.views import view_of
from holdfast.events.payloads import ContextInjected
from holdfast.layers.assemble import emissions
from holdfast.layers.standard import SYSTEM_TAIL, system_tail_text


async def inject_news(conversation: Conversation) -> None:
    """Record changed volatile text in the middle of a turn."""
    if conversation.state.layout == "seed":
        # Changing the system prompt within a turn would invalidate the turn's thinking.
        return
    early, late = injections(conversation, await conversation.parts.volatile())
    if early or late:
        await conversation.record("system", *early, *late)


def injections(
    conversation: Conversation, current: tuple[LayerText, ...]
) -> tuple[tuple[ContextInjected, ...], tuple[ContextInjected, ...]]:
    """Changed volatile text as events: what goes before the user's message, and what goes after it."""
    if conversation.state.layout == "seed":
        text = system_tail_text(current)
        tail = conversation.state.system_tail
        if not current or text == (tail.text if tail else ""):
            return (), ()
        return (ContextInjected(SYSTEM_TAIL, text, place="system"),), ()
    emitted = emissions(view_of(conversation.state, current))
    events = [ContextInjected(event.layer, event.text, event.ephemeral) for event in emitted]
    return tuple(event for event in events if not event.ephemeral), tuple(event for event in events if event.ephemeral)
