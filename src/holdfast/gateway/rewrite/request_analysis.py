"""What the analysis of a request gives: its rewrite, its single-flight key, and pings for its cache entry."""

from collections.abc import Sequence

import msgspec

from holdfast.catalog.schema import CacheRules, Model
from holdfast.engine.cache.conversation_plans import PlannedCall
from holdfast.engine.cache.single_flight import BreakpointPrefix, FlightKey
from holdfast.events.payloads.cache import PingKind
from holdfast.events.payloads.calls import RequestChange
from holdfast.planning.policy import PingResult
from holdfast.providers.adapter import Adapter
from holdfast.types.prompt import Breakpoint, Ttl
from holdfast.types.request_buffer import EncodedBlock, PrefixDigest
from holdfast.types.usage import Usage

# Rough estimate, enough to compare a prefix with the cache minimum; exact counts need the provider's tokenizer.
BYTES_PER_TOKEN = 4


class GatewayPing(msgspec.Struct, frozen=True):
    """A request without output for a conversation's cache: its last request, for an upgrade with the `reply` after it.

    `block_index` is the block of its last breakpoint among the conversation's `block_count` blocks; `closing_tokens`
    follow them.
    """

    body: bytes
    kind: PingKind
    ttl: Ttl
    reason: str
    block_index: int
    block_count: int
    closing_tokens: int = 0
    reply: tuple[EncodedBlock, ...] = ()

    def to_result(self, at: float, usage: Usage) -> PingResult:
        tokens = max(0, usage.tokens_sent - self.closing_tokens)
        return PingResult(at, self.ttl, usage, self.block_index, self.block_count, tokens)


class RequestAnalysis(msgspec.Struct, frozen=True):
    """The analysis of a request: its rewrite, and what single flight and keep-alive need to know about its prefix.

    `body` is None if the request is forwarded unchanged. `moved_bytes` of volatile text follow the blocks of `call`.
    """

    adapter: Adapter
    row: Model
    body: bytes | None
    changes: tuple[RequestChange, ...]
    flight_key: FlightKey
    call: PlannedCall
    accepts_pings: bool
    moved_bytes: int


def cached_prefixes(
    chain: Sequence[PrefixDigest], breakpoints: Sequence[Breakpoint], rules: CacheRules
) -> tuple[BreakpointPrefix, ...]:
    """The prefixes that end at a breakpoint and are long enough to be cached."""
    ends = [(chain[point.block_index], point.ttl) for point in breakpoints if point.ttl in rules.ttls_seconds]
    bytes_min = rules.tokens_min * BYTES_PER_TOKEN
    return tuple(
        BreakpointPrefix(end.digest, end.end, rules.ttls_seconds[ttl]) for end, ttl in ends if end.end >= bytes_min
    )
