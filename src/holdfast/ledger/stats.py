"""Cache counters of a session: requests, hits, expected and unexpected breaks, tokens read and written."""

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.catalog.lookup import Models
from holdfast.events.envelope import Event
from holdfast.ledger.books import ENTERED, Books, Entry, entered
from holdfast.ledger.verdicts import DROP_TOKENS_MIN, EXPECTED, UNEXPECTED

# Drops of a smaller share of the cached tokens rank after larger ones; they are counted all the same.
RANK_SHARE_MIN = 0.05


class PromptCacheStats(msgspec.Struct, frozen=True):
    """`tracked_requests` went to a provider; `completion_cache_*` count the cache of whole replies.

    A request whose reply was interrupted or failed was also looked up in that cache, but is not counted as a miss.
    """

    tracked_requests: int = 0
    completion_cache_hits: int = 0
    completion_cache_misses: int = 0
    completion_cache_writes: int = 0
    expected_invalidations: int = 0
    unexpected_cache_breaks: int = 0
    total_cache_creation_input_tokens: int = 0
    total_cache_read_input_tokens: int = 0
    last_cache_creation_input_tokens: int | None = None
    last_cache_read_input_tokens: int | None = None
    last_request_hash: str | None = None
    last_completion_cache_key: str | None = None
    last_break_reason: str | None = None
    last_cache_source: str | None = None


class CacheBreakEvent(msgspec.Struct, frozen=True):
    """`token_drop` fewer tokens were read than expected; `component` is the cause, where it is known."""

    unexpected: bool
    reason: str
    previous_cache_read_input_tokens: int
    current_cache_read_input_tokens: int
    token_drop: int
    component: str | None = None

    @property
    def drop_share(self) -> float:
        before = self.previous_cache_read_input_tokens
        return self.token_drop / before if before else 0.0


class TokenStats(msgspec.Struct, frozen=True):
    """Token totals of one provider: sent, read from the cache, and received."""

    input_tokens: int = 0
    cache_tokens: int = 0
    output_tokens: int = 0

    @property
    def hit_percent(self) -> int:
        # Rounded down, so that 100 means everything was read.
        return 100 * self.cache_tokens // self.input_tokens if self.input_tokens else 0


def break_of(entry: Entry, *, drop_tokens_min: int = DROP_TOKENS_MIN) -> CacheBreakEvent | None:
    """The cache break that a call was, if any. What it could have read is reported as the previous read."""
    verdict = entry.verdict
    # max(1, ...): even with a threshold of 0 a call that read everything is no break.
    if verdict is None or verdict.missing_tokens < max(1, drop_tokens_min):
        return None
    if verdict.kind not in (*EXPECTED, *UNEXPECTED):
        return None
    return CacheBreakEvent(
        unexpected=verdict.is_break,
        reason=f"{verdict.kind}: {verdict.detail}" if verdict.detail else verdict.kind,
        previous_cache_read_input_tokens=verdict.expected_tokens,
        current_cache_read_input_tokens=verdict.read_tokens,
        token_drop=verdict.missing_tokens,
        component=verdict.component,
    )


def cache_breaks(entries: Iterable[Entry], *, drop_tokens_min: int = DROP_TOKENS_MIN) -> Iterator[CacheBreakEvent]:
    breaks = (break_of(entry, drop_tokens_min=drop_tokens_min) for entry in entries)
    return (event for event in breaks if event is not None)


def ranked(breaks: Iterable[CacheBreakEvent]) -> tuple[CacheBreakEvent, ...]:
    """The largest drop first; drops of less than `RANK_SHARE_MIN` of the cached tokens last."""
    return tuple(sorted(breaks, key=lambda event: (event.drop_share < RANK_SHARE_MIN, -event.token_drop)))


def cache_stats(entries: Iterable[Entry], *, drop_tokens_min: int = DROP_TOKENS_MIN) -> PromptCacheStats:
    stats = PromptCacheStats()
    for entry in entries:
        stats = counted_in(stats, entry, drop_tokens_min=drop_tokens_min)
    return stats


def counted_in(stats: PromptCacheStats, entry: Entry, *, drop_tokens_min: int = DROP_TOKENS_MIN) -> PromptCacheStats:
    if entry.source == "completion-cache":
        return msgspec.structs.replace(
            stats,
            completion_cache_hits=stats.completion_cache_hits + 1,
            last_completion_cache_key=entry.completion_key,
            last_cache_source=entry.source,
        )
    usage = entry.record.usage
    counted = msgspec.structs.replace(
        stats,
        tracked_requests=stats.tracked_requests + 1,
        completion_cache_misses=stats.completion_cache_misses + bool(entry.completion_key),
        completion_cache_writes=stats.completion_cache_writes + entry.completion_kept,
        total_cache_creation_input_tokens=stats.total_cache_creation_input_tokens + usage.cache_write,
        total_cache_read_input_tokens=stats.total_cache_read_input_tokens + usage.cache_read,
        last_cache_creation_input_tokens=usage.cache_write,
        last_cache_read_input_tokens=usage.cache_read,
        last_request_hash=entry.chain or None,
        last_completion_cache_key=entry.completion_key or stats.last_completion_cache_key,
        last_cache_source=entry.source,
    )
    event = break_of(entry, drop_tokens_min=drop_tokens_min)
    return counted if event is None else broken(counted, event)


def broken(stats: PromptCacheStats, event: CacheBreakEvent) -> PromptCacheStats:
    return msgspec.structs.replace(
        stats,
        expected_invalidations=stats.expected_invalidations + (not event.unexpected),
        unexpected_cache_breaks=stats.unexpected_cache_breaks + event.unexpected,
        last_break_reason=event.reason,
    )


def token_stats(entries: Iterable[Entry]) -> dict[str, TokenStats]:
    """By provider, in the order of their first call."""
    tokens: dict[str, TokenStats] = {}
    for entry in entries:
        tokens = _add_tokens(tokens, entry)
    return tokens


def _add_tokens(tokens: dict[str, TokenStats], entry: Entry) -> dict[str, TokenStats]:
    before, usage = tokens.get(entry.provider, TokenStats()), entry.record.usage
    after = TokenStats(
        before.input_tokens + usage.tokens_sent,
        before.cache_tokens + usage.cache_read,
        before.output_tokens + usage.output,
    )
    return {**tokens, entry.provider: after}


class Tally(msgspec.Struct, frozen=True):
    """The counters of a session up to one of its events, and the state needed to continue from there."""

    last_event_id: str | None = None
    books: Books = Books()
    stats: PromptCacheStats = PromptCacheStats()
    tokens: dict[str, TokenStats] = {}


def tallied(tally: Tally, events: Iterable[Event], models: Models) -> Tally:
    """The counters after more events; events already counted are not read again."""
    accounting, stats, tokens, last_event_id = tally.books, tally.stats, tally.tokens, tally.last_event_id
    for event in events:
        last_event_id = event.id
        if not isinstance(event.payload, ENTERED):
            continue
        accounting, entry = entered(accounting, event, models)
        if entry is not None:
            stats, tokens = counted_in(stats, entry), _add_tokens(tokens, entry)
    return Tally(last_event_id, accounting, stats, tokens)
