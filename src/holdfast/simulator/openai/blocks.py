"""How OpenAI's cache sees a request: which blocks end a message that counts, and what all of them depend on."""

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
    seeds = seeds_of(model.cache, openai_parameters(parameters))
    first_said = _first_said(blocks)
    parts = (
        part_of(
            sent,
            "system" if index < first_said and sent.piece.place == "messages" else sent.piece.place,
            model=model,
            count=setting.count,
            ending=(index == first_said - 1 and sent.piece.place != "tools") or _ends_a_turn(sent, behind),
        )
        for index, (sent, behind) in enumerate(zip_longest(blocks, blocks[1:]))
    )
    marks = tuple(Mark(index, sent.ttl) for index, sent in enumerate(blocks) if sent.ttl is not None)
    scope = Scope(setting.workspace, parameters.model)
    return Call(scope, prefixes_of(seeds, parts), marks, setting.at, options.ttl, options.only_marks)


def _first_said(blocks: Sequence[SentBlock]) -> int:
    """How many blocks stand in front of the conversation: tools, and all that the developer says before anybody."""
    is_said = (index for index, sent in enumerate(blocks) if sent.piece.role in ("user", "assistant"))
    return next(is_said, len(blocks))


def _ends_a_turn(sent: SentBlock, behind: SentBlock | None) -> bool:
    """Whether the block ends a user message, or a run of tool results."""
    if sent.piece.role != "user":
        return False
    if behind is None or behind.piece.role != "user":
        return True
    return behind.kind != "tool_result" if sent.kind == "tool_result" else bool(behind.piece.opens)
