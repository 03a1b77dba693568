"""The byte offset at which each layer ends, and the first layer whose bytes changed between two prompts."""

from collections.abc import Sequence

import msgspec

from holdfast.canonical.pieces import Link, Piece, common_length, shared_links, stable_count

_EXCERPT_BYTES = 24


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


def aggregate_stack(blocks: Sequence[Piece], digests: Sequence[Link]) -> AggregateStack:
    stable = stable_count(blocks)
    ends: dict[str, int] = {}
    end = 0
    for name, layers in _LAYERS_IN_ORDER:
        layer_ends = (digest.end for digest in digests[:stable] if digest.layer in layers)
        end = ends[name] = max(layer_ends, default=end)
    return AggregateStack(**ends, INSTANCE_START=digests[stable - 1].end if stable else 0)


class Moved(msgspec.Struct, frozen=True):
    """The first difference between a prompt and the one before it, whose bytes it should have kept."""

    layer: str
    block: int
    byte: int
    before: bytes
    after: bytes

    def __str__(self) -> str:
        return (
            f"layer {self.layer!r} moved at byte {self.byte} (block {self.block}): "
            f"{self.before!r} became {self.after!r}"
        )


class Spelled(msgspec.Struct, frozen=True):
    """The cacheable bytes of a prompt, with its blocks and their prefix digests."""

    cacheable: bytes
    pieces: tuple[Piece, ...]
    links: tuple[Link, ...]


def first_move(before: Spelled, after: Spelled, *, stable_only: bool = False) -> Moved | None:
    """The first place where `after` does not extend `before`; with `stable_only`, within the stable layers only."""
    required = stable_count(before.pieces) if stable_only else len(before.links)
    shared = shared_links(before.links, after.links)
    if shared >= required:
        return None
    start = before.links[shared].start
    byte = common_length(before.cacheable, after.cacheable, start)
    # Name the layer that is there now; if the prompt ends before, the one that was there.
    changed = after.links[shared] if shared < len(after.links) else before.links[shared]
    return Moved(
        layer=changed.layer,
        block=shared,
        byte=byte,
        before=before.cacheable[byte : byte + _EXCERPT_BYTES],
        after=after.cacheable[byte : byte + _EXCERPT_BYTES],
    )
