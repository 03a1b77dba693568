"""One call's effect on the cache: what it reads, what it pays to write, and what is cached afterwards.

A call has two moments. When it begins, it reads entries and refreshes them. Its own entries become readable only when
its response begins (Anthropic, "Prompt caching"); identical calls that begin in between miss.
"""

from holdfast.cachemodel.breakpoints import begin_with_breakpoints
from holdfast.cachemodel.implicit import begin_implicitly
from holdfast.cachemodel.marks import begin_with_marks
from holdfast.cachemodel.values import Call, Entries, Entry, EntryKey, Outcome
from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import CacheRules

ENTRIES_MAX = 10_000
"""How many entries are stored before those that expire first are evicted."""


def step(rules: CacheRules, entries: Entries, call: Call) -> tuple[Outcome, Entries]:
    """A call whose response begins before the next call does."""
    outcome, entries = begin(rules, entries, call)
    return outcome, publish(entries, outcome)


def begin(rules: CacheRules, entries: Entries, call: Call) -> tuple[Outcome, Entries]:
    """The call's outcome, and the entries with those that it read refreshed.

    Raises `UserError` for breakpoints that the provider would refuse.
    """
    if call.named_tokens:
        # A request with an explicit cache reads that one; nothing else is read or written.
        usage = Usage(input=call.tokens - call.named_tokens, cache_read=call.named_tokens)
        return Outcome(usage=usage, at=call.at), entries
    match rules.kind:
        case "marks" | "none":
            return begin_with_marks(rules, entries, call)
        case "implicit":
            return begin_implicitly(rules, entries, call)
        case "breakpoints":
            return begin_with_breakpoints(rules, entries, call)


def publish(entries: Entries, outcome: Outcome, *, entries_max: int = ENTRIES_MAX) -> Entries:
    """The entries once the response has begun, when other calls can read what this one wrote."""
    fresh: dict[EntryKey, Entry] = {}
    for entry in outcome.written:
        # A concurrent call may have written the same prefix with a later expiry.
        existing = entries.find(entry.scope, entry.digest, at=outcome.at)
        if existing is None or existing.expires_at <= entry.expires_at:
            fresh[entry.scope, entry.digest] = entry
    if not fresh:
        return entries
    all_entries = {**entries.kept, **fresh}
    return Entries(_pruned(all_entries, outcome.at, entries_max) if len(all_entries) > entries_max else all_entries)


def _pruned(all_entries: dict[EntryKey, Entry], at: float, entries_max: int) -> dict[EntryKey, Entry]:
    """Without expired entries; if that is not enough, only the half of the limit that expires last.

    Half, so that a full cache is not sorted again at every call.
    """
    alive = {key: entry for key, entry in all_entries.items() if at < entry.expires_at}
    if len(alive) <= entries_max:
        return alive
    by_expiry = sorted(alive, key=lambda key: alive[key].expires_at)
    evicted = set(by_expiry[: len(alive) - max(1, entries_max // 2)])
    return {key: entry for key, entry in alive.items() if key not in evicted}
