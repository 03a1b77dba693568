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

_PLACES: tuple[PromptSection, ...] = ("tools", "system", "messages")


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


ChainSeeds = Mapping[PromptSection, bytes]
"""The bytes mixed into the chain before the first block of each section."""


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
        place: canonical_json({name: values[name] for name in values if invalidates_from.get(name) == place})
        for place in _PLACES
    }


def chain_prefixes(
    seeds: ChainSeeds, parts: Iterable[ChainBlock], *, after: PromptPrefix | None = None
) -> tuple[PromptPrefix, ...]:
    """The prefixes that end at each of these blocks; `after` is the prefix that they extend."""
    place = after.section if after else None
    digest, tokens = (after.digest, after.tokens) if after else ("", 0)
    prefixes: list[PromptPrefix] = []
    for part in parts:
        for entered_place in _places_entered(place, part.section):
            digest = extend_digest(digest, seeds[entered_place])
        place = part.section
        digest = extend_digest(digest, part.data)
        tokens += part.tokens
        prefixes.append(PromptPrefix(place, digest, tokens, part.kind, part.is_ending))
    return tuple(prefixes)


def _places_entered(previous: PromptSection | None, current: PromptSection) -> tuple[PromptSection, ...]:
    start = _PLACES.index(previous) + 1 if previous else 0
    end = _PLACES.index(current) + 1
    if previous and end < start:
        raise UserError(f"a block of {current!r} after one of {previous!r}; the order is tools, system, messages")
    return _PLACES[start:end]
