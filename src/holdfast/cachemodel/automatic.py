"""Caches that also write without a breakpoint: hybrid (OpenAI from GPT-5.6 on) and implicit (Gemini, older OpenAI).

A hybrid cache writes at breakpoints and, in implicit mode, at the end of the latest message. Entries are looked up only
at breakpoints and at a bounded number of earlier message endings (OpenAI, "Prompt caching"): a prefix shared by two
prompts that ends at neither cannot be read. An implicit cache holds every prompt and reads the longest shared prefix.
"""

from collections.abc import Sequence

from holdfast.cachemodel.anthropic import sort_breakpoints
from holdfast.cachemodel.values import (
    CacheCall,
    CacheEntries,
    CacheEntry,
    CacheOutcome,
    PromptPrefix,
    refresh_entries,
    requested_ttl,
)
from holdfast.catalog.schema import CacheRules
from holdfast.errors import UserError
from holdfast.types.prompt import Breakpoint
from holdfast.types.usage import Usage


def begin_hybrid_call(rules: CacheRules, entries: CacheEntries, call: CacheCall) -> tuple[CacheOutcome, CacheEntries]:
    breakpoints = sort_breakpoints(rules, call.breakpoints, blocks=len(call.prefixes))
    all_endings = tuple(index for index, prefix in enumerate(call.prefixes) if prefix.is_ending)
    endings = () if call.explicit_only else all_endings
    lookup_points = sorted(_lookup_points(rules, call.prefixes, breakpoints, endings))
    hits = {index: entry for index in lookup_points if (entry := _entry_at(rules, entries, call, index))}
    last_hit = max(hits, default=None)
    read = None if last_hit is None else hits[last_hit]
    ttls = _ttls_to_write(rules, call, breakpoints, endings)
    ends = [call.prefixes[index].tokens for index in ttls]
    read_tokens = read.tokens if read else 0
    written_tokens = max(0, max(ends, default=0) - read_tokens)
    plain_tokens = call.tokens - read_tokens - written_tokens
    usage = Usage(input=plain_tokens, cache_read=read_tokens, cache_write_other=written_tokens)
    missing = [(call.prefixes[index], ttl) for index, ttl in ttls.items() if index not in hits]
    written = tuple(
        CacheEntry(call.scope, prefix.digest, prefix.tokens, ttl, expires_at=call.at + rules.ttls_seconds[ttl])
        for prefix, ttl in missing
    )
    outcome = CacheOutcome(usage=usage, at=call.at, read=read, written=written)
    return outcome, refresh_entries(rules, entries, hits.values(), at=call.at)


def _lookup_points(
    rules: CacheRules, prefixes: Sequence[PromptPrefix], breakpoints: Sequence[Breakpoint], endings: Sequence[int]
) -> set[int]:
    """The blocks at which an entry is looked up."""
    # OpenAI's guide: the first 2 and the latest 50 explicit breakpoints, plus in implicit mode the latest ending, up to
    # 20 earlier ones, and the end of the initial developer messages. The numbers are fields of the rules, because the
    # SDK's documentation gives others.
    blocks = [breakpoint.block_index for breakpoint in breakpoints]
    latest = blocks[-rules.lookup_latest_breakpoints :] if rules.lookup_latest_breakpoints else []
    recent = endings[-1 - rules.lookback_positions :]
    initial = [index for index in endings if prefixes[index].section == "system"][-1:]
    return {*blocks[: rules.lookup_first_breakpoints], *latest, *recent, *initial}


def _ttls_to_write(
    rules: CacheRules, call: CacheCall, breakpoints: Sequence[Breakpoint], endings: Sequence[int]
) -> dict[int, str]:
    """The TTLs of the entries to write, by block: the latest ending, and as many of the latest breakpoints as fit.

    Up to 4 writes per request; the implicit one uses a slot, and surplus breakpoints are ignored without an error.
    """
    implicit = {endings[-1]: requested_ttl(rules, call.ttl)} if endings else {}
    slots_left = max(0, rules.breakpoints_max - len(implicit))
    latest = breakpoints[-slots_left:] if slots_left else ()
    explicit = {breakpoint.block_index: breakpoint.ttl for breakpoint in latest}
    ttls = {**implicit, **explicit}
    return {index: ttls[index] for index in sorted(ttls) if call.prefixes[index].tokens >= rules.tokens_min}


def _entry_at(rules: CacheRules, entries: CacheEntries, call: CacheCall, index: int) -> CacheEntry | None:
    prefix = call.prefixes[index]
    return entries.find(call.scope, prefix.digest, at=call.at) if prefix.tokens >= rules.tokens_min else None


def begin_implicit_call(rules: CacheRules, entries: CacheEntries, call: CacheCall) -> tuple[CacheOutcome, CacheEntries]:
    """Writes are free; reads are reported rounded down (OpenAI before GPT-5.6: to a multiple of 128 tokens)."""
    if call.breakpoints:
        raise UserError("this model takes no breakpoints; send none, it caches every prompt automatically")
    long_enough = [prefix for prefix in call.prefixes if prefix.tokens >= rules.tokens_min]
    hits = [entry for prefix in long_enough if (entry := entries.find(call.scope, prefix.digest, at=call.at))]
    read = hits[-1] if hits else None
    reported = 0 if read is None else read.tokens - read.tokens % rules.reads_rounded_to
    ttl = requested_ttl(rules, call.ttl)
    expires_at = call.at + rules.ttls_seconds[ttl]
    # A read also refreshes every shorter prefix inside the one that was read.
    entries = refresh_entries(rules, entries, hits, at=call.at)
    written = tuple(
        CacheEntry(call.scope, prefix.digest, prefix.tokens, ttl, expires_at=expires_at)
        for prefix in long_enough
        if not ((entry := entries.find(call.scope, prefix.digest, at=call.at)) and entry.expires_at >= expires_at)
    )
    usage = Usage(input=call.tokens - reported, cache_read=reported)
    return CacheOutcome(usage=usage, at=call.at, read=read, written=written), entries
