"""Short ways to write a call to a cache model: named blocks with their tokens, and breakpoints."""

from collections.abc import Sequence

from holdfast.cachemodel.tiers import CacheParameters, ChainBlock, chain_prefixes, chain_seeds
from holdfast.cachemodel.values import BlockKind, CacheCall, CacheScope
from holdfast.catalog.schema import CacheRules, LookbackCounting
from holdfast.types.prompt import Breakpoint, PromptSection, Ttl
from holdfast.types.usage import Usage

SCOPE = CacheScope("workspace", "model")
INVALIDATES: dict[str, PromptSection] = {
    "model": "tools",
    "speed": "system",
    "web_search": "system",
    "citations": "system",
    "tool_choice": "messages",
    "thinking": "messages",
    "images": "messages",
}


def rules(
    *,
    floor: int = 1_024,
    counting: LookbackCounting = "blocks",
    upgrade: bool = True,
    lookback: int = 20,
    effort_breaks_messages: bool = False,
) -> CacheRules:
    return CacheRules(
        kind="explicit",
        tokens_min=floor,
        ttls_seconds={"5m": 300, "1h": 3_600},
        breakpoints_max=4,
        lookback_positions=lookback,
        lookback_counting=counting,
        ttl_upgrade=upgrade,
        effort_breaks_messages=effort_breaks_messages,
        invalidates=INVALIDATES,
    )


def implicit_rules(*, floor: int = 1_024, rounds_to: int = 128) -> CacheRules:
    return CacheRules(
        kind="implicit",
        tokens_min=floor,
        ttls_seconds={"in_memory": 300, "24h": 86_400},
        reads_rounded_to=rounds_to,
        invalidates={"prompt_cache_key": "tools", "tool_config": "messages"},
    )


def breakpoint_rules(*, floor: int = 1_024, first: int = 2, latest: int = 50, lookback: int = 20) -> CacheRules:
    return CacheRules(
        kind="hybrid",
        tokens_min=floor,
        ttls_seconds={"30m": 1_800, "12h": 43_200},
        breakpoints_max=4,
        lookback_positions=lookback,
        lookup_first_breakpoints=first,
        lookup_latest_breakpoints=latest,
        invalidates={"prompt_cache_key": "tools"},
    )


def chain_block(name: str, tokens: int, section: PromptSection = "messages", kind: BlockKind = "plain") -> ChainBlock:
    return ChainBlock(section, name.encode(), tokens, kind)


def call(
    parts: Sequence[ChainBlock],
    breakpoints: dict[int, Ttl],
    *,
    at: float = 0.0,
    scope: CacheScope = SCOPE,
    parameters: CacheParameters | None = None,
) -> CacheCall:
    seeds = chain_seeds(rules(), parameters or CacheParameters(scope.model))
    placed_breakpoints = tuple(Breakpoint(index, ttl) for index, ttl in breakpoints.items())
    return CacheCall(scope, chain_prefixes(seeds, parts), placed_breakpoints, at)


def cost_units(usage: Usage) -> float:
    """The cost of the prompt in units of one uncached token."""
    written = 1.25 * usage.cache_write_5m + 2.0 * usage.cache_write_1h
    return round(usage.input + 0.1 * usage.cache_read + written, 6)
