"""Finds the first layer whose bytes changed between two encoded prompts."""

import msgspec

from holdfast.layers.assemble import EncodedPrompt
from holdfast.types.request_buffer import common_prefix_length, count_shared_blocks, count_stable_blocks

_EXCERPT_BYTES = 24


class ChangedLayer(msgspec.Struct, frozen=True):
    """The first difference between a prompt and the one before it, whose bytes it should have extended."""

    layer: str
    block: int
    byte: int
    before: bytes
    after: bytes

    def __str__(self) -> str:
        return (
            f"layer {self.layer!r} changed at byte {self.byte} (block {self.block}): "
            f"{self.before!r} became {self.after!r}"
        )


def first_changed_layer(
    before: EncodedPrompt, after: EncodedPrompt, *, stable_only: bool = False
) -> ChangedLayer | None:
    """The first place where `after` does not extend `before`; with `stable_only`, within the stable layers only."""
    required = count_stable_blocks(before.blocks) if stable_only else len(before.digests)
    shared = count_shared_blocks(before.digests, after.digests)
    if shared >= required:
        return None
    start = before.digests[shared].start
    byte = common_prefix_length(before.cacheable, after.cacheable, start)
    # Name the layer that is there now; if the prompt ends before, the one that was there.
    changed = after.digests[shared] if shared < len(after.digests) else before.digests[shared]
    return ChangedLayer(
        layer=changed.layer,
        block=shared,
        byte=byte,
        before=before.cacheable[byte : byte + _EXCERPT_BYTES],
        after=after.cacheable[byte : byte + _EXCERPT_BYTES],
    )
