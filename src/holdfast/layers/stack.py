"""Where each layer ends, in cacheable bytes, and which layer's bytes moved between two prompts."""

from collections.abc import Sequence

import msgspec

from holdfast.canonical.pieces import Link, Piece, common_length, shared_links, stable_count

_EXCERPT_BYTES = 24


class AggregateStack(msgspec.Struct, frozen=True):
    """Byte offsets of one prompt. A layer that says nothing ends where the one before it on the wire ends.

    Tools stand in front of the system prompt on the wire, so `TOOLS_END` is the smallest of the offsets.
    """

    ROLE_INSTRUCTIONS_END: int
    SCHEMA_END: int
    TOOLS_END: int
    SYSTEM_PROMPT_END: int
    PERSONA_END: int
    PROJECT_CONTEXT_END: int
    KNOWLEDGE_DIGEST_END: int
    INSTANCE_START: int


_WIRE_ORDER = (
    ("TOOLS_END", ("tools",)),
    ("ROLE_INSTRUCTIONS_END", ("role",)),
    ("SCHEMA_END", ("schema",)),
    ("SYSTEM_PROMPT_END", ("preset",)),
    ("PERSONA_END", ("persona",)),
    ("PROJECT_CONTEXT_END", ("project",)),
    ("KNOWLEDGE_DIGEST_END", ("knowledge", "skills")),
)


def aggregate_stack(pieces: Sequence[Piece], links: Sequence[Link]) -> AggregateStack:
    stable = stable_count(pieces)
    ends: dict[str, int] = {}
    reached = 0
    for name, layers in _WIRE_ORDER:
        inside = (link.end for link in links[:stable] if link.layer in layers)
        reached = ends[name] = max(inside, default=reached)
    return AggregateStack(**ends, INSTANCE_START=links[stable - 1].end if stable else 0)


class Moved(msgspec.Struct, frozen=True):
    """The first place where a prompt differs from the one before it: bytes there were expected to stay."""

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
    """A prompt in bytes, with the chain over them."""

    cacheable: bytes
    pieces: tuple[Piece, ...]
    links: tuple[Link, ...]


def first_move(before: Spelled, after: Spelled, *, stable_only: bool = False) -> Moved | None:
    """Where `after` does not extend `before`; with `stable_only`, looking no further than the stable layers."""
    must_hold = stable_count(before.pieces) if stable_only else len(before.links)
    shared = shared_links(before.links, after.links)
    if shared >= must_hold:
        return None
    start = before.links[shared].start
    byte = common_length(before.cacheable, after.cacheable, start)
    # What stands there now is at fault; only where nothing does, what stood there before.
    changed = after.links[shared] if shared < len(after.links) else before.links[shared]
    return Moved(
        layer=changed.layer,
        block=shared,
        byte=byte,
        before=before.cacheable[byte : byte + _EXCERPT_BYTES],
        after=after.cacheable[byte : byte + _EXCERPT_BYTES],
    )
