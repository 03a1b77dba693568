"""What one call does to the cache: what it reads, what it pays to write, and what is kept afterwards.

A call has two moments. When it begins, it reads and thereby refreshes. Only when its response begins can
others read what it wrote; calls that begin in between miss.
"""

from collections.abc import Sequence

import msgspec

from holdfast.cachemodel.lookback import positions_checked
from holdfast.cachemodel.values import Call, Entries, Entry, EntryKey, Outcome
from holdfast.canonical.prompt import Mark, Ttl
from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import CacheRules
from holdfast.errors import UserError

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
    check_marks(rules, call.marks, blocks=len(call.prefixes))
    marks = _effective_marks(rules, call)
    read = _highest_hit(rules, entries, call, marks)
    present = {mark.piece: _kept_at(entries, call, mark) for mark in marks}
    inside = [entry for entry in present.values() if entry is not None]
    missing = [mark for mark in marks if present[mark.piece] is None]
    outcome = Outcome(
        usage=_bill(call, marks, read),
        at=call.at,
        read=read,
        written=tuple(_written(rules, entries, call, mark, under=read) for mark in missing),
    )
    used = inside if read is None else [read, *inside]
    return outcome, _refresh(rules, entries, used, at=call.at)


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


def check_marks(rules: CacheRules, marks: Sequence[Mark], *, blocks: int) -> None:
    """Refuse what the provider refuses: too many marks, unknown lifetimes, a longer one behind a shorter."""
    if rules.kind not in ("marks", "none"):
        raise UserError(f"a cache of kind {rules.kind!r} is not modelled; use rules of kind 'marks'")
    if len(marks) > rules.marks_max:
        raise UserError(
            f"A maximum of {rules.marks_max} blocks with cache_control may be provided. Found {len(marks)}."
        )
    shortest: float | None = None
    seen: set[int] = set()
    for mark in sorted(marks, key=lambda mark: mark.piece):
        if not 0 <= mark.piece < blocks:
            raise UserError(f"a mark on block {mark.piece} of {blocks}; blocks are counted from 0")
        if mark.piece in seen:
            raise UserError(f"two marks on block {mark.piece}; place one")
        if mark.ttl not in rules.ttls_seconds:
            known = ", ".join(sorted(rules.ttls_seconds))
            raise UserError(f"unknown cache_control ttl {mark.ttl!r}; known: {known}")
        seconds = rules.ttls_seconds[mark.ttl]
        if shortest is not None and seconds > shortest:
            raise UserError(
                f"a ttl='{mark.ttl}' cache_control block must not come after one with a shorter ttl; "
                "put longer lifetimes first"
            )
        shortest = seconds
        seen.add(mark.piece)


def _effective_marks(rules: CacheRules, call: Call) -> tuple[Mark, ...]:
    """The marks in wire order whose prefix is long enough to be cached; the others are ignored in silence."""
    ordered = sorted(call.marks, key=lambda mark: mark.piece)
    return tuple(mark for mark in ordered if call.prefixes[mark.piece].tokens >= rules.tokens_min)


def _highest_hit(rules: CacheRules, entries: Entries, call: Call, marks: Sequence[Mark]) -> Entry | None:
    for mark in reversed(marks):
        for index in positions_checked(rules, call.prefixes, mark.piece):
            prefix = call.prefixes[index]
            if prefix.tokens < rules.tokens_min:
                break
            entry = entries.find(call.scope, prefix.digest, at=call.at)
            if entry is not None:
                return entry
    return None


def _kept_at(entries: Entries, call: Call, mark: Mark) -> Entry | None:
    return entries.find(call.scope, call.prefixes[mark.piece].digest, at=call.at)


def _bill(call: Call, marks: Sequence[Mark], read: Entry | None) -> Usage:
    """Read up to the hit, then written for long, then written for short, then neither."""
    hit = read.tokens if read else 0
    ends: dict[Ttl, int] = {"1h": hit, "5m": hit}
    for mark in marks:
        ends[mark.ttl] = max(hit, call.prefixes[mark.piece].tokens)
    written_end = max(ends.values())
    return Usage(
        input=call.tokens - written_end,
        cache_read=hit,
        cache_write_1h=ends["1h"] - hit,
        cache_write_5m=written_end - ends["1h"],
    )


def _written(rules: CacheRules, entries: Entries, call: Call, mark: Mark, *, under: Entry | None) -> Entry:
    """The entry for the prefix that ends at this mark; `under` is what the call read."""
    prefix = call.prefixes[mark.piece]
    ttl: str = mark.ttl
    rests_on: str | None = None
    # Whoever uses a prefix uses all that is in it, so of parts with one lifetime the last lapses first.
    weak = (entries.under(under, at=call.at) or under) if under else None
    if weak is not None and rules.ttls_seconds[weak.ttl] < rules.ttls_seconds[ttl]:
        if prefix.tokens > weak.tokens:
            rests_on = weak.digest
        elif not rules.ttl_upgrade:
            ttl = weak.ttl
    return Entry(
        call.scope,
        prefix.digest,
        prefix.tokens,
        ttl,
        expires_at=call.at + rules.ttls_seconds[ttl],
        rests_on=rests_on,
        outlives_it=rests_on is not None and rules.ttl_upgrade,
    )


def _refresh(rules: CacheRules, entries: Entries, used: Sequence[Entry], *, at: float) -> Entries:
    fresh: dict[EntryKey, Entry] = {}
    for entry in (*used, *(entries.under(entry, at=at) for entry in used)):
        if entry is not None and at + rules.ttls_seconds[entry.ttl] > entry.expires_at:
            expires_at = at + rules.ttls_seconds[entry.ttl]
            fresh[entry.scope, entry.digest] = msgspec.structs.replace(entry, expires_at=expires_at)
    return Entries({**entries.kept, **fresh}) if fresh else entries


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
