"""A cache that writes where a request asks for it and, unless told not to, behind the latest message.

It is read only where it is looked up: at breakpoints and behind a bounded number of earlier messages. A beginning
that two prompts share, but that ends at none of these, is of no use to either.
"""

from collections.abc import Sequence

from holdfast.cachemodel.lifetimes import lifetime_asked_for
from holdfast.cachemodel.marks import ordered_marks
from holdfast.cachemodel.refresh import refreshed
from holdfast.cachemodel.values import Call, Entries, Entry, Outcome, Prefix
from holdfast.canonical.prompt import Mark
from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import CacheRules


def begin_with_breakpoints(rules: CacheRules, entries: Entries, call: Call) -> tuple[Outcome, Entries]:
    marks = ordered_marks(rules, call.marks, blocks=len(call.prefixes))
    endings = () if call.only_marks else tuple(index for index, prefix in enumerate(call.prefixes) if prefix.ending)
    points = sorted(_looked_up(rules, call.prefixes, marks, endings))
    kept = {index: entry for index in points if (entry := _kept_at(rules, entries, call, index))}
    hit = max(kept, default=None)
    read = None if hit is None else kept[hit]
    lifetimes = _written_at(rules, call, marks, endings)
    ends = [call.prefixes[index].tokens for index in lifetimes]
    read_tokens = read.tokens if read else 0
    written_tokens = max(0, max(ends, default=0) - read_tokens)
    usage = Usage(
        input=call.tokens - read_tokens - written_tokens, cache_read=read_tokens, cache_write_other=written_tokens
    )
    written = tuple(
        Entry(
            call.scope,
            call.prefixes[index].digest,
            call.prefixes[index].tokens,
            ttl,
            expires_at=call.at + rules.ttls_seconds[ttl],
        )
        for index, ttl in lifetimes.items()
        if index not in kept
    )
    outcome = Outcome(usage=usage, at=call.at, read=read, written=written)
    return outcome, refreshed(rules, entries, kept.values(), at=call.at)


def _looked_up(
    rules: CacheRules, prefixes: Sequence[Prefix], marks: Sequence[Mark], endings: Sequence[int]
) -> set[int]:
    """Some of the first and of the latest marks, the latest ending, some before it, and the initial block's."""
    pieces = [mark.piece for mark in marks]
    latest = pieces[-rules.lookup_latest_marks :] if rules.lookup_latest_marks else []
    recent = endings[-1 - rules.lookback_positions :]
    initial = [index for index in endings if prefixes[index].place == "system"][-1:]
    return {*pieces[: rules.lookup_first_marks], *latest, *recent, *initial}


def _written_at(rules: CacheRules, call: Call, marks: Sequence[Mark], endings: Sequence[int]) -> dict[int, str]:
    """The lifetimes of what is to be kept, by block: behind the latest ending, and at as many marks as are left."""
    implicit = {endings[-1]: lifetime_asked_for(rules, call.ttl)} if endings else {}
    left = max(0, rules.marks_max - len(implicit))
    explicit = {mark.piece: mark.ttl for mark in (marks[-left:] if left else ())}
    wanted = {**implicit, **explicit}
    return {index: wanted[index] for index in sorted(wanted) if call.prefixes[index].tokens >= rules.tokens_min}


def _kept_at(rules: CacheRules, entries: Entries, call: Call, index: int) -> Entry | None:
    prefix = call.prefixes[index]
    return entries.find(call.scope, prefix.digest, at=call.at) if prefix.tokens >= rules.tokens_min else None
