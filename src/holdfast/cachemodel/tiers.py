"""Which prefixes a request has: the digests of its blocks, chained, with the parameters each tier depends on.

A parameter enters the chain where the tier begins that it invalidates, so that changing it changes every
digest from there on and none before.
"""

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.cachemodel.values import BlockKind, Prefix
from holdfast.canonical.encoding import canonical_json, chain
from holdfast.canonical.prompt import Place
from holdfast.catalog.rows import CacheRules
from holdfast.errors import UserError

_PLACES: tuple[Place, ...] = ("tools", "system", "messages")


class TierParameters(msgspec.Struct, frozen=True):
    """What a cached prefix depends on beside its blocks, by the names that the rules give it.

    `effort`, `thinking` and `tool_choice` are JSON texts, compared as they are. `images` says whether there
    is an image anywhere in the prompt. `others` holds what only some providers know, as texts by the rules' names.
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


Seeds = Mapping[Place, bytes]
"""What is mixed into the chain in front of the first block of each place."""


class Part(msgspec.Struct, frozen=True):
    """One block: its bytes with marks removed, and how many tokens they are."""

    place: Place
    data: bytes
    tokens: int
    kind: BlockKind = "plain"
    ending: bool = False


def seeds_of(rules: CacheRules, parameters: TierParameters) -> Seeds:
    first_lost = {**rules.invalidates, **({"effort": "messages"} if rules.effort_breaks_messages else {})}
    values = {**msgspec.structs.asdict(parameters), **parameters.others}
    return {
        place: canonical_json({name: values[name] for name in values if first_lost.get(name) == place})
        for place in _PLACES
    }


def prefixes_of(seeds: Seeds, parts: Iterable[Part], *, after: Prefix | None = None) -> tuple[Prefix, ...]:
    """The prefixes that the parts make, behind the prefix `after` where the prompt goes on from there."""
    place = after.place if after else None
    digest, tokens = (after.digest, after.tokens) if after else ("", 0)
    found: list[Prefix] = []
    for part in parts:
        for entered in _places_entered(place, part.place):
            digest = chain(digest, seeds[entered])
        place = part.place
        digest = chain(digest, part.data)
        tokens += part.tokens
        found.append(Prefix(place, digest, tokens, part.kind, part.ending))
    return tuple(found)


def _places_entered(before: Place | None, now: Place) -> tuple[Place, ...]:
    start = _PLACES.index(before) + 1 if before else 0
    end = _PLACES.index(now) + 1
    if before and end < start:
        raise UserError(f"a block of {now!r} behind one of {before!r}; the order is tools, system, messages")
    return _PLACES[start:end]
