"""Whether a newer digest waits for a session that is open, and how the session takes it at once."""

import msgspec

from holdfast.canonical.view import said_by
from holdfast.engine.adopting import adopt
from holdfast.knowledge.digest import change, pending_words
from holdfast.runtime.knowing import LAYER
from holdfast.runtime.session import Session


class PendingKnowledge(msgspec.Struct, frozen=True):
    """So many `items` are in the digest of now or in that of the session, and not in both.

    To take it would write `invalidated_tokens` of the session's prompt anew; it is an estimate.
    """

    items: int
    invalidated_tokens: int

    def __str__(self) -> str:
        return pending_words(self.items)


def pending_knowledge(session: Session) -> PendingKnowledge:
    """What the session would be told otherwise, were it to begin now."""
    talk = session._idle
    newer = talk.parts.adopting.newer_pins(talk.state.pinned) if talk.parts.adopting else None
    if newer is None:
        return PendingKnowledge(0, 0)
    before, after = (said_by(LAYER, pinned) for pinned in (talk.state.pinned, newer))
    news = change(before.text if before else "", after.text if after else "")
    pieces = talk.draft.scroll.pieces
    layers = [piece.layer for piece in pieces]
    start = (
        layers.index(LAYER)
        if LAYER in layers
        else next((at for at, layer in enumerate(layers) if layer not in _BEFORE), len(layers))
    )
    return PendingKnowledge(max(1, news.items), sum(talk.draft.scroll.tokens[start:]))


async def adopt_knowledge(session: Session) -> bool:
    """Take a newer digest from the next message on; whether there was one. What stands behind it is written anew."""
    return await adopt(session._idle)


_BEFORE = ("tools", "nonce", "role", "schema", "preset", "persona", "project")
"""The layers that stand in front of knowledge, and stay as they are."""
