"""The blocks of a request in wire order: path, bytes and cache breakpoint of each."""

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
    """`path` is its position in the request, as the provider's error messages write it."""

    path: str
    block: Block | ToolSpec
    piece: Piece
    ttl: Ttl | None = None

    @property
    def kind(self) -> str:
        return "tool" if isinstance(self.block, ToolSpec) else kind_of(self.block)


def sent_blocks(adapter: Adapter, request: WireRequest) -> tuple[SentBlock, ...]:
    ttls = {breakpoint.piece: breakpoint.ttl for breakpoint in request.plan.marks}
    encoded_blocks = chained.from_iterable(adapter.spell(segment) for segment in request.prompt.segments)
    paths = chained.from_iterable(_iter_paths(segment) for segment in request.prompt.segments)
    return tuple(
        SentBlock(path, block, encoded, ttls.get(index))
        for index, ((path, block), encoded) in enumerate(zip(paths, encoded_blocks, strict=True))
    )


def _iter_paths(segment: Segment) -> Iterator[tuple[str, Block | ToolSpec]]:
    for index, tool in enumerate(segment.tools):
        yield f"tools.{index}", tool
    for index, text in enumerate(segment.system):
        yield f"system.{index}", text
    for index, entry in enumerate(segment.passages):
        for position, block in enumerate(entry.content):
            yield f"messages.{index}.content.{position}", block


class TokenCounts:
    """A cached token counter: each block is counted once; the cache is cleared when it is full."""

    def __init__(
        self, count: Callable[[bytes, float], int] = count_block, *, known_max: int = COUNTS_KNOWN_MAX
    ) -> None:
        self._count = count
        self._known_max = known_max
        self._counts: dict[tuple[str, float], int] = {}

    def __call__(self, data: bytes, factor: float) -> int:
        key = (digest(data), factor)
        if key not in self._counts:
            if len(self._counts) >= self._known_max:
                self._counts.clear()
            self._counts[key] = self._count(data, factor)
        return self._counts[key]


def conversations_of(workspace: str, blocks: Sequence[SentBlock]) -> tuple[str, ...]:
    """Digests that identify the conversation: of the workspace, the system prompt and the first user message.

    After a failure the client may extend that message, so there is one digest per prefix of it, the longest first.
    """
    digests, candidates = [workspace], []
    for sent in blocks:
        if sent.piece.place == "messages" and sent.piece.role != "user":
            break
        if sent.piece.place != "tools":
            digests.append(digest(sent.piece.data))
        if sent.piece.place == "messages":
            candidates.append(digest(canonical_json(digests)))
    return tuple(reversed(candidates)) or (digest(canonical_json(digests)),)


def conversation_so_far(blocks: Sequence[SentBlock]) -> str:
    """A digest of everything that was sent, without workspace or parameters."""
    digest_so_far = ""
    for sent in blocks:
        digest_so_far = chain(digest_so_far, sent.piece.opens + sent.piece.data)
    return digest_so_far


def part_of(sent: SentBlock, place: Place, *, model: Model, count: TokenCounts, ending: bool = False) -> Part:
    """The block as the cache sees it: its role, and its bytes without breakpoints."""
    encoded = sent.piece.opens + sent.piece.data
    role = (sent.piece.role or "").encode() + b"\n"
    return Part(place, role + encoded, count(encoded, model.tokens_factor), _block_kind(sent.kind), ending)


def _block_kind(kind: str) -> BlockKind:
    match kind:
        case "tool_use":
            return "tool_use"
        case "tool_result":
            return "tool_result"
        case _:
            return "plain"
