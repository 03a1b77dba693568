"""What a request holds, block by block in wire order: where each was, its bytes, and its mark."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain as chained

import msgspec

from holdfast.cachemodel.tiers import Part
from holdfast.cachemodel.values import BlockKind
from holdfast.canonical.blocks import Block
from holdfast.canonical.encoding import canonical_json, chain, digest
from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Place, Segment, Ttl
from holdfast.canonical.tools import ToolSpec
from holdfast.canonical.transcript import kind_of
from holdfast.catalog.rows import Model
from holdfast.catalog.tokens import count_block
from holdfast.providers.adapter import Adapter, WireRequest

COUNTS_KNOWN_MAX = 50_000
THINKING_NAMES = ("thinking", "redacted_thinking")


class SentBlock(msgspec.Struct, frozen=True):
    """`path` is where it stood in the request, in the words of the provider's error messages."""

    path: str
    block: Block | ToolSpec
    piece: Piece
    ttl: Ttl | None = None

    @property
    def kind(self) -> str:
        return "tool" if isinstance(self.block, ToolSpec) else kind_of(self.block)


def sent_blocks(adapter: Adapter, request: WireRequest) -> tuple[SentBlock, ...]:
    lifetimes = {mark.piece: mark.ttl for mark in request.plan.marks}
    pieces = chained.from_iterable(adapter.spell(segment) for segment in request.prompt.segments)
    places = chained.from_iterable(_places(segment) for segment in request.prompt.segments)
    return tuple(
        SentBlock(path, block, piece, lifetimes.get(index))
        for index, ((path, block), piece) in enumerate(zip(places, pieces, strict=True))
    )


def _places(segment: Segment) -> Iterator[tuple[str, Block | ToolSpec]]:
    for index, tool in enumerate(segment.tools):
        yield f"tools.{index}", tool
    for index, text in enumerate(segment.system):
        yield f"system.{index}", text
    for index, passage in enumerate(segment.passages):
        for position, block in enumerate(passage.content):
            yield f"messages.{index}.content.{position}", block


class TokenCounts:
    """Counts each block once, however often it is sent; forgets everything when it knows too many."""

    def __init__(
        self, count: Callable[[bytes, float], int] = count_block, *, known_max: int = COUNTS_KNOWN_MAX
    ) -> None:
        self._count = count
        self._known_max = known_max
        self._known: dict[tuple[str, float], int] = {}

    def __call__(self, data: bytes, factor: float) -> int:
        key = (digest(data), factor)
        if key not in self._known:
            if len(self._known) >= self._known_max:
                self._known.clear()
            self._known[key] = self._count(data, factor)
        return self._known[key]


def conversations_of(workspace: str, blocks: Sequence[SentBlock]) -> tuple[str, ...]:
    """What tells conversations apart: whose they are, their system prompt and their first user message.

    After a failure that message may grow, so each of its beginnings may be what the conversation is known by;
    the whole comes first.
    """
    opening, known_by = [workspace], []
    for sent in blocks:
        if sent.piece.place == "messages" and sent.piece.role != "user":
            break
        if sent.piece.place != "tools":
            opening.append(digest(sent.piece.data))
        if sent.piece.place == "messages":
            known_by.append(digest(canonical_json(opening)))
    return tuple(reversed(known_by)) or (digest(canonical_json(opening)),)


def conversation_so_far(blocks: Sequence[SentBlock]) -> str:
    """A digest of all that was sent, and of nothing else."""
    so_far = ""
    for sent in blocks:
        so_far = chain(so_far, sent.piece.opens + sent.piece.data)
    return so_far


def part_of(sent: SentBlock, place: Place, *, model: Model, count: TokenCounts, ending: bool = False) -> Part:
    """The block as the cache sees it: who said it, and its bytes without marks."""
    written = sent.piece.opens + sent.piece.data
    said_by = (sent.piece.role or "").encode() + b"\n"
    return Part(place, said_by + written, count(written, model.tokens_factor), _counted_as(sent.kind), ending)


def _counted_as(kind: str) -> BlockKind:
    match kind:
        case "tool_use":
            return "tool_use"
        case "tool_result":
            return "tool_result"
        case _:
            return "plain"
