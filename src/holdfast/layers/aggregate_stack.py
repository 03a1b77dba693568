"""The byte offset at which each layer of a prompt ends."""

from collections.abc import Sequence

import msgspec

from holdfast.types.request_buffer import EncodedBlock, PrefixDigest, count_stable_blocks


class AggregateStack(msgspec.Struct, frozen=True):
    """Byte offsets of one prompt. An empty layer ends where the layer before it in the request ends.

    Tools come before the system prompt in a request, so `TOOLS_END` is the smallest of the offsets.
    """

    ROLE_INSTRUCTIONS_END: int
    SCHEMA_END: int
    TOOLS_END: int
    SYSTEM_PROMPT_END: int
    PERSONA_END: int
    PROJECT_CONTEXT_END: int
    KNOWLEDGE_DIGEST_END: int
    INSTANCE_START: int


_LAYERS_IN_ORDER = (
    ("TOOLS_END", ("tools",)),
    ("ROLE_INSTRUCTIONS_END", ("role",)),
    ("SCHEMA_END", ("schema",)),
    ("SYSTEM_PROMPT_END", ("preset",)),
    ("PERSONA_END", ("persona",)),
    ("PROJECT_CONTEXT_END", ("project",)),
    ("KNOWLEDGE_DIGEST_END", ("knowledge", "skills")),
)


def measure_stack(blocks: Sequence[EncodedBlock], digests: Sequence[PrefixDigest]) -> AggregateStack:
    """Compute the offsets from the blocks of a prompt and their prefix digests."""
    stable = count_stable_blocks(blocks)
    ends: dict[str, int] = {}
    end = 0
    for name, layers in _LAYERS_IN_ORDER:
        layer_ends = (digest.end for digest in digests[:stable] if digest.layer in layers)
        end = ends[name] = max(layer_ends, default=end)
    return AggregateStack(**ends, INSTANCE_START=digests[stable - 1].end if stable else 0)


class EncodedPrompt(msgspec.Struct, frozen=True):
    """The cacheable bytes of a prompt, with its blocks and their prefix digests."""

    cacheable: bytes
    blocks: tuple[EncodedBlock, ...]
    digests: tuple[PrefixDigest, ...]
