"""What a provider says of its cache when it is asked to compare a request with an earlier one."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

import msgspec

from holdfast.cachemodel.tiers import TierParameters
from holdfast.cachemodel.values import Call, Prefix
from holdfast.canonical.diagnosis import Diagnosis, missed
from holdfast.canonical.encoding import canonical_json, chain, digest
from holdfast.canonical.prompt import Place
from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import CacheRules
from holdfast.simulator.blocks import SentBlock

REPLIES_MAX = 4_000
BLOCKS_MAX = 200_000

NO_WORD = ""
"""The reason for a difference that the provider does not name."""


class Fingerprint(msgspec.Struct, frozen=True):
    """What is compared of a request beside its prompt: digests, in the order in which they are looked at, by reason.

    `prompt_reason` is the word for a prompt that does not go on where the earlier one ended. With `hits_are_read` a hit
    says that something was read, and not only that nothing differs.
    """

    digests: tuple[tuple[str, str], ...]
    prompt_reason: str
    hits_are_read: bool = False


class Wish(msgspec.Struct, frozen=True):
    """That a request wants to be compared, and with which reply; with none, it is only remembered."""

    reply_id: str | None = None


class Answered(msgspec.Struct, frozen=True):
    """A request that was answered; `kept_tokens` of it were in the cache from then on."""

    fingerprint: Fingerprint
    prefixes: tuple[Prefix, ...]
    kept_tokens: int


class AnsweredRequests:
    """Those of one workspace are nothing to another; the oldest are forgotten first."""

    def __init__(self, *, replies_max: int = REPLIES_MAX, blocks_max: int = BLOCKS_MAX) -> None:
        self._replies_max = replies_max
        self._blocks_max = blocks_max
        self._blocks = 0
        self._known: OrderedDict[tuple[str, str], Answered] = OrderedDict()

    def diagnose(self, wish: Wish, fingerprint: Fingerprint, call: Call, usage: Usage) -> Diagnosis:
        if wish.reply_id is None:
            return Diagnosis("hit")
        before = self._known.get((call.scope.workspace, wish.reply_id))
        # A reply of another interface is not found either.
        if before is None or before.fingerprint.prompt_reason != fingerprint.prompt_reason:
            return Diagnosis("not_found")
        return compare(before, Answered(fingerprint, call.prefixes, usage.cache_read))

    def remember(self, reply_id: str, fingerprint: Fingerprint, call: Call, usage: Usage) -> None:
        kept = Answered(fingerprint, call.prefixes, usage.cache_read + usage.cache_write)
        self._known[call.scope.workspace, reply_id] = kept
        self._blocks += len(kept.prefixes)
        while len(self._known) > 1 and (len(self._known) > self._replies_max or self._blocks > self._blocks_max):
            _, forgotten = self._known.popitem(last=False)
            self._blocks -= len(forgotten.prefixes)


def compare(before: Answered, now: Answered) -> Diagnosis:
    """`now` has kept what it read. The first difference counts."""
    tokens = max(0, before.kept_tokens - _shared_tokens(before.prefixes, now.prefixes))
    for (reason, was), (_, is_now) in zip(before.fingerprint.digests, now.fingerprint.digests, strict=True):
        if was != is_now:
            return Diagnosis("unavailable") if reason == NO_WORD else missed(reason, tokens)
    end = len(before.prefixes)
    if now.prefixes[end - 1 : end] != before.prefixes[end - 1 : end]:
        return missed(now.fingerprint.prompt_reason, tokens)
    if now.fingerprint.hits_are_read and now.kept_tokens == 0:
        # Nothing differs and nothing was read: what was kept has lapsed, for which there is no word.
        return Diagnosis("unavailable")
    return Diagnosis("hit")


def _shared_tokens(before: Sequence[Prefix], now: Sequence[Prefix]) -> int:
    same = takewhile(lambda both: both[0].digest == both[1].digest, zip(before, now, strict=False))
    return max((prefix.tokens for prefix, _ in same), default=0)


def digest_of(blocks: Iterable[SentBlock], place: Place) -> str:
    """Of all that stands at one place."""
    so_far = ""
    for sent in blocks:
        if sent.piece.place == place:
            so_far = chain(so_far, sent.piece.data)
    return so_far


def digest_of_settings(parameters: TierParameters, names: Iterable[str], rules: CacheRules) -> str:
    """Of those settings, by the names of the rules, on which the cache depends."""
    values: Mapping[str, object] = {**msgspec.structs.asdict(parameters), **parameters.others}
    counted = set(rules.invalidates) | ({"effort", "reasoning_effort"} if rules.effort_breaks_messages else set())
    return digest(canonical_json({name: values.get(name) for name in sorted(counted & set(names))}))
