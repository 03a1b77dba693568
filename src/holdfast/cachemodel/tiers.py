"""The prefixes of a request: chained digests of its blocks, with the parameters that each section depends on.

A parameter is mixed into the chain at the start of the first section that it invalidates (Anthropic's "Prompt caching"
has the table), so that changing it changes every digest from there on and none before.
"""

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.cachemodel.values import BlockKind, PromptPrefix
from holdfast.catalog.schema import CacheRules
from holdfast.errors import UserError
from holdfast.types.json_encoding import canonical_json, extend_digest
from holdfast.types.prompt import PromptSection

_SECTIONS: tuple[PromptSection, ...] = ("tools", "system", "messages")

# The bytes mixed into the chain before the first block of each section.
ChainSeeds = Mapping[PromptSection, bytes]


class CacheParameters(msgspec.Struct, frozen=True):
    """The request parameters that a cached prefix depends on besides its blocks, by their names in the rules.

    `effort`, `thinking` and `tool_choice` are JSON texts, compared as they are. `images` says whether there
    is an image anywhere in the prompt. `others` holds provider-specific parameters as texts, by the rules' names.
    """

    model: str
    speed: str | None = None
    web_search: bool = False
    citations: bool = False
    tool_choice: str | None = None
    thinking: str | None = None
    images: bool = False
    effort: str | None = None
    others: Mapping[str, str | None] = {}


class ChainBlock(msgspec.Struct, frozen=True):
    """One block: its bytes without breakpoints, and its token count."""

    section: PromptSection
    data: bytes
    tokens: int
    kind: BlockKind = "plain"
    is_ending: bool = False


def chain_seeds(rules: CacheRules, parameters: CacheParameters) -> ChainSeeds:
    invalidates_from = {**rules.invalidates, **({"effort": "messages"} if rules.effort_breaks_messages else {})}
    values = {**msgspec.structs.asdict(parameters), **parameters.others}
    return {
        section: canonical_json({name: values[name] for name in values if invalidates_from.get(name) == section})
        for section in _SECTIONS
    }


def chain_prefixes(
    seeds: ChainSeeds, blocks: Iterable[ChainBlock], *, after: PromptPrefix | None = None
) -> tuple[PromptPrefix, ...]:
    """The prefixes that end at each of these blocks; `after` is the prefix that they extend."""
    section = after.section if after else None
    digest, tokens = (after.digest, after.tokens) if after else ("", 0)
    prefixes: list[PromptPrefix] = []
    for block in blocks:
        for entered_section in _sections_entered(section, block.section):
            digest = extend_digest(digest, seeds[entered_section])
        section = block.section
        digest = extend_digest(digest, block.data)
        tokens += block.tokens
        prefixes.append(PromptPrefix(section, digest, tokens, block.kind, block.is_ending))
    return tuple(prefixes)


def _sections_entered(previous: PromptSection | None, current: PromptSection) -> tuple[PromptSection, ...]:
    start = _SECTIONS.index(previous) + 1 if previous else 0
    end = _SECTIONS.index(current) + 1
    if previous and end < start:
        raise UserError(f"a block of {current!r} after one of {previous!r}; the order is tools, system, messages")
    return _SECTIONS[start:end]
