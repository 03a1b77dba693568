"""What one call does to the cache: what it reads, what it pays to write, and what is kept afterwards.

A call has two moments. When it begins, it reads and thereby refreshes. Only when its response begins can
others read what it wrote; calls that begin in between miss.
"""

from holdfast.cachemodel.breakpoints import begin_with_breakpoints
from holdfast.cachemodel.implicit import begin_implicitly
from holdfast.cachemodel.marks import begin_with_marks
from holdfast.cachemodel.values import Call, Entries, Entry, EntryKey, Outcome
from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import CacheRules

ENTRIES_MAX = 10_000
"""How many entries are kept before those that expire first are given up."""


def step(rules: CacheRules, entries: Entries, call: Call) -> tuple[Outcome, Entries]:
    """A call whose response begins before the next call does."""
    outcome, entries = begin(rules, entries, call)
    return outcome, publish(entries, outcome)


def begin(rules: CacheRules, entries: Entries, call: Call) -> tuple[Outcome, Entries]:
    """What the call reads and will have written; the entries are returned with the reads refreshed.

    Raises `UserError` for marks that the provider would refuse.
    """
    if call.named_tokens:
        # Such a call reads what has a name, and nothing else is read or kept.
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
    """The response has begun: from now on what the call wrote can be read."""
    fresh: dict[EntryKey, Entry] = {}
    for entry in outcome.written:
        # A call that ran beside this one may have written the same prefix, to last longer.
        rival = entries.find(entry.scope, entry.digest, at=outcome.at)
        if rival is None or rival.expires_at <= entry.expires_at:
            fresh[entry.scope, entry.digest] = entry
    if not fresh:
        return entries
    kept = {**entries.kept, **fresh}
    return Entries(_pruned(kept, outcome.at, entries_max) if len(kept) > entries_max else kept)


def _pruned(kept: dict[EntryKey, Entry], at: float, entries_max: int) -> dict[EntryKey, Entry]:
    """Without the expired; if that is not enough, only the half of the limit that expires last.

    Half, so that a full cache is not sorted again at every call.
    """
    alive = {key: entry for key, entry in kept.items() if at < entry.expires_at}
    if len(alive) <= entries_max:
        return alive
    by_expiry = sorted(alive, key=lambda key: alive[key].expires_at)
    given_up = set(by_expiry[: len(alive) - max(1, entries_max // 2)])
    return {key: entry for key, entry in alive.items() if key not in given_up}
