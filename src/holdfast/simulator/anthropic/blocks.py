"""How Anthropic's cache sees a request: its blocks in the order they are hashed, and what each tier depends on."""

from collections.abc import Sequence

from holdfast.cachemodel.tiers import TierParameters, prefixes_of, seeds_of
from holdfast.cachemodel.values import Call, Scope
from holdfast.canonical.blocks import Block, Image, Opaque, ToolResult
from holdfast.canonical.prompt import Mark, Parameters, Place
from holdfast.canonical.tools import ToolSpec
from holdfast.catalog.rows import Model
from holdfast.simulator.blocks import (
    SentBlock,
    TokenCounts,
    decoded,
    extra_field,
    field_of,
    part_of,
    same_spelling,
)

_PLACES: tuple[Place, ...] = ("tools", "system", "messages")


def cache_call(
    blocks: Sequence[SentBlock], parameters: Parameters, *, model: Model, scope: Scope, at: float, count: TokenCounts
) -> Call:
    """The request as the cache sees it."""
    # The provider renders its web search behind the other tools: switching it on or off keeps those.
    ordered = sorted(blocks, key=lambda sent: _PLACES.index(_tier(sent)))
    seeds = seeds_of(model.cache, _tier_parameters(blocks, parameters))
    parts = (part_of(sent, _tier(sent), model=model, count=count) for sent in ordered)
    marks = tuple(Mark(index, sent.ttl) for index, sent in enumerate(ordered) if sent.ttl is not None)
    return Call(scope, prefixes_of(seeds, parts), marks, at)


def _tier(sent: SentBlock) -> Place:
    return "system" if _is_web_search(sent.block) else sent.piece.place


def _is_web_search(block: Block | ToolSpec) -> bool:
    if not isinstance(block, ToolSpec) or block.wire_json is None:
        return False
    return str(field_of(decoded(block.wire_json), "type")).startswith("web_search_")


def _tier_parameters(blocks: Sequence[SentBlock], parameters: Parameters) -> TierParameters:
    speed = extra_field(parameters, "speed")
    effort = field_of(extra_field(parameters, "output_config"), "effort")
    return TierParameters(
        model=parameters.model,
        speed=speed if isinstance(speed, str) else None,
        web_search=any(_is_web_search(sent.block) for sent in blocks),
        citations=any(_has_citations(sent.block) for sent in blocks),
        tool_choice=same_spelling(parameters.tool_choice_json),
        thinking=same_spelling(parameters.thinking_json),
        images=any(_has_image(sent.block) for sent in blocks),
        effort=effort if isinstance(effort, str) else None,
    )


def _has_image(block: Block | ToolSpec) -> bool:
    if isinstance(block, ToolResult):
        return any(_has_image(part) for part in block.content)
    return isinstance(block, Image) or (isinstance(block, Opaque) and block.kind == "image")


def _has_citations(block: Block | ToolSpec) -> bool:
    if not isinstance(block, Opaque):
        return False
    return field_of(decoded(block.raw.decode(errors="replace")), "citations", "enabled") is True
