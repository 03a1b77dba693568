"""One call's effect on the cache: what it reads, what it pays to write, and what is cached afterwards.

A call has two moments. When it begins, it reads entries and refreshes them. Its own entries become readable only when
its response begins (Anthropic, "Prompt caching"); identical calls that begin in between miss.
"""

from holdfast.cachemodel.anthropic import begin_breakpoint_call
from holdfast.cachemodel.automatic import begin_hybrid_call, begin_implicit_call
from holdfast.cachemodel.values import CacheCall, CacheEntries, CacheEntry, CacheOutcome, EntryKey
from holdfast.catalog.schema import CacheRules
from holdfast.types.usage import Usage

# How many entries are stored before those that expire first are evicted.
CACHE_ENTRIES_MAX = 10_000


def run_call(rules: CacheRules, entries: CacheEntries, call: CacheCall) -> tuple[CacheOutcome, CacheEntries]:
    """A call whose response begins before the next call does."""
    outcome, entries = begin_cache_call(rules, entries, call)
    return outcome, publish_entries(entries, outcome)


def begin_cache_call(rules: CacheRules, entries: CacheEntries, call: CacheCall) -> tuple[CacheOutcome, CacheEntries]:
    """The call's outcome, and the entries with those that it read refreshed.

    Raises `UserError` for breakpoints that the provider would refuse.
    """
    if call.explicit_cache_tokens:
        # A request with an explicit cache reads that one; nothing else is read or written.
        usage = Usage(input=call.tokens - call.explicit_cache_tokens, cache_read=call.explicit_cache_tokens)
        return CacheOutcome(usage=usage, at=call.at), entries
    match rules.kind:
        case "explicit" | "none":
            return begin_breakpoint_call(rules, entries, call)
        case "implicit":
            return begin_implicit_call(rules, entries, call)
        case "hybrid":
            return begin_hybrid_call(rules, entries, call)


def publish_entries(
    entries: CacheEntries, outcome: CacheOutcome, *, entries_max: int = CACHE_ENTRIES_MAX
) -> CacheEntries:
    """The entries once the response has begun, when other calls can read what this one wrote."""
    fresh: dict[EntryKey, CacheEntry] = {}
    for entry in outcome.written:
        # A concurrent call may have written the same prefix with a later expiry.
        existing = entries.find(entry.scope, entry.digest, at=outcome.at)
        if existing is None or existing.expires_at <= entry.expires_at:
            fresh[entry.scope, entry.digest] = entry
    if not fresh:
        return entries
    all_entries = {**entries.by_key, **fresh}
    full = len(all_entries) > entries_max
    return CacheEntries(_pruned(all_entries, outcome.at, entries_max) if full else all_entries)


def _pruned(all_entries: dict[EntryKey, CacheEntry], at: float, entries_max: int) -> dict[EntryKey, CacheEntry]:
    """Without expired entries; if that is not enough, only the half of the limit that expires last.

    Half, so that a full cache is not sorted again at every call.
    """
    alive = dict(CacheEntries(all_entries).drop_expired(at=at).by_key)
    if len(alive) <= entries_max:
        return alive
    by_expiry = sorted(alive, key=lambda key: alive[key].expires_at)
    evicted = set(by_expiry[: len(alive) - max(1, entries_max // 2)])
    return {key: entry for key, entry in alive.items() if key not in evicted}
