"""What the next prompt of a session is made of: which layer takes how many tokens."""

import msgspec

from holdfast.engine.conversation import Conversation
from holdfast.engine.views import sent_view
from holdfast.layers.assemble import assemble


class LayerTokens(msgspec.Struct, frozen=True):
    layer: str
    tokens: int


class ContextUse(msgspec.Struct, frozen=True):
    """The layers in the order in which they first stand in the prompt. Token counts are estimates."""

    layers: tuple[LayerTokens, ...]
    tokens_max: int

    @property
    def tokens(self) -> int:
        return sum(layer.tokens for layer in self.layers)


def context_use(talk: Conversation) -> ContextUse:
    """Takes as long as the history is long; nothing of the session is changed."""
    draft = talk.new_draft()
    draft.update(assemble(sent_view(talk.state)))
    by_layer: dict[str, int] = {}
    for piece, tokens in zip(draft.scroll.pieces, draft.scroll.tokens, strict=True):
        by_layer[piece.layer] = by_layer.get(piece.layer, 0) + tokens
    corrected = talk.state.calibration.corrected
    layers = tuple(LayerTokens(layer, corrected(tokens)) for layer, tokens in by_layer.items())
    return ContextUse(layers, talk.parts.model.context_tokens_max)
