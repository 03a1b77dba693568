"""Which thinking blocks Anthropic's models accept: their own, unchanged, and after an unchanged prefix if bound to it.

The signature of a block contains what it is bound to, so nothing has to be stored between requests.
"""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.catalog.schema import CacheRules
from holdfast.errors import ProviderError
from holdfast.providers.anthropic.blocks import encode_anthropic_block
from holdfast.simulator.provider_api import DroppedBlock, refuse
from holdfast.simulator.request_blocks import THINKING_NAMES, SentBlock
from holdfast.simulator.signatures import ThinkingSeal, digest_thought, extend_prefix_digest, read_seal, write_seal
from holdfast.types.blocks import Block, RedactedThinking, Thinking


class AcceptedBlocks(msgspec.Struct, frozen=True):
    """The blocks that the model sees, and the prefix that its own thinking will be bound to."""

    blocks: tuple[SentBlock, ...]
    dropped: tuple[DroppedBlock, ...]
    prefix: str


def accept_thinking(
    blocks: Sequence[SentBlock], *, model: str, rules: CacheRules, drops_mismatches: bool = False
) -> AcceptedBlocks:
    """Raises `ProviderError` for thinking that was modified, or is bound to another conversation."""
    accepted: list[SentBlock] = []
    dropped: list[DroppedBlock] = []
    prefix = ""
    for sent in blocks:
        if sent.kind in THINKING_NAMES:
            seal = _read_seal(sent)
            # Anthropic drops the thinking of another model without an error.
            if seal.model != model:
                dropped.append(DroppedBlock(sent.path, "model_binding_mismatch"))
                continue
            # Newer models bind thinking to its prefix: after an edit it is refused, or dropped if the request asks so.
            if rules.binds_thinking and seal.prefix != prefix:
                if not drops_mismatches:
                    raise _binding_error(sent.path)
                dropped.append(DroppedBlock(sent.path, "prefix_binding_mismatch"))
                continue
        accepted.append(sent)
        # Whether a moved `cache_control` counts as an edit is undocumented, so the catalog decides per model.
        bound_ttl = sent.ttl if rules.breakpoints_change_binding else None
        prefix = extend_prefix_digest(prefix, sent.encoded.role or sent.encoded.section, sent.encoded.data, bound_ttl)
    visible = _strip_old_thinking(accepted) if rules.strips_old_thinking else accepted
    return AcceptedBlocks(tuple(visible), tuple(dropped), prefix)


def sign_anthropic_thinking(
    content: Sequence[Block],
    *,
    model: str,
    prefix: str,
    encode_block: Callable[[Block], bytes] = encode_anthropic_block,
) -> tuple[Block, ...]:
    """The blocks of a reply with signed thinking; `encode_block` encodes a block as the client will send it back."""
    blocks: list[Block] = []
    for block in content:
        if isinstance(block, Thinking):
            block = Thinking(block.text, write_seal(model, prefix, digest_thought(block.text)))
        elif isinstance(block, RedactedThinking):
            block = RedactedThinking(write_seal(model, prefix, ""))
        blocks.append(block)
        prefix = extend_prefix_digest(prefix, "assistant", encode_block(block), None)
    return tuple(blocks)


def _read_seal(sent: SentBlock) -> ThinkingSeal:
    match sent.block:
        case Thinking(text=text, signature=signature):
            seal, thought = read_seal(signature or ""), digest_thought(text)
        case RedactedThinking(data=sealed_thought):
            seal, thought = read_seal(sealed_thought), ""
        case _:
            seal, thought = None, ""
    if seal is None or seal.thought_digest != thought:
        member = "signature" if sent.kind == "thinking" else "data"
        raise refuse(
            f"{sent.path}: Invalid `{member}` in `{sent.kind}` block; send thinking back as it was given, or "
            "leave all of it out"
        )
    return seal


def _binding_error(path: str) -> ProviderError:
    return refuse(
        f"{path}: this thinking block is bound to a different conversation: system, tools or a message "
        "before it changed since it was created; restore them, leave out this and all later thinking, or set "
        'thinking.block_binding.prefix_mismatch_behavior to "drop_block"'
    )


def _strip_old_thinking(blocks: Sequence[SentBlock]) -> list[SentBlock]:
    """Drop the thinking before the last user message; tool results do not count as user messages."""
    by_user = [sent.encoded.role == "user" and sent.kind != "tool_result" for sent in blocks]
    last_user = max((index for index, is_user in enumerate(by_user) if is_user), default=-1)
    return [sent for index, sent in enumerate(blocks) if index > last_user or sent.kind not in THINKING_NAMES]
