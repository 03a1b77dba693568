"""An implicit cache (Gemini, OpenAI before GPT-5.6): every prompt is cached, and the longest shared prefix is read."""

from holdfast.cachemodel.lifetimes import lifetime_asked_for
from holdfast.cachemodel.refresh import refreshed
from holdfast.cachemodel.values import Call, Entries, Entry, Outcome
from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import CacheRules
from holdfast.errors import UserError


def begin_implicitly(rules: CacheRules, entries: Entries, call: Call) -> tuple[Outcome, Entries]:
    """Writes are free; reads are reported rounded down (OpenAI before GPT-5.6: to a multiple of 128 tokens)."""
    if call.marks:
        raise UserError("this model takes no breakpoints; send none, it caches every prompt automatically")
    long_enough = [prefix for prefix in call.prefixes if prefix.tokens >= rules.tokens_min]
    hits = [entry for prefix in long_enough if (entry := entries.find(call.scope, prefix.digest, at=call.at))]
    read = hits[-1] if hits else None
    reported = 0 if read is None else read.tokens - read.tokens % rules.rounds_reads_to
    ttl = lifetime_asked_for(rules, call.ttl)
    expires_at = call.at + rules.ttls_seconds[ttl]
    # A read also refreshes every shorter prefix inside the one that was read.
    entries = refreshed(rules, entries, hits, at=call.at)
    written = tuple(
        Entry(call.scope, prefix.digest, prefix.tokens, ttl, expires_at=expires_at)
        for prefix in long_enough
        if not _is_cached_until(entries, call, prefix.digest, until=expires_at)
    )
    usage = Usage(input=call.tokens - reported, cache_read=reported)
    return Outcome(usage=usage, at=call.at, read=read, written=written), entries


def _is_cached_until(entries: Entries, call: Call, digest: str, *, until: float) -> bool:
    entry = entries.find(call.scope, digest, at=call.at)
    return entry is not None and entry.expires_at >= until
