"""A request as Gemini's cache sees it: parts in wire order, and the parameters that they depend on."""

from collections.abc import Iterator, Sequence

from holdfast.cachemodel.tiers import prefixes_of, seeds_of
from holdfast.cachemodel.values import Call, Scope
from holdfast.canonical.blocks import Text
from holdfast.canonical.encoding import canonical_json, digest
from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Parameters, Place
from holdfast.canonical.tools import ToolSpec
from holdfast.catalog.rows import Model
from holdfast.providers.adapter import WireRequest
from holdfast.providers.gemini import gemini
from holdfast.providers.gemini.parts import read_part
from holdfast.providers.tier_parameters import gemini_parameters
from holdfast.simulator.blocks import SentBlock, part_of
from holdfast.simulator.dialect import Setting


def sent_parts(request: WireRequest) -> tuple[SentBlock, ...]:
    """A thought, and the signature on the part after it, count as separate parts, as on the wire."""
    blocks: list[SentBlock] = []
    for segment in request.prompt.segments:
        encoded_parts = gemini.spell(segment)
        head: tuple[Text | ToolSpec, ...] = (*segment.tools, *segment.system)
        blocks += (
            SentBlock(encoded.place, block, encoded) for block, encoded in zip(head, encoded_parts, strict=False)
        )
        blocks += _sent_contents(encoded_parts[len(head) :])
    return tuple(blocks)


def _sent_contents(encoded_parts: Sequence[Piece]) -> Iterator[SentBlock]:
    content = part = -1
    for encoded in encoded_parts:
        content, part = (content + 1, 0) if encoded.opens else (content, part + 1)
        yield SentBlock(f"contents[{content}].parts[{part}]", read_part(encoded.data)[0], encoded)


def cache_call(
    blocks: Sequence[SentBlock], parameters: Parameters, *, model: Model, setting: Setting, named_tokens: int = 0
) -> Call:
    """The request as the cache sees it; `named_tokens` of its tokens are in the explicit cache that it refers to."""
    head = {"tools": _digest_section(blocks, "tools"), "system": _digest_section(blocks, "system")}
    seeds = seeds_of(model.cache, gemini_parameters(parameters, head))
    parts = (part_of(sent, sent.piece.place, model=model, count=setting.count) for sent in blocks)
    scope = Scope(setting.workspace, model.name)
    return Call(scope, prefixes_of(seeds, parts), (), setting.at, named_tokens=named_tokens)


def _digest_section(blocks: Sequence[SentBlock], place: Place) -> str | None:
    digests = [digest(sent.piece.opens + sent.piece.data) for sent in blocks if sent.piece.place == place]
    return digest(canonical_json(digests)) if digests else None
