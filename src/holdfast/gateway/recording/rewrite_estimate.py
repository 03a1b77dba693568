"""Estimates what a forwarded call would have cost with `--improve`, or without, if it was improved.

Both versions of a prompt run through the cache model, and what they differ by is added to what the provider charged. So
the estimate contains whatever the model does not know: the two versions share it.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import overload

import msgspec

from holdfast.cachemodel.machine import begin_cache_call, publish_entries
from holdfast.cachemodel.values import BlockKind, CacheCall, CacheEntries, CacheScope, PromptPrefix
from holdfast.catalog.lookup import Models, price_at, utc_date
from holdfast.catalog.schema import Model
from holdfast.economics.cost import cost_usd
from holdfast.engine.cache.conversation_plans import PlannedCall
from holdfast.engine.recorder import ObservedRequest
from holdfast.events.payloads.calls import RequestChange, RewriteEstimate
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.operations import (
    BREAKPOINTS_MISSING,
    CACHE_KEY_MISSING,
    EXPLICIT_BREAKPOINT_MISSING,
    RETENTION_SHORT,
    TOOLS_UNSORTED,
)
from holdfast.gateway.rewrite.request_analysis import RequestAnalysis
from holdfast.gateway.rewrite.volatile_text import VolatileExtractor
from holdfast.gateway.routes import Target
from holdfast.providers.openai_common import EXTENDED_RETENTION
from holdfast.types.prompt import Breakpoint
from holdfast.types.request_buffer import EncodedBlock, PrefixDigest
from holdfast.types.usage import Usage

# A remembered message takes about half a kilobyte: 10 MB for each of the rewriters below.
NODES_MAX = 20_000

# Cache entries of one account, and of all together: 300 bytes each, so that they stay below 15 MB.
ACCOUNT_ENTRIES_MAX = 4_000
ENTRIES_MAX = 50_000

# Pricing each of several findings takes one more rewrite of the request; for larger bodies only the total is priced.
PRICED_BYTES_MAX = 1024 * 1024

_EVERYTHING = frozenset(
    {TOOLS_UNSORTED, BREAKPOINTS_MISSING, RETENTION_SHORT, CACHE_KEY_MISSING, EXPLICIT_BREAKPOINT_MISSING}
)
_SENT, _REWRITTEN, _RECEIVED = "sent", "rewritten", "received"

# Encoded blocks begin with their type, so the prefix is enough and nothing has to be decoded.
_KINDS: Mapping[bytes, BlockKind] = {b'{"type":"tool_use"': "tool_use", b'{"type":"tool_result"': "tool_result"}


class _Version(msgspec.Struct, frozen=True):
    """One version of a prompt: `trailing_bytes` follow its blocks. `call` is set if a rewriter of ours planned it.

    `ttl` is that of a cache without breakpoints, if it is not the provider's own. `explicit_cache_tokens` of it are in
    the explicit cache that it refers to.
    """

    name: str
    digests: Sequence[PrefixDigest]
    blocks: Sequence[EncodedBlock]
    breakpoints: tuple[Breakpoint, ...]
    trailing_bytes: int = 0
    call: PlannedCall | None = None
    ttl: str | None = None
    explicit_cache_tokens: int = 0


class ComparedCall(msgspec.Struct, frozen=True):
    """The versions of one request, the first as it was sent. `findings` are the anti-patterns that it was sent with.

    `is_improved`: the second version is the one that the client wrote; else it is the one that we would have sent.
    """

    account: str
    row: Model
    at: float
    is_improved: bool
    versions: tuple[_Version, ...]
    findings: tuple[RequestChange, ...] = ()

    def with_explicit_cache(self, tokens: int) -> "ComparedCall":
        """The call as sent with a reference to an explicit cache of so many tokens."""
        sent = msgspec.structs.replace(self.versions[0], explicit_cache_tokens=tokens)
        return msgspec.structs.replace(self, versions=(sent, *self.versions[1:]))


class RewriteEstimator:
    """Compares the calls of one recorder. What it remembers is bounded, and a call costs what is new in it."""

    def __init__(self, models: Models, volatile: VolatileExtractor | None = None) -> None:
        self._models = models
        self._volatile = volatile or VolatileExtractor()
        self._rewriters: dict[str, ConversationRewriter] = {}
        self._caches: OrderedDict[tuple[str, CacheScope], CacheEntries] = OrderedDict()
        self._entry_count = 0

    def compare_improved(
        self,
        target: Target,
        received: bytes | None,
        sent: tuple[ObservedRequest, Sequence[EncodedBlock]],
        *,
        changes: Sequence[RequestChange],
        account: str,
        at: float,
    ) -> ComparedCall | None:
        """A call that a planner has seen; `received` is None if it was sent as received. May raise anything."""
        prepared, blocks = sent
        if prepared.row is None or not prepared.row.prices or not prepared.digests:
            return None
        as_sent = _Version(_SENT, prepared.digests, blocks, prepared.plan.breakpoints)
        other = msgspec.structs.replace(as_sent, name=_RECEIVED)
        as_sent = msgspec.structs.replace(as_sent, ttl=_find_ttl(changes))
        if received is not None:
            other = self._analyze(_RECEIVED, target, received, account=account, at=at)[1]
        return ComparedCall(account, prepared.row, at, True, (as_sent, other))

    def compare_received(
        self,
        target: Target,
        body: bytes,
        sent: tuple[ObservedRequest, Sequence[EncodedBlock]],
        *,
        account: str,
        at: float,
    ) -> ComparedCall | None:
        """A call that was forwarded unchanged, and what the planner would have changed. May raise anything."""
        prepared, blocks = sent
        analysis, rewritten = self._analyze(_REWRITTEN, target, body, account=account, at=at)
        if prepared.row is None or not prepared.row.prices or not prepared.digests:
            return None
        findings = tuple(msgspec.structs.replace(change, is_applied=False) for change in analysis.changes)
        as_sent = _Version(_SENT, prepared.digests, blocks, prepared.plan.breakpoints)
        # A single finding costs what the two versions differ by.
        names = [change.anti_pattern for change in findings] if len(findings) > 1 else []
        unfixed = [
            self._analyze(name, target, body, account=account, at=at)[1]
            for name in (names if len(body) <= PRICED_BYTES_MAX else ())
        ]
        return ComparedCall(account, prepared.row, at, False, (as_sent, rewritten, *unfixed), findings)

    def estimate(self, call: ComparedCall, usage: Usage, cost: Decimal) -> RewriteEstimate:
        """The call was answered with this usage and cost."""
        if usage.cache_read < call.versions[0].explicit_cache_tokens:
            # The provider had lost the explicit cache, and the request was sent again without it.
            call = call.with_explicit_cache(0)
        sent = call.versions[0]
        # The provider's count of the prompt is spread over its bytes; every version has the same tokens per byte.
        tokens_per_byte = usage.tokens_sent / sent.digests[-1].end
        usages = {version.name: self._run(call, version, tokens_per_byte) for version in call.versions}
        costs = {name: _price(call, modelled) for name, modelled in usages.items()}
        other_name = call.versions[1].name
        reply = Usage(output=usage.output)
        # A prompt costs at least what reading all of it does; the model may not know that the provider had it longer.
        lowest = _price(call, Usage(cache_read=usages[other_name].tokens_sent)) + _price(call, reply)
        other = max(cost + costs[other_name] - costs[_SENT], min(lowest, cost))
        if call.is_improved:
            return RewriteEstimate(without_usd=other, with_usd=cost)
        findings: tuple[tuple[str, Decimal], ...]
        if len(call.findings) == 1:
            findings = ((call.findings[0].anti_pattern, cost - other),)
        else:
            findings = tuple((version.name, costs[version.name] - costs[other_name]) for version in call.versions[2:])
        return RewriteEstimate(without_usd=cost, with_usd=other, findings=findings)

    def discard(self, call: ComparedCall) -> None:
        """The call failed without usage: nothing was read or written."""
        for version in call.versions:
            if version.call is not None:
                self._rewriters[version.name].record_usage(version.call, None)

    def refresh(self, call: ComparedCall, at: float) -> None:
        """A ping has repeated the call: what was sent is read again."""
        sent = call.versions[0]
        self._run(msgspec.structs.replace(call, at=at), sent, 1.0, is_ping=True)

    def _analyze(
        self, name: str, target: Target, body: bytes, *, account: str, at: float
    ) -> tuple[RequestAnalysis, _Version]:
        rewriter = self._rewriters.get(name)
        if rewriter is None:
            unfixed = {_REWRITTEN: frozenset[str](), _RECEIVED: _EVERYTHING}.get(name, frozenset({name}))
            volatile = VolatileExtractor(()) if name == _RECEIVED else self._volatile
            rewriter = ConversationRewriter(self._models, volatile, unfixed=unfixed, nodes_max=NODES_MAX)
            self._rewriters[name] = rewriter
        analysis = rewriter.analyze(
            target.adapter_name or "",
            body,
            path=target.path,
            account=account,
            at=at,
            provider=target.provider,
            path_fields=target.path_fields,
        )
        version = _Version(
            name,
            analysis.call.digests,
            analysis.call.blocks,
            analysis.call.record.breakpoints,
            analysis.moved_bytes,
            analysis.call,
            _find_ttl(analysis.changes),
        )
        return analysis, version

    def _run(self, call: ComparedCall, version: _Version, tokens_per_byte: float, *, is_ping: bool = False) -> Usage:
        """The usage of a version by the cache model; the cache and the planner of that version learn from it."""
        scope = CacheScope(call.account, call.row.name)
        key = (version.name, scope)
        entries = self._caches.pop(key, CacheEntries())
        self._entry_count -= len(entries.by_key)
        prefixes = _Prefixes(version, tokens_per_byte)
        points = tuple(point for point in version.breakpoints if point.block_index < len(prefixes))
        explicit_tokens = min(version.explicit_cache_tokens, prefixes[-1].tokens)
        modelled = CacheCall(scope, prefixes, points, call.at, version.ttl, explicit_cache_tokens=explicit_tokens)
        outcome, entries = begin_cache_call(call.row.cache, entries, modelled)
        if not is_ping:
            entries = publish_entries(entries, outcome, entries_max=ACCOUNT_ENTRIES_MAX)
        self._caches[key] = entries
        self._entry_count += len(entries.by_key)
        while self._entry_count > ENTRIES_MAX and len(self._caches) > 1:
            self._entry_count -= len(self._caches.popitem(last=False)[1].by_key)
        usage = outcome.usage + Usage(input=round(version.trailing_bytes * tokens_per_byte))
        if version.call is not None and not is_ping:
            self._rewriters[version.name].record_usage(version.call, usage)
        return usage


def _find_ttl(changes: Sequence[RequestChange]) -> str | None:
    return EXTENDED_RETENTION if any(change.anti_pattern == RETENTION_SHORT for change in changes) else None


def _price(call: ComparedCall, usage: Usage) -> Decimal:
    return cost_usd(usage, price_at(call.row, utc_date(call.at), usage.tokens_sent))


class _Prefixes(Sequence[PromptPrefix]):
    """The prefixes of a prompt, made when they are looked at: a cache model looks at few of them."""

    def __init__(self, version: _Version, tokens_per_byte: float) -> None:
        self._digests, self._blocks = version.digests, version.blocks
        self._tokens_per_byte = tokens_per_byte

    def __len__(self) -> int:
        return len(self._digests)

    @overload
    def __getitem__(self, index: int) -> PromptPrefix: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PromptPrefix]: ...
    def __getitem__(self, index: int | slice) -> PromptPrefix | Sequence[PromptPrefix]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        index = index + len(self) if index < 0 else index
        block, digest = self._blocks[index], self._digests[index]
        following = self._blocks[index + 1] if index + 1 < len(self._blocks) else None
        tokens = round(digest.end * self._tokens_per_byte)
        return PromptPrefix(
            block.section, digest.digest, tokens, classify_block(block), _ends_section(block, following)
        )


def classify_block(block: EncodedBlock) -> BlockKind:
    return next((kind for start, kind in _KINDS.items() if block.data.startswith(start)), "plain")


def _ends_section(block: EncodedBlock, following: EncodedBlock | None) -> bool:
    """Whether a block ends the system prompt or a user message, where a cache may match or write by itself."""
    if block.section == "system" and (following is None or following.section != "system"):
        return True
    return block.role == "user" and (following is None or following.role != "user")


def encode_shape(blocks: Sequence[EncodedBlock]) -> str:
    """One letter per block for its section, role and whether it is text; upper case if it can carry a breakpoint."""
    letters = []
    for block in blocks:
        if block.section != "messages":
            letter = block.section[0]
        elif block.data.startswith(b'{"type":"text"') or b'"text"' in block.data[:24]:
            letter = "a" if block.role == "assistant" else "u"
        else:
            letter = "b" if block.role == "assistant" else "r"
        letters.append(letter.upper() if block.accepts_breakpoint else letter)
    return "".join(letters)
