"""What a request holds, block by block in wire order: where each was, its bytes, and its mark."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import msgspec

from holdfast.cachemodel.tiers import Part, TierParameters, prefixes_of, seeds_of
from holdfast.cachemodel.values import BlockKind, Call, Scope
from holdfast.canonical.blocks import Block, Image, Opaque, ToolResult
from holdfast.canonical.encoding import canonical_json, digest
from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Mark, Parameters, Place, Segment, Ttl
from holdfast.canonical.tools import ToolSpec
from holdfast.canonical.transcript import kind_of
from holdfast.catalog.rows import Model
from holdfast.catalog.tokens import count_block
from holdfast.providers.adapter import Adapter, WireRequest

_PLACES: tuple[Place, ...] = ("tools", "system", "messages")

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
    pieces = chain.from_iterable(adapter.spell(segment) for segment in request.prompt.segments)
    places = chain.from_iterable(_places(segment) for segment in request.prompt.segments)
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


def cache_call(
    blocks: Sequence[SentBlock], parameters: Parameters, *, model: Model, scope: Scope, at: float, count: TokenCounts
) -> Call:
    """The request as the cache sees it."""
    # The provider renders its web search behind the other tools: switching it on or off keeps those.
    ordered = sorted(blocks, key=lambda sent: _PLACES.index(_tier(sent)))
    seeds = seeds_of(model.cache, _tier_parameters(blocks, parameters))
    parts = (
        Part(
            _tier(sent),
            (sent.piece.role or "").encode() + b"\n" + sent.piece.data,
            count(sent.piece.data, model.tokens_factor),
            _counted_as(sent.kind),
        )
        for sent in ordered
    )
    marks = tuple(Mark(index, sent.ttl) for index, sent in enumerate(ordered) if sent.ttl is not None)
    return Call(scope, prefixes_of(seeds, parts), marks, at)


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


def extra_field(parameters: Parameters, name: str) -> object:
    """A field that is not part of every provider's request; None where it is absent or unreadable."""
    return _decoded(dict(parameters.extra).get(name))


def _decoded(text: str | None) -> object:
    try:
        return msgspec.json.decode(text) if text is not None else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def field_of(value: object, *names: str) -> object:
    """A member of nested JSON objects; None where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _tier(sent: SentBlock) -> Place:
    return "system" if _is_web_search(sent.block) else sent.piece.place


def _is_web_search(block: Block | ToolSpec) -> bool:
    if not isinstance(block, ToolSpec) or block.wire_json is None:
        return False
    return str(field_of(_decoded(block.wire_json), "type")).startswith("web_search_")


def _counted_as(kind: str) -> BlockKind:
    match kind:
        case "tool_use":
            return "tool_use"
        case "tool_result":
            return "tool_result"
        case _:
            return "plain"


def _tier_parameters(blocks: Sequence[SentBlock], parameters: Parameters) -> TierParameters:
    speed = extra_field(parameters, "speed")
    effort = field_of(extra_field(parameters, "output_config"), "effort")
    return TierParameters(
        model=parameters.model,
        speed=speed if isinstance(speed, str) else None,
        web_search=any(_is_web_search(sent.block) for sent in blocks),
        citations=any(_has_citations(sent.block) for sent in blocks),
        tool_choice=_same_spelling(parameters.tool_choice_json),
        thinking=_same_spelling(parameters.thinking_json),
        images=any(_has_image(sent.block) for sent in blocks),
        effort=effort if isinstance(effort, str) else None,
    )


def _same_spelling(text: str | None) -> str | None:
    value = _decoded(text)
    return None if value is None else canonical_json(value).decode()


def _has_image(block: Block | ToolSpec) -> bool:
    if isinstance(block, ToolResult):
        return any(_has_image(part) for part in block.content)
    return isinstance(block, Image) or (isinstance(block, Opaque) and block.kind == "image")


def _has_citations(block: Block | ToolSpec) -> bool:
    if not isinstance(block, Opaque):
        return False
    return field_of(_decoded(block.raw.decode(errors="replace")), "citations", "enabled") is True
