"""Which thinking a model takes back: its own, unchanged, and where it is bound, behind an unchanged prefix.

What a block is bound to is written into its signature, so that nothing has to be remembered between requests.
"""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.canonical.blocks import Block, RedactedThinking, Thinking
from holdfast.catalog.rows import CacheRules
from holdfast.errors import ProviderError
from holdfast.providers.anthropic.blocks import spell_block
from holdfast.simulator.blocks import THINKING_NAMES, SentBlock
from holdfast.simulator.dialect import DroppedBlock
from holdfast.simulator.seals import Seal, extend, opened, thought_in, write_seal


class Admitted(msgspec.Struct, frozen=True):
    """The blocks that the model gets to see, and the prefix that its own thinking will be bound to."""

    blocks: tuple[SentBlock, ...]
    dropped: tuple[DroppedBlock, ...]
    prefix: str


def admit(blocks: Sequence[SentBlock], *, model: str, rules: CacheRules, drops_mismatches: bool = False) -> Admitted:
    """Raises `ProviderError` for thinking that was tampered with, or is bound to another conversation."""
    kept: list[SentBlock] = []
    dropped: list[DroppedBlock] = []
    prefix = ""
    for sent in blocks:
        if sent.kind in THINKING_NAMES:
            seal = _read_seal(sent)
            if seal.model != model:
                dropped.append(DroppedBlock(sent.path, "model_binding_mismatch"))
                continue
            if rules.binds_thinking and seal.prefix != prefix:
                if not drops_mismatches:
                    raise _bound_elsewhere(sent.path)
                dropped.append(DroppedBlock(sent.path, "prefix_binding_mismatch"))
                continue
        kept.append(sent)
        seen_mark = sent.ttl if rules.binding_sees_marks else None
        prefix = extend(prefix, sent.piece.role or sent.piece.place, sent.piece.data, seen_mark)
    shown = _without_old_thinking(kept) if rules.strips_old_thinking else kept
    return Admitted(tuple(shown), tuple(dropped), prefix)


def sealed(
    content: Sequence[Block], *, model: str, prefix: str, spell: Callable[[Block], bytes] = spell_block
) -> tuple[Block, ...]:
    """A reply's blocks, its thinking signed; `spell` gives a block's bytes as they will come back."""
    blocks: list[Block] = []
    for block in content:
        if isinstance(block, Thinking):
            block = Thinking(block.text, write_seal(model, prefix, thought_in(block.text)))
        elif isinstance(block, RedactedThinking):
            block = RedactedThinking(write_seal(model, prefix, ""))
        blocks.append(block)
        prefix = extend(prefix, "assistant", spell(block), None)
    return tuple(blocks)


def _read_seal(sent: SentBlock) -> Seal:
    match sent.block:
        case Thinking(text=text, signature=signature):
            seal, thought = opened(signature or ""), thought_in(text)
        case RedactedThinking(data=sealed_thought):
            seal, thought = opened(sealed_thought), ""
        case _:
            seal, thought = None, ""
    if seal is None or seal.thought != thought:
        member = "signature" if sent.kind == "thinking" else "data"
        raise ProviderError(
            "invalid_request",
            f"{sent.path}: Invalid `{member}` in `{sent.kind}` block; send thinking back as it was given, or "
            "leave all of it out",
            status=400,
        )
    return seal


def _bound_elsewhere(path: str) -> ProviderError:
    return ProviderError(
        "invalid_request",
        f"{path}: this thinking block is bound to a different conversation: system, tools or a message "
        "before it changed since it was created; restore them, leave out this and all later thinking, or set "
        'thinking.block_binding.prefix_mismatch_behavior to "drop_block"',
        status=400,
    )


def _without_old_thinking(blocks: Sequence[SentBlock]) -> list[SentBlock]:
    """Less the thinking in front of the last thing that a user said; what a tool said does not count."""
    said = (index for index, sent in enumerate(blocks) if sent.piece.role == "user" and sent.kind != "tool_result")
    start = max(said, default=-1)
    return [sent for index, sent in enumerate(blocks) if index > start or sent.kind not in THINKING_NAMES]
