"""Anthropic's cache: entries are written only at breakpoints, and looked up from them backwards."""

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
    breakpoints = _effective_breakpoints(rules, call)
    read = _highest_hit(rules, entries, call, breakpoints)
    present = {breakpoint.piece: _entry_at(entries, call, breakpoint) for breakpoint in breakpoints}
    present_entries = [entry for entry in present.values() if entry is not None]
    missing = [breakpoint for breakpoint in breakpoints if present[breakpoint.piece] is None]
    outcome = Outcome(
        usage=_bill(call, breakpoints, read),
        at=call.at,
        read=read,
        written=tuple(_new_entry(rules, entries, call, breakpoint, read=read) for breakpoint in missing),
    )
    used = present_entries if read is None else [read, *present_entries]
    return outcome, refreshed(rules, entries, used, at=call.at)


def check_marks(rules: CacheRules, breakpoints: Sequence[Mark], *, blocks: int) -> None:
    """Refuse what the provider refuses: too many breakpoints, unknown TTLs, a longer TTL after a shorter one."""
    if len(breakpoints) > rules.marks_max:
        raise UserError(
            f"A maximum of {rules.marks_max} blocks with cache_control may be provided. Found {len(breakpoints)}."
        )
    shortest: float | None = None
    for breakpoint in ordered_marks(rules, breakpoints, blocks=blocks):
        seconds = rules.ttls_seconds[breakpoint.ttl]
        if shortest is not None and seconds > shortest:
            raise UserError(
                f"a ttl='{breakpoint.ttl}' cache_control block must not come after one with a shorter ttl; "
                "put longer TTLs first"
            )
        shortest = seconds


def ordered_marks(rules: CacheRules, breakpoints: Sequence[Mark], *, blocks: int) -> tuple[Mark, ...]:
    """The breakpoints in wire order; refuses those outside the prompt, duplicates, and unknown TTLs."""
    ordered = sorted(breakpoints, key=lambda breakpoint: breakpoint.piece)
    seen: set[int] = set()
    for breakpoint in ordered:
        if not 0 <= breakpoint.piece < blocks:
            raise UserError(f"breakpoint on block {breakpoint.piece} of {blocks}; blocks are counted from 0")
        if breakpoint.piece in seen:
            raise UserError(f"two breakpoints on block {breakpoint.piece}; place one")
        if breakpoint.ttl not in rules.ttls_seconds:
            known = ", ".join(sorted(rules.ttls_seconds))
            raise UserError(f"unknown cache_control ttl {breakpoint.ttl!r}; known: {known}")
        seen.add(breakpoint.piece)
    return tuple(ordered)


def _effective_breakpoints(rules: CacheRules, call: Call) -> tuple[Mark, ...]:
    """The breakpoints whose prefix reaches the minimum size, in wire order; the provider silently ignores others."""
    ordered = sorted(call.marks, key=lambda breakpoint: breakpoint.piece)
    return tuple(breakpoint for breakpoint in ordered if call.prefixes[breakpoint.piece].tokens >= rules.tokens_min)


def _highest_hit(rules: CacheRules, entries: Entries, call: Call, breakpoints: Sequence[Mark]) -> Entry | None:
    for breakpoint in reversed(breakpoints):
        for index in positions_checked(rules, call.prefixes, breakpoint.piece):
            prefix = call.prefixes[index]
            if prefix.tokens < rules.tokens_min:
                break
            entry = entries.find(call.scope, prefix.digest, at=call.at)
            if entry is not None:
                return entry
    return None


def _entry_at(entries: Entries, call: Call, breakpoint: Mark) -> Entry | None:
    return entries.find(call.scope, call.prefixes[breakpoint.piece].digest, at=call.at)


def _bill(call: Call, breakpoints: Sequence[Mark], read: Entry | None) -> Usage:
    """The usage of a call, by Anthropic's rule for mixed TTLs."""
    # A = tokens at the highest hit, B = tokens at the highest 1-hour breakpoint after A (else A), C = tokens at the
    # last breakpoint. Billed: read A, 1-hour write B - A, 5-minute write C - B, uncached input after C (Anthropic,
    # "Prompt caching").
    hit = read.tokens if read else 0
    ends: dict[Ttl, int] = {"1h": hit, "5m": hit}
    for breakpoint in breakpoints:
        ends[breakpoint.ttl] = max(hit, call.prefixes[breakpoint.piece].tokens)
    written_end = max(ends.values())
    return Usage(
        input=call.tokens - written_end,
        cache_read=hit,
        cache_write_1h=ends["1h"] - hit,
        cache_write_5m=written_end - ends["1h"],
    )


def _new_entry(rules: CacheRules, entries: Entries, call: Call, breakpoint: Mark, *, read: Entry | None) -> Entry:
    """The entry for the prefix that ends at this breakpoint; `read` is the entry that the call read."""
    prefix = call.prefixes[breakpoint.piece]
    ttl: str = breakpoint.ttl
    rests_on: str | None = None
    # Using a prefix refreshes everything inside it, so of ranges with the same TTL the last one expires first. Whether
    # a longer TTL after it extends the whole prefix is not documented; `ttl_upgrade` holds the assumption.
    shortest_lived = (entries.under(read, at=call.at) or read) if read else None
    if shortest_lived is not None and rules.ttls_seconds[shortest_lived.ttl] < rules.ttls_seconds[ttl]:
        if prefix.tokens > shortest_lived.tokens:
            rests_on = shortest_lived.digest
        elif not rules.ttl_upgrade:
            ttl = shortest_lived.ttl
    return Entry(
        call.scope,
        prefix.digest,
        prefix.tokens,
        ttl,
        expires_at=call.at + rules.ttls_seconds[ttl],
        rests_on=rests_on,
        outlives_it=rests_on is not None and rules.ttl_upgrade,
    )
