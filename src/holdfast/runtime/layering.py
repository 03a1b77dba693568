"""Reports how many tokens each layer of a session's next prompt takes."""

import msgspec

from holdfast.engine.conversation import Conversation
from holdfast.engine.views import sent_view
from holdfast.layers.assemble import assemble


class LayerTokens(msgspec.Struct, frozen=True):
    layer: str
    tokens: int


class ContextUse(msgspec.Struct, frozen=True):
    """The layers in the order of their first block in the prompt. Token counts are estimates."""

    layers: tuple[LayerTokens, ...]
    tokens_max: int

    @property
    def tokens(self) -> int:
        return sum(layer.tokens for layer in self.layers)


def context_use(conversation: Conversation) -> ContextUse:
    """Assembles the whole prompt, so the cost grows with the history; the session is not changed."""
    draft = conversation.new_draft()
    draft.update(assemble(sent_view(conversation.state)))
    by_layer: dict[str, int] = {}
    for block, tokens in zip(draft.scroll.pieces, draft.scroll.tokens, strict=True):
        by_layer[block.layer] = by_layer.get(block.layer, 0) + tokens
    corrected = conversation.state.calibration.corrected
    layers = tuple(LayerTokens(layer, corrected(tokens)) for layer, tokens in by_layer.items())
    return ContextUse(layers, conversation.parts.model.context_tokens_max)
