"""Analyzes a request to be rewritten: its single-flight key and the ping that can keep its cache entry alive.

Runs once per request, in a worker thread, because hashing a long prompt would block the event loop.
"""

from decimal import Decimal

import msgspec

from holdfast.canonical.encoding import chain, digest, plain_json
from holdfast.canonical.prompt import Mark, Ttl
from holdfast.catalog.lookup import price_at, utc_date
from holdfast.economics.pinging import pings_max
from holdfast.engine.draft import Draft
from holdfast.engine.gate import Claim, MarkedPrefix
from holdfast.gateway.edits import VOLATILE, Body
from holdfast.gateway.improving import Improved, Improver
from holdfast.planning.savings import write_rate
from holdfast.providers.adapter import Adapter
from holdfast.providers.automatic import automatic_mark
from holdfast.providers.emptying import AsksForNothing
from holdfast.providers.registry import adapter_for

# Rough estimate, enough to compare a prefix with the cache minimum; exact counts need the provider's tokenizer.
BYTES_A_TOKEN = 4
LETTER_BYTES_MAX = 4 * 1024 * 1024


class Letter(msgspec.Struct, frozen=True):
    """A request without output that refreshes a conversation's cache entry; `times_max` pings pay off at most.

    `tail` is the digest of the cached prefix; a later request with that digest continues the conversation.
    """

    body: bytes
    tail: str
    ttl: Ttl
    ttl_seconds: float
    cost_usd: Decimal
    times_max: int
    piece: int


class Reading(msgspec.Struct, frozen=True):
    """The analysis of a request. `digests` are the prefix digests after each of its blocks."""

    improved: Improved
    claim: Claim
    digests: frozenset[str]
    letter: Letter | None = None


def read_once(improver: Improver, speaks: str, body: bytes, *, path: str, account: str, at: float) -> Reading:
    """May raise anything for a body that we do not understand."""
    improved = improver.improved(speaks, body, path=path)
    adapter = adapter_for(speaks)
    draft = Draft(adapter, lambda encoded: len(encoded) // BYTES_A_TOKEN)
    draft.update(improved.wire.prompt)
    chain_digests, rules = draft.scroll.links, improved.row.cache
    breakpoints = [breakpoint_ for breakpoint_ in improved.wire.plan.marks if breakpoint_.piece < len(chain_digests)]
    if not any(change.habit.startswith(VOLATILE) for change in improved.changes):
        # After a move, the automatic breakpoint is on the moved text, which no later request has in its prefix.
        breakpoints += automatic_mark(improved.wire.parameters, draft.scroll.pieces, breakpoints, rules)
    prefixes = tuple(
        MarkedPrefix(
            chain_digests[breakpoint_.piece].digest,
            chain_digests[breakpoint_.piece].end,
            rules.ttls_seconds[breakpoint_.ttl],
        )
        for breakpoint_ in breakpoints
        if chain_digests[breakpoint_.piece].end >= rules.tokens_min * BYTES_A_TOKEN
        and breakpoint_.ttl in rules.ttls_seconds
    )
    claim = Claim(_scope(adapter, improved, account), prefixes)
    ping = None
    if prefixes and prefixes[-1].digest == chain_digests[breakpoints[-1].piece].digest:
        tokens = sum(draft.scroll.tokens[: breakpoints[-1].piece + 1])
        ping = _make_ping(
            adapter, improved, body, breakpoint_=breakpoints[-1], prefix=prefixes[-1], tokens=tokens, at=at
        )
    return Reading(improved, claim, frozenset(prefix.digest for prefix in chain_digests), ping)


def _scope(adapter: Adapter, improved: Improved, account: str) -> str:
    """Digest of account, model and those request parameters that the provider's cache key depends on."""
    # These parameters do not change the prefix, so requests that differ only in them share a cache entry.
    parameters = msgspec.structs.replace(
        improved.wire.parameters, output_tokens_max=0, stream=False, stop_sequences=(), temperature=None
    )
    return chain(digest(f"{account}\n{improved.row.id}".encode()), adapter.opening(parameters))


def _make_ping(
    adapter: Adapter,
    improved: Improved,
    body: bytes,
    *,
    breakpoint_: Mark,
    prefix: MarkedPrefix,
    tokens: int,
    at: float,
) -> Letter | None:
    """None if the provider has no request without output, or if the model has no price."""
    sent = improved.body or body
    if not isinstance(adapter, AsksForNothing) or not improved.row.prices or len(sent) > LETTER_BYTES_MAX:
        return None
    parameters = adapter.emptied(improved.wire.parameters)
    if adapter.conflict_with_empty(parameters) is not None:
        return None
    members: Body = msgspec.json.decode(sent)
    # Anthropic's pre-warm request: max_tokens 0 gives no output, and answers 400 together with stream.
    members["max_tokens"] = parameters.output_tokens_max
    members.pop("stream", None)
    price = price_at(improved.row, utc_date(at), tokens)
    pings = pings_max(read=price.cache_read, write=write_rate(breakpoint_.ttl, price))
    # A ping reads the whole cached prefix once; prices are per million tokens.
    cost = price.cache_read * tokens / 1_000_000
    return Letter(
        body=plain_json(members),
        tail=prefix.digest,
        ttl=breakpoint_.ttl,
        ttl_seconds=prefix.ttl_seconds,
        cost_usd=cost,
        times_max=pings or 0,
        piece=breakpoint_.piece,
    )
