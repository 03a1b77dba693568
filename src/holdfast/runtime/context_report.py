"""The cacheable bytes of a prompt and the length of its stable prefix: the byte contract that the tests check."""

import msgspec

from holdfast.catalog.lookup import find_model
from holdfast.compaction.decision import soft_limit_tokens
from holdfast.engine.compaction.compact import compaction_outlook
from holdfast.engine.compaction.triggers import snapshot_conversation
from holdfast.engine.conversation import Conversation
from holdfast.engine.request_draft import build_sent_view
from holdfast.layers.assemble import AggregateStack, EncodedPrompt, assemble_prompt, measure_stack
from holdfast.providers.registry import get_adapter
from holdfast.types.blocks import Text, replace_surrogates
from holdfast.types.prompt import HistoryEntry, Prompt, View
from holdfast.types.request_buffer import RequestBuffer

NEAR_SHARE = 0.85
"""From this share of the limit on, a compaction counts as near."""

CONTRACT_MODEL = "anthropic:claude-sonnet-5-5"


def build_initial_context(view: View, user_message: str, *, model: str = CONTRACT_MODEL) -> bytes:
    """The cacheable bytes of the request that sends `user_message` with this view."""
    return encode_prompt(assemble_prompt(with_user_message(view, user_message)), model=model).cacheable


def stable_prefix_length(context: View | Prompt, *, model: str = CONTRACT_MODEL) -> int:
    """The number of bytes in the layers that do not change within an epoch."""
    return prompt_stack(context, model=model).INSTANCE_START


def prompt_stack(context: View | Prompt, *, model: str = CONTRACT_MODEL) -> AggregateStack:
    """The byte offset at which each stable layer of this prompt ends."""
    prompt = assemble_prompt(context) if isinstance(context, View) else context
    encoded = encode_prompt(prompt, model=model)
    return measure_stack(encoded.blocks, encoded.digests)


def encode_prompt(prompt: Prompt, *, model: str = CONTRACT_MODEL) -> EncodedPrompt:
    """Encode a prompt in the format of the model's provider."""
    adapter = get_adapter(find_model(model).provider)
    buffer = RequestBuffer(adapter, len)
    for segment in prompt.segments:
        buffer.extend(adapter.encode_segment(segment))
    return EncodedPrompt(buffer.cacheable_bytes(), tuple(buffer.blocks), tuple(buffer.digests))


def with_user_message(view: View, text: str) -> View:
    """A copy of the view with one more user message."""
    entry = HistoryEntry("user", (Text(replace_surrogates(text)),))
    return msgspec.structs.replace(view, newest=(*view.newest, entry))


class LayerUse(msgspec.Struct, frozen=True):
    layer: str
    tokens: int


class ContextUse(msgspec.Struct, frozen=True):
    """The layers in the order of their first block in the prompt. Token counts are estimates.

    `compaction_tokens` is the prompt size at which the session is compacted, None if compaction is off.
    """

    layers: tuple[LayerUse, ...]
    tokens_max: int
    compaction_tokens: int | None = None

    @property
    def tokens(self) -> int:
        return sum(layer.tokens for layer in self.layers)

    @property
    def is_compaction_near(self) -> bool:
        return self.compaction_tokens is not None and self.tokens >= self.compaction_tokens * NEAR_SHARE


def measure_context(conversation: Conversation) -> ContextUse:
    """Assembles the whole prompt, so the cost grows with the history; the session is not changed."""
    draft = conversation.new_draft()
    draft.update(assemble_prompt(build_sent_view(conversation.state)))
    by_layer: dict[str, int] = {}
    for block, tokens in zip(draft.buffer.blocks, draft.buffer.tokens, strict=True):
        by_layer[block.layer] = by_layer.get(block.layer, 0) + tokens
    corrected = conversation.state.calibration.correct_estimate
    layers = tuple(LayerUse(layer, corrected(tokens)) for layer, tokens in by_layer.items())
    return ContextUse(layers, conversation.deps.model.context_tokens_max, _find_compaction_limit(conversation))


def _find_compaction_limit(conversation: Conversation) -> int | None:
    config = conversation.deps.compaction
    if config.mode == "off":
        return None
    outlook = compaction_outlook(snapshot_conversation(conversation))
    limit = max(soft_limit_tokens(outlook, config), conversation.state.compaction_watch.tokens_min)
    return min(outlook.hard_tokens, limit)
