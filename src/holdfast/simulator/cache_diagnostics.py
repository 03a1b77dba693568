"""Simulates cache diagnostics: comparing a request with an earlier one to explain a cache miss."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

import msgspec

from holdfast.cachemodel.tiers import CacheParameters
from holdfast.cachemodel.values import CacheCall, PromptPrefix
from holdfast.catalog.schema import CacheRules
from holdfast.simulator.request_blocks import SentBlock
from holdfast.types.json_encoding import canonical_json, extend_digest, sha256_hex
from holdfast.types.prompt import PromptSection
from holdfast.types.reply import CacheDiagnosis, make_miss_diagnosis
from holdfast.types.usage import Usage

# Both limits bound the memory of a long-running simulator.
REPLIES_MAX = 4_000
BLOCKS_MAX = 200_000

NO_REASON = ""
"""Marks a difference for which the provider has no reason code."""


class DiagnosisFingerprint(msgspec.Struct, frozen=True):
    """What is compared besides the prompt: (reason, digest) pairs, in the order in which they are checked.

    `prompt_reason` is reported for a prompt that does not extend the earlier one. With `hit_requires_read`, a hit means
    that something was read, not only that nothing differs.
    """

    digests: tuple[tuple[str, str], ...]
    prompt_reason: str
    hit_requires_read: bool = False


class DiagnosisRequest(msgspec.Struct, frozen=True):
    """A request for a comparison with an earlier reply; without a reply id, the request is only remembered."""

    reply_id: str | None = None


class AnsweredRequest(msgspec.Struct, frozen=True):
    """An answered request; `cached_tokens` of its prompt are in the cache since."""

    fingerprint: DiagnosisFingerprint
    prefixes: Sequence[PromptPrefix]
    cached_tokens: int


class AnsweredRequests:
    """Answered requests, kept apart by workspace; the oldest are dropped first."""

    def __init__(self, *, replies_max: int = REPLIES_MAX, blocks_max: int = BLOCKS_MAX) -> None:
        self._replies_max = replies_max
        self._blocks_max = blocks_max
        self._blocks = 0
        self._by_reply: OrderedDict[tuple[str, str], AnsweredRequest] = OrderedDict()

    def diagnose(
        self, comparison: DiagnosisRequest, fingerprint: DiagnosisFingerprint, call: CacheCall, usage: Usage
    ) -> CacheDiagnosis:
        if comparison.reply_id is None:
            return CacheDiagnosis("hit")
        earlier = self._by_reply.get((call.scope.workspace, comparison.reply_id))
        # A reply of another API is reported as not found too.
        if earlier is None or earlier.fingerprint.prompt_reason != fingerprint.prompt_reason:
            return CacheDiagnosis("not_found")
        return diagnose_difference(earlier, AnsweredRequest(fingerprint, call.prefixes, usage.cache_read))

    def remember(self, reply_id: str, fingerprint: DiagnosisFingerprint, call: CacheCall, usage: Usage) -> None:
        answered = AnsweredRequest(fingerprint, call.prefixes, usage.cache_read + usage.cache_write)
        self._by_reply[call.scope.workspace, reply_id] = answered
        self._blocks += len(answered.prefixes)
        while len(self._by_reply) > 1 and (len(self._by_reply) > self._replies_max or self._blocks > self._blocks_max):
            _, dropped = self._by_reply.popitem(last=False)
            self._blocks -= len(dropped.prefixes)


def diagnose_difference(earlier: AnsweredRequest, current: AnsweredRequest) -> CacheDiagnosis:
    """The first difference decides. `current.cached_tokens` are the tokens that it read."""
    # Missed tokens: what the earlier request had cached beyond the shared prefix.
    tokens = max(0, earlier.cached_tokens - _shared_tokens(earlier.prefixes, current.prefixes))
    digests = zip(earlier.fingerprint.digests, current.fingerprint.digests, strict=True)
    for (reason, old_digest), (_, new_digest) in digests:
        if old_digest != new_digest:
            return CacheDiagnosis("unavailable") if reason == NO_REASON else make_miss_diagnosis(reason, tokens)
    end = len(earlier.prefixes)
    if current.prefixes[end - 1 : end] != earlier.prefixes[end - 1 : end]:
        return make_miss_diagnosis(current.fingerprint.prompt_reason, tokens)
    if current.fingerprint.hit_requires_read and current.cached_tokens == 0:
        # Nothing differs and nothing was read: the entry has expired, and the provider has no reason code for that.
        return CacheDiagnosis("unavailable")
    return CacheDiagnosis("hit")


def _shared_tokens(earlier: Sequence[PromptPrefix], current: Sequence[PromptPrefix]) -> int:
    same = takewhile(lambda pair: pair[0].digest == pair[1].digest, zip(earlier, current, strict=False))
    return max((prefix.tokens for prefix, _ in same), default=0)


def digest_section(blocks: Iterable[SentBlock], section: PromptSection) -> str:
    """The digest of all blocks in one section of the prompt."""
    digest_so_far = ""
    for sent in blocks:
        if sent.encoded.section == section:
            digest_so_far = extend_digest(digest_so_far, sent.encoded.data)
    return digest_so_far


def digest_settings(parameters: CacheParameters, names: Iterable[str], rules: CacheRules) -> str:
    """The digest of those of the named settings that the cache depends on."""
    values: Mapping[str, object] = {**msgspec.structs.asdict(parameters), **parameters.others}
    relevant = set(rules.invalidates) | ({"effort", "reasoning_effort"} if rules.effort_breaks_messages else set())
    return sha256_hex(canonical_json({name: values.get(name) for name in sorted(relevant & set(names))}))
