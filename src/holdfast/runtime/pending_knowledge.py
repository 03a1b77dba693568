"""Refreshes the knowledge digest of an open session before its next epoch."""

import msgspec

from holdfast.engine.cache.controls import refresh_prefix
from holdfast.knowledge.digest import compare_digests, describe_pending_digest
from holdfast.runtime.knowledge import KNOWLEDGE_LAYER
from holdfast.runtime.session import Session
from holdfast.types.prompt import find_layer_text


class PendingKnowledge(msgspec.Struct, frozen=True):
    """How far the session's pinned digest is behind the current one.

    `items` counts the entries that only one of the two digests has. `invalidated_tokens` estimates how much of the
    cached prompt a refresh would have to write again.
    """

    items: int
    invalidated_tokens: int

    def __str__(self) -> str:
        return describe_pending_digest(self.items)


def pending_knowledge(session: Session) -> PendingKnowledge:
    """Compare the session's pinned digest with the one that a session started now would pin."""
    conversation = session._idle_conversation
    refresh, pinned = conversation.deps.prefix_refresh, conversation.state.pinned
    newer_pins = refresh.find_newer_pins(pinned) if refresh else None
    if newer_pins is None:
        return PendingKnowledge(0, 0)
    old, new = (find_layer_text(KNOWLEDGE_LAYER, pins) for pins in (pinned, newer_pins))
    difference = compare_digests(old.text if old else "", new.text if new else "")
    layers = [block.layer for block in conversation.draft.buffer.blocks]
    # Changing one layer invalidates every block after it, so all tokens from the first affected block are counted.
    affected = (index for index, layer in enumerate(layers) if layer not in _LAYERS_BEFORE_KNOWLEDGE)
    start = layers.index(KNOWLEDGE_LAYER) if KNOWLEDGE_LAYER in layers else next(affected, len(layers))
    return PendingKnowledge(max(1, difference.items), sum(conversation.draft.buffer.tokens[start:]))


async def refresh_knowledge(session: Session) -> bool:
    """Use the current digest from the next message on; return whether it differed from the pinned one.

    The provider has to write everything after the digest to its cache again.
    """
    return await refresh_prefix(session._idle_conversation)


# The layers that come before the knowledge layer in a prompt: refreshing the digest leaves their cache entries valid.
_LAYERS_BEFORE_KNOWLEDGE = ("tools", "nonce", "role", "schema", "preset", "persona", "project")
