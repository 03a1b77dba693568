"""A request as Anthropic's cache sees it: blocks in hashing order, and the parameters that each tier depends on."""

from collections.abc import Sequence

from holdfast.cachemodel.tiers import prefixes_of, seeds_of
from holdfast.cachemodel.values import Call, Scope
from holdfast.canonical.prompt import Mark, Parameters, Place
from holdfast.catalog.rows import Model
from holdfast.providers.tier_parameters import anthropic_parameters, is_web_search
from holdfast.simulator.blocks import SentBlock, TokenCounts, part_of

# Anthropic hashes tools, then system, then messages, cumulatively (its page "Prompt caching").
_PLACES: tuple[Place, ...] = ("tools", "system", "messages")


def cache_call(
    blocks: Sequence[SentBlock], parameters: Parameters, *, model: Model, scope: Scope, at: float, count: TokenCounts
) -> Call:
    """The request as the cache sees it."""
    # Switching web search keeps the tools tier and loses the later ones, so its definition counts as system text.
    ordered = sorted(blocks, key=lambda sent: _PLACES.index(_tier(sent)))
    seeds = seeds_of(model.cache, anthropic_parameters((sent.block for sent in blocks), parameters))
    parts = (part_of(sent, _tier(sent), model=model, count=count) for sent in ordered)
    breakpoints = tuple(Mark(index, sent.ttl) for index, sent in enumerate(ordered) if sent.ttl is not None)
    return Call(scope, prefixes_of(seeds, parts), breakpoints, at)


def _tier(sent: SentBlock) -> Place:
    return "system" if is_web_search(sent.block) else sent.piece.place
