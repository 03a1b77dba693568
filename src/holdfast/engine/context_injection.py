"""When the text of volatile layers is added to the conversation."""

from holdfast.engine.conversation import Conversation
from holdfast.engine.request_draft import build_view
from holdfast.events.payloads.session import ContextInjected
from holdfast.layers.assemble import changed_volatile_texts
from holdfast.layers.standard import SYSTEM_SUFFIX, system_suffix_text
from holdfast.types.prompt import LayerText


async def inject_changed_context(conversation: Conversation) -> None:
    """Record changed volatile text in the middle of a turn."""
    if conversation.state.layout == "seed":
        # Changing the system prompt within a turn would invalidate the turn's thinking.
        return
    early, late = plan_injections(conversation, await conversation.deps.volatile())
    if early or late:
        await conversation.record("system", *early, *late)


def plan_injections(
    conversation: Conversation, current: tuple[LayerText, ...]
) -> tuple[tuple[ContextInjected, ...], tuple[ContextInjected, ...]]:
    """Changed volatile text as events: what goes before the user's message, and what goes after it."""
    if conversation.state.layout == "seed":
        text = system_suffix_text(current)
        tail = conversation.state.system_tail
        if not current or text == (tail.text if tail else ""):
            return (), ()
        return (ContextInjected(SYSTEM_SUFFIX, text, section="system"),), ()
    emitted = changed_volatile_texts(build_view(conversation.state, current))
    events = [ContextInjected(event.layer, event.text, event.ephemeral) for event in emitted]
    return tuple(event for event in events if not event.ephemeral), tuple(event for event in events if event.ephemeral)
