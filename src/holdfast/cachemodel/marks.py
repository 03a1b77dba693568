"""A cache that writes only where a request asks for it, and looks back from there."""

from collections.abc import Sequence

from holdfast.cachemodel.lookback import positions_checked
from holdfast.cachemodel.refresh import refreshed
from holdfast.cachemodel.values import Call, Entries, Entry, Outcome
from holdfast.canonical.prompt import Mark, Ttl
from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import CacheRules
from holdfast.errors import UserError


def begin_with_marks(rules: CacheRules, entries: Entries, call: Call) -> tuple[Outcome, Entries]:
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
    return outcome, refreshed(rules, entries, used, at=call.at)


def check_marks(rules: CacheRules, marks: Sequence[Mark], *, blocks: int) -> None:
    """Refuse what the provider refuses: too many marks, unknown lifetimes, a longer one behind a shorter."""
    if len(marks) > rules.marks_max:
        raise UserError(
            f"A maximum of {rules.marks_max} blocks with cache_control may be provided. Found {len(marks)}."
        )
    shortest: float | None = None
    for mark in ordered_marks(rules, marks, blocks=blocks):
        seconds = rules.ttls_seconds[mark.ttl]
        if shortest is not None and seconds > shortest:
            raise UserError(
                f"a ttl='{mark.ttl}' cache_control block must not come after one with a shorter ttl; "
                "put longer lifetimes first"
            )
        shortest = seconds


def ordered_marks(rules: CacheRules, marks: Sequence[Mark], *, blocks: int) -> tuple[Mark, ...]:
    """The marks in wire order; refuses those that are nowhere, stand twice, or ask for an unknown lifetime."""
    ordered = sorted(marks, key=lambda mark: mark.piece)
    seen: set[int] = set()
    for mark in ordered:
        if not 0 <= mark.piece < blocks:
            raise UserError(f"a mark on block {mark.piece} of {blocks}; blocks are counted from 0")
        if mark.piece in seen:
            raise UserError(f"two marks on block {mark.piece}; place one")
        if mark.ttl not in rules.ttls_seconds:
            known = ", ".join(sorted(rules.ttls_seconds))
            raise UserError(f"unknown cache_control ttl {mark.ttl!r}; known: {known}")
        seen.add(mark.piece)
    return tuple(ordered)


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
