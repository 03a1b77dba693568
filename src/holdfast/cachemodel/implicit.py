"""A cache that keeps every prompt of itself: what is read is the longest beginning that was sent before."""

from holdfast.cachemodel.lifetimes import lifetime_asked_for
from holdfast.cachemodel.refresh import refreshed
from holdfast.cachemodel.values import Call, Entries, Entry, Outcome
from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import CacheRules
from holdfast.errors import UserError


def begin_implicitly(rules: CacheRules, entries: Entries, call: Call) -> tuple[Outcome, Entries]:
    """Nothing is billed as written; what is read is reported rounded down."""
    if call.marks:
        raise UserError("this model's cache takes no marks; send none, it keeps every prompt of itself")
    long_enough = [prefix for prefix in call.prefixes if prefix.tokens >= rules.tokens_min]
    found = [entry for prefix in long_enough if (entry := entries.find(call.scope, prefix.digest, at=call.at))]
    read = found[-1] if found else None
    reported = 0 if read is None else read.tokens - read.tokens % rules.rounds_reads_to
    ttl = lifetime_asked_for(rules, call.ttl)
    expires_at = call.at + rules.ttls_seconds[ttl]
    # Whoever reads a prefix uses all that is in it.
    entries = refreshed(rules, entries, found, at=call.at)
    written = tuple(
        Entry(call.scope, prefix.digest, prefix.tokens, ttl, expires_at=expires_at)
        for prefix in long_enough
        if not _lasts(entries, call, prefix.digest, until=expires_at)
    )
    usage = Usage(input=call.tokens - reported, cache_read=reported)
    return Outcome(usage=usage, at=call.at, read=read, written=written), entries


def _lasts(entries: Entries, call: Call, digest: str, *, until: float) -> bool:
    kept = entries.find(call.scope, digest, at=call.at)
    return kept is not None and kept.expires_at >= until
