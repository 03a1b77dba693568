"""A request as OpenAI's cache sees it: where implicit breakpoints may be, and the parameters that it depends on."""

from collections.abc import Sequence
from itertools import zip_longest

from holdfast.cachemodel.tiers import prefixes_of, seeds_of
from holdfast.cachemodel.values import Call, Scope
from holdfast.canonical.prompt import Mark, Parameters
from holdfast.catalog.rows import Model
from holdfast.providers.tier_parameters import openai_parameters
from holdfast.simulator.blocks import SentBlock, part_of
from holdfast.simulator.dialect import Setting
from holdfast.simulator.openai.options import CacheOptions


def cache_call(
    blocks: Sequence[SentBlock], parameters: Parameters, *, model: Model, options: CacheOptions, setting: Setting
) -> Call:
    """The request as the cache sees it."""
    # The implicit breakpoint may be at the end of a user message, of a group of tool results, or of the initial
    # developer messages (OpenAI's prompt caching guide); those ends are marked here.
    seeds = seeds_of(model.cache, openai_parameters(parameters))
    start = _conversation_start(blocks)
    parts = (
        part_of(
            sent,
            "system" if index < start and sent.piece.place == "messages" else sent.piece.place,
            model=model,
            count=setting.count,
            ending=(index == start - 1 and sent.piece.place != "tools") or _ends_turn(sent, following),
        )
        for index, (sent, following) in enumerate(zip_longest(blocks, blocks[1:]))
    )
    breakpoints = tuple(Mark(index, sent.ttl) for index, sent in enumerate(blocks) if sent.ttl is not None)
    scope = Scope(setting.workspace, parameters.model)
    return Call(scope, prefixes_of(seeds, parts), breakpoints, setting.at, options.ttl, options.only_marks)


def _conversation_start(blocks: Sequence[SentBlock]) -> int:
    """The number of blocks before the conversation: tools, and the leading developer messages."""
    conversation_blocks = (index for index, sent in enumerate(blocks) if sent.piece.role in ("user", "assistant"))
    return next(conversation_blocks, len(blocks))


def _ends_turn(sent: SentBlock, following: SentBlock | None) -> bool:
    """Whether the block ends a user message, or a run of tool results."""
    if sent.piece.role != "user":
        return False
    if following is None or following.piece.role != "user":
        return True
    return following.kind != "tool_result" if sent.kind == "tool_result" else bool(following.piece.opens)
